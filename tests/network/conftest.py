"""Fixtures: a `Network` with its own run directory, an "outside" namespace for its egress, programs run inside a workspace.

Nothing here leaves the machine: the outside is a namespace with two addresses on its own loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from engine import syscalls
from engine.config import Config
from engine.network import Network, NetworkSettings
from engine.network.namespace import _THREAD_NAMESPACE, _bind, _returning, _unbind
from tests.leaks import LeakCounter

# Of the range set aside for benchmarks: nobody's address.
OUTSIDE = "198.18.0.1"
_EXEMPT = ip_network("198.18.0.0/15")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    base = Config.from_environment()
    (tmp_path / "run").mkdir()
    return dataclasses.replace(base, data=tmp_path / "data", run=tmp_path / "run")


class Outside:
    """The world beyond the gate: a namespace with `OUTSIDE` on its loopback."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def socket(self, kind: int = socket.SOCK_STREAM) -> socket.socket:
        made = syscalls.socket_in(self.fd, socket.AF_INET, kind)
        made.setblocking(False)
        return made

    def listen(self, port: int, address: str = OUTSIDE) -> socket.socket:
        made = self.socket()
        made.bind((address, port))
        made.listen(64)
        return made

    @contextlib.asynccontextmanager
    async def serve(
        self, port: int, handler: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
    ) -> AsyncIterator[None]:
        """Run a TCP server outside; its handlers are ended with it."""
        tasks: set[asyncio.Task[None]] = set()

        async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                await handler(reader, writer)
            except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                pass
            finally:
                tasks.discard(task)
                writer.transport.abort()

        server = await asyncio.start_server(guarded, sock=self.listen(port))
        try:
            yield
        finally:
            server.close()
            for task in list(tasks):
                task.cancel()
            await asyncio.sleep(0.01)


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    path = tmp_path / "outside"

    def make() -> None:
        with _returning():
            syscalls.unshare(syscalls.CLONE_NEWNET)
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            subprocess.run(["ip", "address", "add", f"{OUTSIDE}/32", "dev", "lo"], check=True)
            _bind(_THREAD_NAMESPACE, path)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    made = Outside(path)
    yield made
    os.close(made.fd)
    _unbind(path)


@pytest.fixture
async def network(leaks: LeakCounter, config: Config, outside: Outside) -> AsyncIterator[Network]:
    """Egress leads to `outside`, whose address is exempt from the rule on the host's own addresses."""
    async with opened_network(config, outside, resolvers=(("127.0.0.1", 5353),), dns_timeout=3.0) as made:
        yield made


@contextlib.asynccontextmanager
async def opened_network(config: Config, outside: Outside, **settings: Any) -> AsyncIterator[Network]:
    """A network like that of the fixture, with further settings; its workspaces are destroyed with it."""
    made = Network(config, NetworkSettings(egress_namespace=outside.path, exempt=(_EXEMPT,), spares=0, **settings))
    await made.open()
    yield made
    for workspace in list(made._entries):
        await made.destroy(workspace)
    await made.close()


class Inside:
    """Programs run inside a workspace's namespace."""

    def __init__(self, run: Path, workspace: str) -> None:
        self.path = run / "netns" / workspace

    def command(self, *argv: str) -> list[str]:
        return ["nsenter", f"--net={self.path}", "--", *argv]

    async def run(self, *argv: str, timeout: float = 20.0) -> tuple[int, str]:
        """Exit status and both outputs together."""
        process = await asyncio.create_subprocess_exec(
            *self.command(*argv), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        try:
            async with asyncio.timeout(timeout):
                output, _ = await process.communicate()
        except BaseException:
            process.kill()
            await process.wait()
            raise
        return process.returncode or 0, output.decode(errors="replace")

    async def python(self, code: str, timeout: float = 20.0) -> str:
        """What a Python program prints; fails when it fails."""
        status, output = await self.run(sys.executable, "-I", "-c", code, timeout=timeout)
        assert status == 0, output
        return output.strip()

    def socket(self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM) -> socket.socket:
        """A socket of the namespace, for a server or client driven by the test itself."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            made = syscalls.socket_in(fd, family, kind)
        finally:
            os.close(fd)
        made.setblocking(False)
        return made


@pytest.fixture
def inside(config: Config) -> Callable[[str], Inside]:
    return lambda workspace: Inside(config.run, workspace)
