"""Egress: what gets out, what does not, and that both ends see the truth."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import socket
import time
from collections.abc import AsyncIterator, Callable

import pytest

from engine.config import Config
from engine.network import Network
from engine.network.relay import RelayEnd, reset
from tests.leaks import LeakCounter
from tests.network.conftest import OUTSIDE, Inside, Outside, opened_network

TEN_MEGABYTES = 10 * 1024 * 1024

_CLIENT = f"""
import hashlib, socket
s = socket.create_connection(('{OUTSIDE}', 80), 10)
data = bytes(range(256)) * ({TEN_MEGABYTES} // 256)
s.sendall(data)
s.shutdown(socket.SHUT_WR)
digest = hashlib.sha256(); size = 0
while part := s.recv(65536):
    digest.update(part); size += len(part)
print(size, digest.hexdigest())
"""


async def _until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        await asyncio.sleep(0.02)


async def test_ten_megabytes_out_then_half_close_then_ten_back(
    network: Network, outside: Outside, inside: Callable[[str], Inside]
) -> None:
    expected = hashlib.sha256(bytes(range(256)) * (TEN_MEGABYTES // 256)).hexdigest()
    seen: list[str] = []

    async def answer_after_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Nothing is sent before the client's end of data came: only a true half close brings this answer.
        data = await reader.read(-1)
        seen.append(hashlib.sha256(data).hexdigest())
        writer.write(data[::-1][::-1])
        await writer.drain()
        writer.write_eof()
        await reader.read()
        await asyncio.sleep(0.2)

    await network.create("ws-1")
    async with outside.serve(80, answer_after_the_end):
        printed = await inside("ws-1").python(_CLIENT)
    assert seen == [expected]
    assert printed == f"{TEN_MEGABYTES} {expected}"
    await _until(lambda: network._entries["ws-1"].gate.connections == 0)


@pytest.mark.alone
async def test_a_closed_network_refuses_at_once(network: Network, outside: Outside, inside: Callable[[str], Inside]) -> None:
    await network.create("ws-1", "none")
    with outside.listen(80):
        printed = await inside("ws-1").python(
            "import socket, time\n"
            "start = time.monotonic()\n"
            f"try: socket.create_connection(('{OUTSIDE}', 80), 5); print('connected')\n"
            "except ConnectionRefusedError: print('refused', time.monotonic() - start < 0.5)"
        )
    assert printed == "refused True"
    assert network._entries["ws-1"].gate.counters.accepted == 0


@pytest.mark.alone
@pytest.mark.parametrize("level", ["open", "none"])
async def test_udp_other_than_dns_and_ping_are_refused(network: Network, inside: Callable[[str], Inside], level: str) -> None:
    await network.create("ws-1", level)
    printed = await inside("ws-1").python(
        "import socket, time\n"
        "start = time.monotonic()\n"
        "for kind, protocol in ((socket.SOCK_DGRAM, 0), (socket.SOCK_DGRAM, socket.IPPROTO_ICMP)):\n"
        f"    s = socket.socket(socket.AF_INET, kind, protocol); s.connect(('{OUTSIDE}', 443)); s.settimeout(3)\n"
        "    try: s.send(bytes([8]) + bytes(7)); s.recv(100); print('answered')\n"
        "    except (PermissionError, ConnectionRefusedError, OSError) as error: print(type(error).__name__)\n"
        "print(time.monotonic() - start < 1)"
    )
    lines = printed.splitlines()
    assert lines[-1] == "True" and "answered" not in lines and "TimeoutError" not in lines, printed


async def test_ipv6_leads_nowhere(network: Network, inside: Callable[[str], Inside]) -> None:
    await network.create("ws-1")
    printed = await inside("ws-1").python(
        "import socket\n"
        "try: socket.create_connection(('2001:db8::1', 80), 5); print('connected')\n"
        "except OSError as error: print(error.errno)"
    )
    assert int(printed) in (101, 99)


async def test_the_host_and_its_neighbours_of_trust_are_never_reached(
    network: Network, inside: Callable[[str], Inside], outside: Outside
) -> None:
    """Each of these connections is reset, and no socket outside is even made: a listener on every address would see it."""
    await network.create("ws-1")
    reached: list[str] = []

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(str(writer.get_extra_info("sockname")))

    own = socket.socket()
    own.bind(("0.0.0.0", 0))
    own.listen()
    own.setblocking(False)
    port = own.getsockname()[1]
    own_addresses = [str(network) for network in _host_addresses()]
    assert own_addresses
    server = await asyncio.start_server(watch, sock=own)
    outside_listener = outside.listen(port, "0.0.0.0")
    try:
        targets = [
            "169.254.169.254",
            "0.0.0.0",
            "224.0.0.251",
            "255.255.255.255",
            "100.100.100.200",
            "168.63.129.16",
            *own_addresses,
        ]
        for target in targets:
            printed = await inside("ws-1").python(
                "import socket\n"
                "try:\n"
                f"    s = socket.create_connection(('{target}', {port}), 5); s.sendall(b'x'); print(s.recv(10))\n"
                "except OSError as error: print(type(error).__name__)"
            )
            assert printed in (
                "ConnectionResetError",
                "BrokenPipeError",
                "ConnectionRefusedError",
                "PermissionError",
                "OSError",
            ), target
        await asyncio.sleep(0.1)
        assert reached == []
        with pytest.raises(BlockingIOError):
            outside_listener.accept()
    finally:
        outside_listener.close()
        server.close()
        await server.wait_closed()
    assert network._entries["ws-1"].gate.counters.denied >= len(own_addresses)


def _host_addresses() -> list[str]:
    """Addresses of this host's interfaces but the loopback."""
    import psutil

    return [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET and not entry.address.startswith("127.")
    ]


async def test_the_gates_own_port_is_no_way_out(network: Network, inside: Callable[[str], Inside]) -> None:
    await network.create("ws-1")
    ports = network._entries["ws-1"].gate._listeners.ports()
    printed = await inside("ws-1").python(
        "import socket\n"
        f"s = socket.create_connection(('127.0.0.1', {ports.tcp}), 5)\n"
        "try: print(s.recv(10))\n"
        "except ConnectionResetError: print('reset')"
    )
    assert printed == "reset"
    assert network._entries["ws-1"].gate.counters.accepted == 1


async def test_a_refusal_outside_arrives_as_a_reset(network: Network, outside: Outside, inside: Callable[[str], Inside]) -> None:
    await network.create("ws-1")
    printed = await inside("ws-1").python(
        "import socket\n"
        f"s = socket.create_connection(('{OUTSIDE}', 81), 5)\n"
        "try: print(s.recv(10))\n"
        "except ConnectionResetError: print('reset')"
    )
    assert printed == "reset"


async def test_a_reset_outside_is_a_reset_inside(network: Network, outside: Outside, inside: Callable[[str], Inside]) -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()

    await network.create("ws-1")
    async with outside.serve(80, rude):
        printed = await inside("ws-1").python(
            "import socket\n"
            f"s = socket.create_connection(('{OUTSIDE}', 80), 5); s.sendall(b'x')\n"
            "try: print(s.recv(10))\n"
            "except ConnectionResetError: print('reset')"
        )
    assert printed == "reset"


async def test_a_slow_reader_stops_the_sender(network: Network, outside: Outside, inside: Callable[[str], Inside]) -> None:
    """The engine holds at most 256 KiB for a direction; the kernel's socket buffers are the only other store."""
    await network.create("ws-1")
    listener = outside.listen(80)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    loop = asyncio.get_running_loop()
    client = inside("ws-1").socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
    with listener, client:
        await loop.sock_connect(client, (OUTSIDE, 80))
        server, _ = await loop.sock_accept(listener)
        with server:
            sent = 0
            chunk = bytes(65536)
            try:
                while True:
                    async with asyncio.timeout(1.0):
                        await loop.sock_sendall(client, chunk)
                    sent += len(chunk)
            except TimeoutError:
                pass
            held = [end.transport.get_write_buffer_size() for end in _open_relay_ends()]
            assert sum(held) <= 256 * 1024 and max(held) > 0
            assert sent < 16 * 1024 * 1024


def _open_relay_ends() -> list[RelayEnd]:
    """Every open relay's ends in this process. By type, as ``isinstance`` asks an object for its class,
    and a weak proxy whose object has just gone answers that with a ReferenceError."""
    return [found for found in gc.get_objects() if type(found) is RelayEnd and found.transport is not None]


async def test_closing_the_network_resets_what_is_open_and_opening_lets_out_again(
    network: Network, outside: Outside, inside: Callable[[str], Inside]
) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)

    await network.create("ws-1")
    loop = asyncio.get_running_loop()
    async with outside.serve(80, echo):
        client = inside("ws-1").socket()
        with client:
            await loop.sock_connect(client, (OUTSIDE, 80))
            await loop.sock_sendall(client, b"ping")
            assert await loop.sock_recv(client, 10) == b"ping"
            await network.set_policy("ws-1", "none")
            with pytest.raises(ConnectionResetError):
                async with asyncio.timeout(30):
                    await loop.sock_recv(client, 10)
        second = inside("ws-1").socket()
        with second, pytest.raises(ConnectionRefusedError):
            await loop.sock_connect(second, (OUTSIDE, 80))
        await network.set_policy("ws-1", "open")
        third = inside("ws-1").socket()
        with third:
            await loop.sock_connect(third, (OUTSIDE, 80))
            await loop.sock_sendall(third, b"pong")
            assert await loop.sock_recv(third, 10) == b"pong"


