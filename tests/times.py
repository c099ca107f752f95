"""Where the time of a run went: seconds of its tests by directory and by file, added up over all processes."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath

import pytest

_FILES = 25


class Times:
    """Adds up what each part of each test took. With several processes, their reports come together here."""

    def __init__(self) -> None:
        self._files: Counter[str] = Counter()
        self._tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self._files[file] += report.duration  # type: ignore[assignment]  # a Counter of seconds
        self._tests[file] += report.when == "call"

    def lines(self) -> list[str]:
        """Every directory, then the files that took longest; the longest first."""
        directories: Counter[str] = Counter()
        numbers: Counter[str] = Counter()
        for file, seconds in self._files.items():
            directory = str(PurePosixPath(file).parent)
            directories[directory] += seconds
            numbers[directory] += self._tests[file]
        return [
            *(f"{seconds:8.1f} s  {numbers[name]:5} tests  {name}/" for name, seconds in directories.most_common()),
            *(f"{seconds:8.1f} s  {self._tests[name]:5} tests  {name}" for name, seconds in self._files.most_common(_FILES)),
        ]
