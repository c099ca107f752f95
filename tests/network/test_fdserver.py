"""The descriptor socket: sockets made inside a workspace, and what hostile or clumsy peers get."""

from __future__ import annotations

import array
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from engine.config import Config
from engine.errors import BadRequest, NotFound, Unavailable
from engine.network import Network, PortRequest
from engine.network.errors import ConnectError
from engine.network.fdclient import FdClient
from tests.network.conftest import Inside


@pytest.fixture
async def client(network: Network, config: Config) -> AsyncIterator[FdClient]:
    made = FdClient(config.fd_socket)
    yield made
    await made.close()


async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello from inside")
    writer.close()


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET, "10.77.0.2")]
)
async def test_a_server_on_any_address_inside_is_reached(
    network: Network, client: FdClient, inside: Callable[[str], Inside], family: int, address: str
) -> None:
    await network.create("ws-1", "none")
    await network.create("ws-2", "none")
    listener = inside("ws-1").socket(family)
    listener.bind((address, 8080))
    server = await asyncio.start_server(_greet, sock=listener)
    try:
        connection = await client.connect("ws-1", 8080)
        reader, writer = await asyncio.open_connection(sock=connection)
        assert await reader.read() == b"hello from inside"
        writer.close()
        with pytest.raises(ConnectError) as caught:
            await client.connect("ws-2", 8080)
        assert caught.value.code == "refused" and "port 8080 of ws-2" in caught.value.message
    finally:
        server.close()
        await server.wait_closed()


async def _fill(inside: Inside, port: int) -> tuple[socket.socket, list[socket.socket]]:
    """A listener whose queue is full: further connects are left waiting by the kernel."""
    listener = inside.socket()
    listener.bind(("127.0.0.1", port))
    listener.listen(0)
    callers = []
    for _ in range(3):
        caller = inside.socket()
        caller.connect_ex(("127.0.0.1", port))
        callers.append(caller)
    await asyncio.sleep(0.1)
    return listener, callers


@pytest.mark.alone
async def test_a_slow_connect_ends_in_time_and_holds_up_nobody(
    network: Network, client: FdClient, inside: Callable[[str], Inside]
) -> None:
    await network.create("ws-1")
    listener, callers = await _fill(inside("ws-1"), 9000)
    quick = inside("ws-1").socket()
    quick.bind(("127.0.0.1", 8080))
    server = await asyncio.start_server(_greet, sock=quick)
    try:
        started = time.monotonic()
        slow = [asyncio.create_task(client.connect("ws-1", 9000)) for _ in range(20)]
        await asyncio.sleep(0.1)
        (await client.connect("ws-1", 8080)).close()
        assert time.monotonic() - started < 1
        results = await asyncio.gather(*slow, return_exceptions=True)
        assert all(isinstance(result, ConnectError) and result.code == "timeout" for result in results), results
        assert 2.9 < time.monotonic() - started < 5
    finally:
        server.close()
        for one in (listener, *callers):
            one.close()


async def test_two_hundred_connects_at_once(network: Network, client: FdClient, inside: Callable[[str], Inside]) -> None:
    await network.create("ws-1")
    listener = inside("ws-1").socket()
    listener.bind(("127.0.0.1", 8080))
    server = await asyncio.start_server(_greet, sock=listener, backlog=256)
    before = len(os.listdir("/proc/self/fd"))
    started = time.monotonic()

    async def once() -> bytes:
        reader, writer = await asyncio.open_connection(sock=await client.connect("ws-1", 8080))
        data = await reader.read()
        writer.close()
        await writer.wait_closed()
        return data

    assert await asyncio.gather(*(once() for _ in range(200))) == [b"hello from inside"] * 200
    assert time.monotonic() - started < 5
    server.close()
    await asyncio.sleep(0.05)
    # The listener is closed and the client's one connection to the engine (both ends are ours) was added.
    assert len(os.listdir("/proc/self/fd")) <= before + 2


async def test_cancelled_requests_leak_nothing(network: Network, client: FdClient, inside: Callable[[str], Inside]) -> None:
    await network.create("ws-1")
    listener = inside("ws-1").socket()
    listener.bind(("127.0.0.1", 8080))
    server = await asyncio.start_server(_greet, sock=listener, backlog=256)
    (await client.connect("ws-1", 8080)).close()
    before = len(os.listdir("/proc/self/fd"))
    for delay in [0, 0.0005, 0.001, 0.002, 0.004] * 10:
        task = asyncio.create_task(client.connect("ws-1", 8080))
        await asyncio.sleep(delay)
        if not task.cancel():
            task.result().close()
        else:
            await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(30):
        while len(os.listdir("/proc/self/fd")) > before:
            await asyncio.sleep(0.02)
    server.close()
    await asyncio.sleep(0.02)


async def test_the_listener_of_a_published_port_is_handed_over(network: Network, client: FdClient) -> None:
    handle = await network.create("ws-1", ports=[PortRequest(3000)])
    loop = asyncio.get_running_loop()
    with await client.listener("ws-1", 3000) as listener:
        assert listener.getsockname()[1] == handle.ports[3000]
        caller = await loop.run_in_executor(None, socket.create_connection, ("127.0.0.1", handle.ports[3000]), 2)
        accepted, _ = await loop.sock_accept(listener)
        accepted.close()
        caller.close()
        await network.destroy("ws-1")
        with pytest.raises(OSError):
            await loop.sock_accept(listener)


