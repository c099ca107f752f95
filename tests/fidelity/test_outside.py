"""TCP connections out of a workspace: the branch's end at once and cleanly, the source's go on and see nothing of the branch."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import psutil
import pytest

from engine import syscalls
from tests.fidelity import programs
from tests.fidelity.apart import run_in_child
from tests.fidelity.harness import Harness, finish
from tests.fidelity.livefork import Container, ForkError

pytestmark = [pytest.mark.root]

_OUTSIDE = programs.SOURCES / "outside"
_PROGRAM = "tcp_outside"
_PORT = 18361
_SECONDS = 20.0


def _connect(container: Container, first: bytes) -> socket.socket:
    """A connection of the workspace's network namespace whose end belongs to nobody of the workspace."""
    connection = syscalls.socket_in(container.netns, socket.AF_INET, socket.SOCK_STREAM)
    connection.settimeout(_SECONDS)
    connection.connect(("127.0.0.1", _PORT))
    connection.sendall(first)
    return connection


async def _await_file(container: Container, suffix: str) -> None:
    for _ in range(int(_SECONDS / 0.05)):
        assert container.read(f"/tmp/fidelity/{_PROGRAM}.result") is None, container.read(f"/tmp/fidelity/{_PROGRAM}.result")
        if container.read(f"/tmp/fidelity/{_PROGRAM}.{suffix}") is not None:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"the program is not {suffix} after {_SECONDS:.0f} s")


async def _await_rest(container: Container, program: str) -> None:
    """Until a program has come to its end, where it sleeps for ever; before that it only computes."""
    for _ in range(int(_SECONDS / 0.05)):
        if any(process.name() == program and process.status() == psutil.STATUS_SLEEPING for process in psutil.Process(container.pid).children()):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{program} does not rest after {_SECONDS:.0f} s")


async def _start(harness: Harness) -> Container:
    binaries = [programs.compiled(_OUTSIDE / f"{_PROGRAM}.c"), programs.build(programs.LAUNCHER)]
    image = harness.import_root(None, binaries)
    source = await harness.launch(image, [f"/fidelity/{programs.LAUNCHER}", f"/fidelity/{_PROGRAM}"])
    await _await_file(source, "listening")
    return source


async def _fork_and_check(directory: Path, options: list[str]) -> None:
    async with Harness(directory) as harness:
        source = await _start(harness)
        unread, half = _connect(source, b"uunread bytes"), _connect(source, b"hhalf")
        others = [_connect(source, role) for role in (b"i", b"f", b"b")]
        half.shutdown(socket.SHUT_WR)
        await _await_file(source, "ready")
        branch = (await harness.fork(source, options=options)).branches[0]
        if options:
            branch.write("/tmp/fidelity/all-closed", "yes")
        assert await finish(branch, [_PROGRAM], "branch") == {_PROGRAM: "pass"}
        for connection in (unread, half, others[0]):
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):    # neither bytes nor an end: the branch has not touched it
                connection.recv(1)
            connection.settimeout(_SECONDS)
        assert await finish(source, [_PROGRAM], "source") == {_PROGRAM: "pass"}
        assert unread.recv(100) == b"from the source"
        assert half.recv(100) == b"from the source"
        for connection in (unread, half, *others):
            connection.close()


async def _refuse(directory: Path, program: str, words: str, times: int) -> None:
    """What cannot be forked is refused by name before anything stops."""
    async with Harness(directory) as harness:
        image = harness.import_root(None, [programs.compiled(_OUTSIDE / f"{program}.c")])
        source = await harness.launch(image, [f"/fidelity/{program}"])
        await _await_rest(source, program)
        with pytest.raises(ForkError) as refusal:
            await harness.fork(source)
        assert refusal.value.code == "unsupported"
        assert refusal.value.message.count(words) == times and "fd 3" in refusal.value.message and program in refusal.value.message
        assert source.alive


@pytest.mark.timeout(180)
@pytest.mark.parametrize("options", [[], ["--tcp-close"]], ids=["default", "tcp-close"])
def test_outward_connections_end_in_the_branch_only(options: list[str], tmp_path: Path) -> None:
    run_in_child(lambda: asyncio.run(_fork_and_check(tmp_path / "harness", options)))


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("program", "words", "times"),
    [("vsock", "machine's host (vsock)", 1), ("corked", "holds an unfinished datagram", 2), ("ring", "shares with the kernel", 1)],
)
def test_what_cannot_be_forked_is_refused_by_name(program: str, words: str, times: int, tmp_path: Path) -> None:
    run_in_child(lambda: asyncio.run(_refuse(tmp_path / "harness", program, words, times)))