@pytest.fixture
async def small(leaks: LeakCounter, config: Config, outside: Outside) -> AsyncIterator[Network]:
    """A network that allows eight connections a workspace and ten in all."""
    async with opened_network(config, outside, connections_per_workspace=8, connections_total=10) as made:
        yield made


async def test_connections_beyond_the_limit_are_refused(
    small: Network, outside: Outside, inside: Callable[[str], Inside]
) -> None:
    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"h")
        await reader.read()

    await small.create("ws-1")
    await small.create("ws-2")
    loop = asyncio.get_running_loop()

    async def attempt(workspace: str) -> socket.socket | None:
        client = inside(workspace).socket()
        await loop.sock_connect(client, (OUTSIDE, 80))
        try:
            if await loop.sock_recv(client, 1) == b"h":
                return client
        except ConnectionResetError:
            pass
        client.close()
        return None

    async with outside.serve(80, hold):
        clients = [await attempt("ws-1") for _ in range(12)]
        assert sum(client is not None for client in clients) == 8
        others = [await attempt("ws-2") for _ in range(4)]
        assert sum(client is not None for client in others) == 2
        for client in clients:
            if client is not None:
                client.close()
        await _until(lambda: small._entries["ws-1"].gate.connections == 0)
        again = await attempt("ws-1")
        assert again is not None
        again.close()
        for client in others:
            if client is not None:
                client.close()


