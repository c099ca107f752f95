"""That the leak counter sees what a test must not leave, of the kinds that no other test makes on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import leaks
from tests.leaks import LeakCounter


def test_a_directory_made_where_only_an_administrator_makes_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "_ADMINISTRATORS", (str(tmp_path),))
    monkeypatch.setenv("HOME", str(tmp_path / "mine"))
    (tmp_path / "before").mkdir()
    counter = LeakCounter(markers={str(tmp_path)}, whole_host=False)
    counter.start()
    (tmp_path / "mine").mkdir()
    assert counter.growth() == []
    (tmp_path / "nonexistent").mkdir()
    with pytest.raises(AssertionError, match=f"directory {tmp_path}/nonexistent"):
        counter.check(within=0.0)
