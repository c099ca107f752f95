"""Answers to a full connection's probes that come while the fork reads what waits to be sent: nothing of the source's connection changes."""

from __future__ import annotations

import asyncio
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fidelity.apart import run_apart
from tests.fidelity.harness import Harness, finish, own_mount_namespace, start_programs
from tests.fidelity.livefork import Container

pytestmark = [pytest.mark.root]

_PROGRAM = "tcp_probes"
_SERVER_PORT = 18204
# The kernel asks once in some seconds; that often, and a fork is sure to meet some of the answers.
_EVERY_SECONDS = 0.0002
# Of TCP: ports, two numbers, the header's size, flags, window.
_HEAD = struct.Struct("!HHIIBBH")
_ACKNOWLEDGES = 0x10


def answer_again() -> None:
    """Send the newest answer to a probe again and again, in this network namespace, as the kernel would one day; says so on standard output."""
    with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_TCP) as raw:
        raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_CHECKSUM, 16)
        answer = _answer(raw)
        print("at work", flush=True)
        raw.setblocking(False)
        while True:
            raw.sendto(answer, ("::1", 0))
            time.sleep(_EVERY_SECONDS)
            try:
                while newer := raw.recv(4096):
                    if newer[:4] == answer[:4] and newer[13] == answer[13]:
                        answer = newer
            except BlockingIOError:
                continue


def _answer(raw: socket.socket) -> bytes:
    """The receiver's next word: its window is closed."""
    while True:
        packet = raw.recv(65536)
        source, _, _, _, _, flags, window = _HEAD.unpack_from(packet)
        if source == _SERVER_PORT and flags == _ACKNOWLEDGES and window == 0:
            return packet


@contextmanager
def _answers(container: Container) -> Iterator[None]:
    argv = ["nsenter", "-t", str(container.pid), "-n", "--", sys.executable, "-m", __spec__.name, "answers"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        try:
            assert process.stdout.readline() == "at work\n"
            yield
            assert process.poll() is None, "the answers have ended"
        finally:
            process.kill()


async def _fork(directory: Path) -> None:
    async with Harness(directory) as harness:
        source = await start_programs(harness, [_PROGRAM], directory / "programs")
        with _answers(source):
            branch = (await harness.fork(source)).branches[0]
        results = {side: await finish(workspace, [_PROGRAM], side) for side, workspace in (("branch", branch), ("source", source))}
        assert results == dict.fromkeys(results, {_PROGRAM: "pass"}), results


def test_a_full_connection_is_not_taken_for_sent(tmp_path: Path) -> None:
    run_apart(__name__, "fork", tmp_path / "harness", seconds=120)


if __name__ == "__main__":
    if sys.argv[1] == "answers":
        answer_again()
    else:
        own_mount_namespace()
        asyncio.run(_fork(Path(sys.argv[2])))