async def test_many_short_connections_leave_nothing(network: Network, outside: Outside, inside: Callable[[str], Inside]) -> None:
    """Closed properly, reset, or dropped without a word, before and after data came."""

    async def brief(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"brief" * 1000)
        await reader.read(1)

    await network.create("ws-1")
    gate = network._entries["ws-1"].gate
    loop = asyncio.get_running_loop()
    before = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())

    async def one(number: int) -> None:
        client = inside("ws-1").socket()
        await loop.sock_connect(client, (OUTSIDE, 80))
        if number % 3 == 0:
            await loop.sock_recv(client, 100)
        if number % 2 == 0:
            reset(client)
        client.close()

    async with outside.serve(80, brief):
        for start in range(0, 600, 50):
            await asyncio.gather(*(one(number) for number in range(start, start + 50)))
        await _until(lambda: gate.connections == 0)
    assert gate.counters.accepted == 600
    await _until(lambda: len(os.listdir("/proc/self/fd")) <= before[0] and len(asyncio.all_tasks()) <= before[1])


@pytest.mark.alone
async def test_a_storm_of_connections_is_held_back_by_the_kernel(
    network: Network, outside: Outside, inside: Callable[[str], Inside]
) -> None:
    """The engine must stay free for others: it accepts 1000 at once, then 500 in a second."""
    await network.create("ws-1")
    started = time.monotonic()
    printed = await inside("ws-1").python(
        "import socket, time\n"
        "end = time.monotonic() + 3; tried = 0\n"
        "while time.monotonic() < end or tried <= 6000:\n"
        f"    s = socket.socket(); s.setblocking(False); s.connect_ex(('{OUTSIDE}', 81)); s.close(); tried += 1\n"
        "print(tried)"
    )
    seconds = time.monotonic() - started
    accepted = network._entries["ws-1"].gate.counters.accepted
    assert int(printed) > 6000
    assert accepted < 1000 + 500 * seconds + 100


@pytest.mark.alone
async def test_a_workspace_is_removed_while_a_connection_is_being_made(
    network: Network, outside: Outside, inside: Callable[[str], Inside]
) -> None:
    """The outside does not answer: its queue of connections is full."""
    await network.create("ws-1")
    loop = asyncio.get_running_loop()
    before = len(os.listdir("/proc/self/fd"))
    with outside.listen(80) as listener:
        listener.listen(0)
        fillers = [outside.socket() for _ in range(3)]
        for filler in fillers:
            filler.connect_ex((OUTSIDE, 80))
        client = inside("ws-1").socket()
        await loop.sock_connect(client, (OUTSIDE, 80))
        await _until(lambda: network._entries["ws-1"].gate.connections == 1)
        started = time.monotonic()
        await network.destroy("ws-1")
        assert time.monotonic() - started < 1
        with pytest.raises(ConnectionResetError):
            await loop.sock_recv(client, 1)
        for one in (client, *fillers):
            one.close()
    await _until(lambda: len(os.listdir("/proc/self/fd")) < before)


async def test_a_removed_workspace_leaves_no_connection(
    network: Network, outside: Outside, inside: Callable[[str], Inside]
) -> None:
    held, closed = asyncio.Event(), asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.set()
        try:
            await reader.read()
        finally:
            closed.set()

    await network.create("ws-1")
    before = len(os.listdir("/proc/self/fd"))
    client = inside("ws-1").socket()
    async with outside.serve(80, hold):
        await asyncio.get_running_loop().sock_connect(client, (OUTSIDE, 80))
        async with asyncio.timeout(30):
            await held.wait()
        assert network._entries["ws-1"].gate.connections == 1
        await network.destroy("ws-1")
        async with asyncio.timeout(30):
            await closed.wait()
    client.close()
    await _until(lambda: len(os.listdir("/proc/self/fd")) < before)