async def test_errors_keep_their_kind(network: Network, client: FdClient) -> None:
    await network.create("ws-1")
    with pytest.raises(NotFound, match="no workspace ws-9"):
        await client.connect("ws-9", 80)
    with pytest.raises(NotFound, match="does not publish port 80"):
        await client.listener("ws-1", 80)
    with pytest.raises(BadRequest, match="from 1 to 65535"):
        await client.connect("ws-1", 0)


async def test_the_client_says_that_the_engine_is_down_and_comes_back(network: Network, config: Config) -> None:
    lost: list[bool] = []
    client = FdClient(config.fd_socket, on_lost=lambda: lost.append(True))
    handle = await network.create("ws-1", ports=[PortRequest(3000)])
    (await client.listener("ws-1", 3000)).close()
    await network.close()
    async with asyncio.timeout(30):
        while not lost:
            await asyncio.sleep(0.01)
    assert lost == [True]
    with pytest.raises(Unavailable, match="no engine at"):
        await client.listener("ws-1", 3000)
    await network.open()
    await network.adopt("ws-1", "open", handle.ports)
    (await client.listener("ws-1", 3000)).close()
    await client.close()


class Raw:
    """A peer that sends what it likes."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(str(path))
        self.socket.setblocking(False)

    async def ask(self, packet: bytes) -> dict:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self.socket, packet)
        async with asyncio.timeout(30):
            return json.loads(await loop.sock_recv(self.socket, 65536))


@pytest.mark.parametrize(
    "packet",
    [
        b"x", b"\xff\xfe", b"null", b"[]", b"7", b'"connect"', b"{}", b'{"op":"rm"}', b'{"op":7}', b"[" * 4000,
        b'{"op":"connect"}', b'{"op":"connect","workspace":7,"port":80}', b'{"op":"connect","workspace":"ws-1","port":"80"}',
        b'{"op":"connect","workspace":"ws-1","port":true}', b'{"op":"connect","workspace":"ws-1","port":70000}',
        b'{"op":"connect","workspace":"ws-1","port":1e400}', b'{"op":"connect","workspace":"' + b"w" * 3000 + b'","port":80}',
        b'{"op":"connect"' + b" " * 100_000 + b"}",
    ],
)  # fmt: skip
async def test_hostile_requests_are_answered_and_serving_goes_on(network: Network, config: Config, packet: bytes) -> None:
    await network.create("ws-1")
    peer = Raw(config.fd_socket)
    with peer.socket:
        answer = await peer.ask(packet)
        assert answer["ok"] is False and answer["code"] == "bad_request" and len(json.dumps(answer)) < 2000
        assert (await peer.ask(b'{"op":"connect","workspace":"ws-1","port":9}'))["code"] == "refused"


async def test_the_id_is_repeated_only_when_it_is_a_number(network: Network, config: Config) -> None:
    peer = Raw(config.fd_socket)
    with peer.socket:
        assert (await peer.ask(b'{"id":41,"op":"x"}'))["id"] == 41
        for bad in (b'"a"', b"-1", b"true", b"1.5", b"[1]", b"1" + b"0" * 400):
            assert "id" not in await peer.ask(b'{"id":' + bad + b',"op":"x"}')


async def test_descriptors_sent_by_a_peer_are_not_kept(network: Network, config: Config) -> None:
    peer = Raw(config.fd_socket)
    before = len(os.listdir("/proc/self/fd"))
    with peer.socket:
        for _ in range(20):
            reading, writing = os.pipe()
            message = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [reading, writing]))]
            peer.socket.sendmsg([b'{"op":"x"}'], message)
            os.close(reading)
            os.close(writing)
            async with asyncio.timeout(30):
                await asyncio.get_running_loop().sock_recv(peer.socket, 65536)
        # Both ends of the peer's connection are in this process.
        assert len(os.listdir("/proc/self/fd")) <= before + 1


async def test_a_peer_that_never_reads_is_cut_off(network: Network, config: Config) -> None:
    peer = Raw(config.fd_socket)
    with peer.socket:
        sent = 0
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            try:
                peer.socket.send(b'{"op":"x"}')
                sent += 1
            except BlockingIOError:
                await asyncio.sleep(0.05)
            except (BrokenPipeError, ConnectionResetError):
                break
            else:
                await asyncio.sleep(0)
        else:
            pytest.fail(f"still connected after {sent} requests")
    await asyncio.sleep(0.05)
    other = Raw(config.fd_socket)
    with other.socket:
        assert (await other.ask(b"{}"))["ok"] is False


async def test_other_users_are_turned_away(network: Network, config: Config) -> None:
    """By permissions, and by credentials when the permissions were opened."""
    code = (
        "import os, socket, sys\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(5)\n"
        "try: s.connect(sys.argv[1])\n"
        "except PermissionError: print('denied'); sys.exit()\n"
        "try: s.send(b'{}'); print(s.recv(100))\n"
        "except OSError: print('closed')\n"
    )

    async def attempt() -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-c", code, str(config.fd_socket), stdout=subprocess.PIPE
        )
        output, _ = await process.communicate()
        return output.decode().strip()

    parents = [path for path in config.fd_socket.parents if path.is_relative_to("/tmp") and path != Path("/tmp")]
    modes = {path: path.stat().st_mode for path in parents}
    try:
        for path in parents:
            path.chmod(0o755)
        assert oct(config.fd_socket.stat().st_mode & 0o777) == "0o660"
        assert await attempt() == "denied"
        config.fd_socket.chmod(0o666)
        assert await attempt() in ("b''", "closed")
    finally:
        for path, mode in modes.items():
            path.chmod(mode & 0o7777)
