"""Unix sockets, pipes and terminals whose other end is outside the workspace: a branch meets their end, the source nothing of the branch."""

from __future__ import annotations

import asyncio
import os
import pty
import socket
import tty
from pathlib import Path

import pytest

from tests.fidelity import programs
from tests.fidelity.apart import run_in_child
from tests.fidelity.harness import Harness, finish
from tests.fidelity.livefork import Container

pytestmark = [pytest.mark.root]

_PROGRAM = "unix_outside"
_PATH = "/tmp/fidelity-outside"
_SECONDS = 20.0


async def _await_file(container: Container, suffix: str) -> None:
    for _ in range(int(_SECONDS / 0.05)):
        if container.read(f"/tmp/fidelity/{_PROGRAM}.{suffix}") is not None:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"the program is not {suffix}: {container.read(f'/tmp/fidelity/{_PROGRAM}.result')}")


async def _fork_and_check(directory: Path) -> None:
    async with Harness(directory) as harness:
        binaries = [programs.compiled(programs.SOURCES / "outside" / f"{_PROGRAM}.c"), programs.build(programs.LAUNCHER)]
        source = await harness.launch(
            harness.import_root(None, binaries), [f"/fidelity/{programs.LAUNCHER}", f"/fidelity/{_PROGRAM}"]
        )
        await _await_file(source, "listening")
        read_end, kept_write = os.pipe()
        kept_read, write_end = os.pipe()
        master, slave = pty.openpty()
        tty.setraw(slave)
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stream.connect(str(source.inside(_PATH)))
        socket.send_fds(stream, [b"f"], [read_end, write_end, slave])
        for ours in (read_end, write_end, slave):
            os.close(ours)
        os.write(kept_write, b"in the pipe")
        datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        datagram.sendto(b"a datagram", str(source.inside(_PATH + ".dgram")))
        stream.sendall(b"unread bytes")
        await _await_file(source, "ready")
        branch = (await harness.fork(source)).branches[0]
        assert await finish(branch, [_PROGRAM], "branch") == {_PROGRAM: "pass"}
        stream.setblocking(False)
        with pytest.raises(BlockingIOError):    # neither bytes nor an end: the branch has not touched it
            stream.recv(1)
        assert await finish(source, [_PROGRAM], "source") == {_PROGRAM: "pass"}
        assert stream.recv(100) == b"still here"
        assert os.read(kept_read, 100) == b"still here"
        for ours in (kept_write, kept_read, master):
            os.close(ours)
        stream.close()
        datagram.close()


@pytest.mark.timeout(180)
def test_what_leads_outside_ends_in_the_branch_only(tmp_path: Path) -> None:
    run_in_child(lambda: asyncio.run(_fork_and_check(tmp_path / "harness")))
