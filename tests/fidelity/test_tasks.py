"""Tasks in states that are refused by name, that only the host can give, and that change a thousand times a second."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path

import pytest

from tests.fidelity import programs
from tests.fidelity.apart import run_apart
from tests.fidelity.harness import Harness, own_mount_namespace
from tests.fidelity.livefork import Container, ForkError

pytestmark = [pytest.mark.root]

_SOURCE = Path(__file__).resolve().parent / "refused" / "task_states.c"
# How long a program may take to say that it is ready, or what it found: on a machine with much else to do, too.
_READY_SECONDS = 60.0
_REFUSED = 3
_STORM_FORKS = 10
_END_FORKS = 4
_QUEUED_MS = 8000.0     # 0.3 s on a quiet machine
_SHARING_SECONDS = 20.0      # 2.5 s for all of them; for one after the other it would be 30
_FIFO_PRIORITY = 7
_NICE = -5
_WAITS = 3
_WAIT_SECONDS = 8.0
_WAIT_ATTEMPTS = 3
_LATE_SECONDS = 20.0

_MESSAGES = {
    "dispatch": "(task_states) catches its own system calls (syscall user dispatch, as Wine does)",
    "segments": "(task_states) has memory segments of its own (modify_ldt, for 16-bit programs)",
    "memory": "(task_states) shares its memory with pid",
    "vdso": "(task_states) has made its vdso not executable",
    "traced": "(task_states) is traced by another process",
    "thread_pidfd": "watches a single thread by its pidfd (number 4), which cannot be forked; take it out of the set",
    "thread_place": "(task_states) has a thread with a working directory of its own (unshare with CLONE_FS) that was removed",
    "thread_table": "(task_states) has a thread with a descriptor table of its own (unshare with CLONE_FILES), which cannot be forked; end the thread",
    "thread_network": "(task_states) has a thread in a namespace of its own (net), which cannot be forked; end the thread",
    "thread_places": "(task_states) has two threads that share a working directory of their own (unshare with CLONE_FS), which cannot be forked; end one of them",
}


async def _launch(harness: Harness, mode: str) -> Container:
    image = harness.import_root(None, [programs.compiled(_SOURCE)])
    source = await harness.launch(image, ["/fidelity/task_states", mode])
    deadline = time.monotonic() + _READY_SECONDS
    while source.read("/tmp/fidelity/task_states.ready") is None:
        assert time.monotonic() < deadline, source.read("/tmp/fidelity/task_states.result")
        await asyncio.sleep(0.02)
    return source


async def _refuse(mode: str, directory: Path) -> None:
    async with Harness(directory) as harness:
        source = await _launch(harness, mode)
        await asyncio.sleep(0.2)  # "dispatch" and "vdso" are ready just before they are in their state
        with pytest.raises(ForkError) as failure:
            await harness.fork(source)
        assert failure.value.status == _REFUSED, failure.value
        assert _MESSAGES[mode] in failure.value.message
        assert source.alive


async def _all_at_once(directory: Path) -> None:
    """However many share memory, a fork waits for them together."""
    async with Harness(directory) as harness:
        source = await _launch(harness, "memories")
        started = time.monotonic()
        with pytest.raises(ForkError) as failure:
            await harness.fork(source)
        assert failure.value.status == _REFUSED, failure.value
        assert _MESSAGES["memory"] in failure.value.message
        assert time.monotonic() - started < _SHARING_SECONDS


async def _too_many_queued(directory: Path) -> None:
    """What would take long to read is refused at once."""
    async with Harness(directory) as harness:
        source = await _launch(harness, "queued_more")
        started = time.monotonic()
        with pytest.raises(ForkError, match=r"\(task_states\) has more than 8192 pending signals; let it take some") as failure:
            await harness.fork(source)
        assert failure.value.code == "limit"
        assert (time.monotonic() - started) * 1000 < _QUEUED_MS
        assert source.alive


async def _queued(directory: Path) -> None:
    """As many pending signals as a fork takes: all kept, in their order, without the source noticing, and read in a bounded time."""
    async with Harness(directory) as harness:
        source = await _launch(harness, "queued")
        result = await harness.fork(source)
        assert result.phases["captured"] - result.phases["frozen"] < _QUEUED_MS, result.phases
        for container, side in ((result.branches[0], "branch"), (source, "source")):
            container.write("/tmp/fidelity/go", side)
            deadline = time.monotonic() + _READY_SECONDS
            while (verdict := container.read("/tmp/fidelity/task_states.result")) is None:
                assert time.monotonic() < deadline, side
                await asyncio.sleep(0.02)
            assert verdict == "pass", (side, verdict)


async def _ends(directory: Path) -> None:
    """Processes that end in the branch while livefork still lets their threads go: the fork succeeds, and they are zombies in the branch alone."""
    async with Harness(directory) as harness:
        source = await _launch(harness, "ends")
        make_root = harness.branch_root

        def with_mark(parent: Container, branch: Container) -> int:
            root = make_root(parent, branch)
            os.close(os.open("tmp/fidelity/in-branch", os.O_CREAT | os.O_WRONLY, dir_fd=root))
            return root

        harness.branch_root = with_mark  # type: ignore[method-assign]
        for _ in range(_END_FORKS):
            result = await harness.fork(source)
            assert result.branch_errors == {} and result.branches[0].alive
            assert _states_of_children(source) == ["R"] * 3
            deadline = time.monotonic() + _READY_SECONDS
            while _states_of_children(result.branches[0]) != ["Z"] * 3:
                assert time.monotonic() < deadline, _states_of_children(result.branches[0])
                await asyncio.sleep(0.02)
            await harness.remove(result.branches[0])


def _states_of_children(container: Container) -> list[str]:
    """Of the processes that the workspace's program has forked."""
    program = _first_child(container.pid)
    children = Path(f"/proc/{program}/task/{program}/children").read_text().split()
    return [Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] for child in children]


