"""SIGKILL of livefork at each of five moments: the source goes on unharmed, and after the engine's part of the clean-up nothing is left."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.fidelity.harness import Harness, finish, own_mount_namespace, start_programs
from tests.fidelity.livefork import ForkError

pytestmark = [pytest.mark.root]

PHASES = ("preflight", "frozen", "captured", "resumed", "rebuilt")
_PROGRAMS = ["counter", "threads", "signals", "memory_private", "pipes", "seccomp", "tcp_queues"]


def _left_behind(harness: int) -> dict[str, list[str]]:
    """What a harness that ran in the process with this pid has left on the host."""
    group = f"tclone-harness-{harness}"
    return {
        "cgroups": [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{group}")],
        "processes": [pid for pid in os.listdir("/proc") if pid.isdigit() and group in _cgroup(pid)],
    }


def _cgroup(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""


async def _kill_and_check(phase: str, directory: Path) -> None:
    """Fork with livefork killed at `phase`; then fork again for real, and check every program on both sides."""
    # Killed right after the freeze it had no time to conceal the stop from epoll_wait and sigwaitinfo, which end with EINTR then.
    names = _PROGRAMS if phase == "frozen" else [*_PROGRAMS, "blocking"]
    async with Harness(directory) as harness:
        source = await start_programs(harness, names, directory / "programs")
        threads = _thread_states(source.pid)
        with pytest.raises(ForkError) as failure:
            await harness.fork(source, copies=2, stop_at=phase)
        assert failure.value.status == -9
        assert harness.containers == [source], "prepared branches were not removed"
        assert _traced(source.pid) == [], "threads of the source are still traced"
        assert len(_thread_states(source.pid)) == len(threads)
        result = await harness.fork(source)
        assert set((await finish(result.branches[0], names, "branch")).values()) == {"pass"}
        assert set((await finish(source, names, "source")).values()) == {"pass"}


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


@pytest.mark.timeout(180)
@pytest.mark.parametrize("phase", PHASES)
def test_source_survives_livefork_killed_at(phase: str, tmp_path: Path) -> None:
    # In a child: the private mount namespace is for the whole process.
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            own_mount_namespace()
            asyncio.run(_kill_and_check(phase, tmp_path / "harness"))
            status = 0
        except BaseException as error:  # the child must never return into pytest
            print(f"killed at {phase}: {error!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, f"killed at {phase}: see stderr"
    assert _left_behind(pid) == {"cgroups": [], "processes": []}
