"""SIGKILL of livefork at any moment: the source goes on unharmed, and after the engine's part of the clean-up nothing is left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.fidelity.apart import run_in_child
from tests.fidelity.harness import Harness, finish, start_programs
from tests.fidelity.livefork import Container, ForkError

pytestmark = [pytest.mark.root]

PHASES = ("preflight", "frozen", "captured", "resumed", "rebuilt")
_PROGRAMS = ["counter", "threads", "signals", "memory_private", "pipes", "seccomp", "tcp_queues", "blocking"]
# In the middle of what must not be left half done (shield.h): all stand still, a thread with a seccomp filter is about to answer questions, bytes of a
# terminal or messages of a queue are held.
MOMENTS = ("freezing", "asking", "terminal", "queue")
_DELICATE = ["seccomp_kills", "blocking", "terminal_queues", "posix_queues", "queues_watched", "threads"]


def _left_behind(harness: int) -> dict[str, list[str]]:
    """What a harness that ran in the process with this pid has left on the host."""
    group = f"tclone-harness-{harness}"
    return {
        "cgroups": [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{group}")],
        "processes": [pid for pid in os.listdir("/proc") if pid.isdigit() and group in _cgroup(pid) and _runs(pid)],
    }


def _cgroup(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""


def _runs(pid: str) -> bool:
    """Not one that has ended and waits to be reaped by the host's first process: the v2 tree goes on naming its group."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def _kill_and_check(phase: str, directory: Path) -> None:
    """Fork with livefork killed at `phase`; then fork again for real, and check every program on both sides."""
    async with Harness(directory) as harness:
        source = await start_programs(harness, _PROGRAMS, directory / "programs")
        threads = _thread_states(source.pid)
        with pytest.raises(ForkError) as failure:
            await harness.fork(source, copies=2, stop_at=phase)
        assert failure.value.status == -9
        assert harness.containers == [source], "prepared branches were not removed"
        assert _traced(source.pid) == [], "threads of the source are still traced"
        assert len(_thread_states(source.pid)) == len(threads)
        await _fork_and_finish(harness, source, _PROGRAMS)


async def _fork_and_finish(harness: Harness, source: Container, names: list[str]) -> None:
    """Fork for real, and let every program check itself on both sides."""
    passed = dict.fromkeys(names, "pass")
    result = await harness.fork(source)
    assert await finish(result.branches[0], names, "branch") == passed
    assert await finish(source, names, "source") == passed


async def _kill_amid_delicate_work(directory: Path, victim: str) -> None:
    async with Harness(directory) as harness:
        source = await start_programs(harness, _DELICATE, directory / "programs")
        threads = len(_thread_states(source.pid))
        for moment in (victim + name for name in MOMENTS):
            with pytest.raises(ForkError) as failure:
                await harness.fork(source, kill_at=moment)
            assert failure.value.status == -9, moment
            assert _traced(source.pid) == [], moment
            assert len(_thread_states(source.pid)) == threads, f"{moment}: threads of the source have ended"
        await _fork_and_finish(harness, source, _DELICATE)


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


def _thread_states(pid: int) -> list[str]:
    return [
        path.read_text().rpartition(")")[2].split()[0] for process in _descendants(pid) for path in Path(f"/proc/{process}/task").glob("*/stat")
    ]


def _traced(pid: int) -> list[int]:
    return [
        process
        for process in _descendants(pid)
        for path in Path(f"/proc/{process}/task").glob("*/status")
        if int(path.read_text().partition("TracerPid:")[2].split()[0])
    ]


def _in_a_child(work: Coroutine[Any, Any, None]) -> None:
    """Run it in a process of its own; nothing is left of it afterwards."""
    pid = run_in_child(lambda: asyncio.run(work))
    work.close()
    assert _left_behind(pid) == {"cgroups": [], "processes": []}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("phase", PHASES)
def test_source_survives_livefork_killed_at(phase: str, tmp_path: Path) -> None:
    _in_a_child(_kill_and_check(phase, tmp_path / "harness"))


@pytest.mark.timeout(180)
@pytest.mark.parametrize("victim", ["", "worker:"], ids=["the process that was started", "the child that works for it"])
def test_source_survives_livefork_killed_amid_what_must_not_be_left_half_done(victim: str, tmp_path: Path) -> None:
    """Processes with a filter that kills, unread bytes of terminals and messages of queues are what they were."""
    _in_a_child(_kill_amid_delicate_work(tmp_path / "harness", victim))