async def _storm(directory: Path) -> None:
    async with Harness(directory) as harness:
        source = await _launch(harness, "storm")
        for _ in range(_STORM_FORKS):
            result = await harness.fork(source)
            assert result.branches[0].alive
            await harness.remove(result.branches[0])
        assert source.alive


def _first_child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _make_real_time(pid: int) -> tuple[int, int]:
    """Policy and priority that the process has afterwards: the ordinary ones where the host's cgroups give no real-time budget."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(_FIFO_PRIORITY))
    return os.sched_getscheduler(pid), os.sched_getparam(pid).sched_priority


async def _priorities(directory: Path) -> None:
    async with Harness(directory) as harness:
        source = await harness.launch(harness.import_root(None, []), ["/bin/busybox", "sleep", "1000"])
        await asyncio.sleep(0.5)  # until its init has started it
        policy = _make_real_time(_first_child(source.pid))
        os.setpriority(os.PRIO_PROCESS, source.pid, _NICE)
        branch = (await harness.fork(source)).branches[0]
        twin = _first_child(branch.pid)
        assert (os.sched_getscheduler(twin), os.sched_getparam(twin).sched_priority) == policy
        assert os.getpriority(os.PRIO_PROCESS, branch.pid) == _NICE


async def _waited(container: Container, which: int) -> float:
    """How long a wait took by the monotonic clock, in seconds."""
    deadline = time.monotonic() + _WAIT_SECONDS + _LATE_SECONDS
    while (text := container.read(f"/tmp/fidelity/task_states.waited-{which}")) is None:
        assert time.monotonic() < deadline, f"wait {which} does not end"
        await asyncio.sleep(0.05)
    return float(text)


async def _waits(directory: Path) -> None:
    """What is left of a wait is unknown when a busy machine took the processor away from the thread just as it was frozen: hence the attempts."""
    async with Harness(directory) as harness:
        for _ in range(_WAIT_ATTEMPTS):
            source = await _launch(harness, "waits")
            await asyncio.sleep(_WAIT_SECONDS / 2)
            branch = (await harness.fork(source)).branches[0]
            times = [await _waited(branch, which) for which in range(_WAITS)]
            assert min(times) >= _WAIT_SECONDS, f"a wait ended early: {times}"
            assert min([await _waited(source, which) for which in range(_WAITS)]) >= _WAIT_SECONDS
            if max(times) < _WAIT_SECONDS * 1.4:
                return
            await harness.remove(branch)
            await harness.remove(source)
    raise AssertionError(f"waits lasted their whole time again: {times}")


def _in_own_process(what: str, directory: Path) -> None:
    run_apart("tests.fidelity.test_tasks", what, directory, seconds=150)


@pytest.mark.parametrize("mode", _MESSAGES)
def test_is_refused_by_name(mode: str, tmp_path: Path) -> None:
    _in_own_process(mode, tmp_path / "harness")


def test_many_that_share_memory_are_refused_in_bounded_time(tmp_path: Path) -> None:
    _in_own_process("memories", tmp_path / "harness")


def test_many_pending_signals_are_read_in_bounded_time(tmp_path: Path) -> None:
    _in_own_process("queued", tmp_path / "harness")


def test_too_many_pending_signals_are_refused_at_once(tmp_path: Path) -> None:
    _in_own_process("queued_more", tmp_path / "harness")


def test_processes_that_end_while_they_are_let_go_do_not_fail_the_fork(tmp_path: Path) -> None:
    _in_own_process("ends", tmp_path / "harness")


def test_priorities_that_the_host_gave_are_kept(tmp_path: Path) -> None:
    _in_own_process("priorities", tmp_path / "harness")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_relative_waits_end_when_they_should(tmp_path: Path) -> None:
    _in_own_process("waits", tmp_path / "harness")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_forks_amid_a_storm_of_processes_and_threads(tmp_path: Path) -> None:
    _in_own_process("storm", tmp_path / "harness")


async def _main(what: str, directory: Path) -> None:
    if what == "priorities":
        await _priorities(directory)
    elif what == "waits":
        await _waits(directory)
    elif what == "storm":
        await _storm(directory)
    elif what == "queued":
        await _queued(directory)
    elif what == "queued_more":
        await _too_many_queued(directory)
    elif what == "ends":
        await _ends(directory)
    elif what == "memories":
        await _all_at_once(directory)
    else:
        await _refuse(what, directory)


if __name__ == "__main__":
    own_mount_namespace()
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2])))
