"""Workspaces whose processes change thousands of times a second: each fork of them succeeds, in a bounded time, and both sides go on.

    python -m tests.fidelity.test_storms KIND DIRECTORY
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from pathlib import Path

import pytest

from engine.fork import ATTEMPTS
from tests.fidelity import programs
from tests.fidelity.apart import run_apart
from tests.fidelity.harness import Harness, own_mount_namespace
from tests.fidelity.livefork import Container, ForkError, ForkResult

pytestmark = [pytest.mark.root, pytest.mark.slow]

_SOURCE = Path(__file__).resolve().parent / "storms" / "storm.c"
_KINDS = (*re.findall(r'\{ "(\w+)", storm_', _SOURCE.read_text()), "all")
_FORKS = 8
_FORK_SECONDS = 20.0        # a fork of the wildest storm takes under a second on a quiet machine
_BEAT_SECONDS = 20.0


async def _beats(container: Container) -> None:
    """Wait until the storm's first process has counted on."""
    before = container.read("/tmp/beat")
    deadline = time.monotonic() + _BEAT_SECONDS
    while container.read("/tmp/beat") in (None, "", before):
        assert time.monotonic() < deadline, f"{container.id} stands still: {container.read('/var/log/tclone/console.log')}"
        await asyncio.sleep(0.01)


async def _fork(harness: Harness, source: Container) -> ForkResult:
    """As the engine forks: once more when the workspace was met in a state that passes."""
    for _ in range(ATTEMPTS - 1):
        try:
            return await harness.fork(source)
        except ForkError as error:
            if error.code != "busy":
                raise
    return await harness.fork(source)


async def _storm(kind: str, directory: Path) -> None:
    async with Harness(directory) as harness:
        image = harness.import_root(None, [programs.compiled(_SOURCE)])
        source = await harness.launch(image, ["/fidelity/storm", kind])
        await _beats(source)
        failures = []
        for number in range(_FORKS):
            started = time.monotonic()
            try:
                result = await _fork(harness, source)
            except Exception as error:
                failures.append(f"fork {number}: {error!r}")
                continue
            if time.monotonic() - started > _FORK_SECONDS:
                failures.append(f"fork {number}: it took {time.monotonic() - started:.1f} s")
            await _beats(result.branches[0])
            await harness.remove(result.branches[0])
            await _beats(source)
        assert not failures, "\n".join(failures)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", _KINDS)
def test_every_fork_of_a_storm_succeeds(kind: str, tmp_path: Path) -> None:
    run_apart("tests.fidelity.test_storms", kind, tmp_path / "harness", seconds=220)


if __name__ == "__main__":
    own_mount_namespace()
    asyncio.run(_storm(sys.argv[1], Path(sys.argv[2])))
