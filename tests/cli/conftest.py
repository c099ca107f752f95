"""Fixtures: `engine` (a fake one on a socket of its own), `tclone` (the command, run as a process against it), `tclone_up` (the command
for a real TClone with everything of its own)."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.fake_engine import FakeEngine
from tests.leaks import LeakCounter
from tests.ports import free_port


@dataclass(frozen=True)
class Done:
    """One run of the command."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


class Tclone:
    """Runs `tclone` as a process of its own, with `environment`."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "engine.cli.main", *words]

    async def __call__(self, *words: str, stdin: bytes | None = b"", timeout: float = 30) -> Done:
        return await self.run(self.argv(*words), stdin, timeout)

    async def run(self, argv: list[str], stdin: bytes | None = b"", timeout: float = 30) -> Done:
        """Another program in the same environment."""
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(stdin), timeout)
        except TimeoutError:
            process.kill()
            out, err = await process.communicate()
            pytest.fail(f"{' '.join(argv)} did not end within {timeout} s; stdout {out!r}, stderr {err!r}")
        assert process.returncode is not None
        return Done(process.returncode, out.decode(), err.decode())


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users may enter, unlike tmp_path: the portal's user has to."""
    path = Path(tempfile.mkdtemp(prefix="tclone-cli-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def tclone(place: Path) -> Tclone:
    return Tclone({**os.environ, "TCLONE_DATA": str(place / "data"), "TCLONE_RUN": str(place / "run"), "TERM": "xterm"})


@pytest.fixture
async def tclone_up(leaks: LeakCounter, place: Path) -> AsyncIterator[Tclone]:
    """The command with directories, port and portal user of its own for a real TClone; what the test leaves running is taken down."""
    leaks.own_engine(place / "data", place / "run")
    environment = {
        **os.environ,
        "TCLONE_DATA": str(place / "data"),
        "TCLONE_RUN": str(place / "run"),
        "TCLONE_PORTAL_PORT": str(free_port()),
        "TCLONE_PORTAL_USER": "nobody",
    }
    command = Tclone(environment)
    yield command
    done = await command("down", timeout=90)
    assert done.status == 0, done.err


@pytest.fixture
async def engine(place: Path) -> AsyncIterator[FakeEngine]:
    (place / "run").mkdir()
    fake = FakeEngine(place / "run" / "engine.sock")
    await fake.start()
    yield fake
    await fake.stop()
