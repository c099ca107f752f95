"""A branch whose container dies while it is built: the error names that branch, whichever it is, and the others are there."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.fidelity.apart import run_apart
from tests.fidelity.harness import Harness, own_mount_namespace
from tests.fidelity.livefork import Container, ForkError

pytestmark = [pytest.mark.root, pytest.mark.slow]

_PHASES = ("preflight", "frozen", "captured", "copying", "resumed", "rebuilt")
_BRANCHES = 3
_SECONDS = 10.0


def _kill(container: Container) -> None:
    os.kill(container.pid, signal.SIGKILL)
    deadline = time.monotonic() + _SECONDS
    while container.alive:
        assert time.monotonic() < deadline, f"{container.id} does not end"
        time.sleep(0.001)


async def _one(harness: Harness, source: Container, phase: str, victim: int) -> None:
    killed: list[Container] = []

    def kill(livefork: int, branches: list[Container]) -> None:
        killed.append(branches[victim])
        _kill(branches[victim])
        os.kill(livefork, signal.SIGCONT)

    result = await harness.fork(source, _BRANCHES, stop_at=phase, when_stopped=kill)
    dead = killed[0].id
    assert list(result.branch_errors) == [dead], (phase, victim, result.branch_errors)
    assert dead in result.branch_errors[dead], (phase, victim, result.branch_errors)
    others = [branch for branch in result.branches if branch.id != dead]
    assert len(others) == _BRANCHES - 1 and all(branch.alive for branch in others), (phase, victim)
    assert not any(branch.id in result.branch_errors[dead] for branch in others), result.branch_errors
    for branch in result.branches:
        await harness.remove(branch)


async def _all(harness: Harness, source: Container, phase: str) -> None:
    """When none is left, the fork's error names the first that was lost, and the source goes on."""
    names: list[str] = []

    def kill(livefork: int, branches: list[Container]) -> None:
        for branch in branches:
            names.append(branch.id)
            _kill(branch)
        os.kill(livefork, signal.SIGCONT)

    with pytest.raises(ForkError) as failure:
        await harness.fork(source, 2, stop_at=phase, when_stopped=kill)
    assert names[0] in failure.value.message and failure.value.code != "gone", failure.value
    assert source.alive


async def _fork(phase: str, directory: Path) -> None:
    async with Harness(directory) as harness:
        source = await harness.launch(harness.import_root(None, []), ["/bin/busybox", "sleep", "1000"])
        for victim in (0, _BRANCHES - 1):
            await _one(harness, source, phase, victim)
        await _all(harness, source, phase)
        assert (await harness.fork(source)).branch_errors == {}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("phase", _PHASES)
def test_the_error_names_the_branch_that_died_after(phase: str, tmp_path: Path) -> None:
    run_apart("tests.fidelity.test_branch_errors", phase, tmp_path / "harness", seconds=150)


if __name__ == "__main__":
    own_mount_namespace()
    asyncio.run(_fork(sys.argv[1], Path(sys.argv[2])))
