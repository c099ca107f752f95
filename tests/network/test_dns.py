"""Names: a workspace's queries, whatever server they name, are answered by the host's resolvers or refused."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from engine.network import Network
from engine.network.dns import Malformed, error_answer, parse_question, read_resolv_conf
from tests.network.conftest import Inside, Outside

PORT = 5353


def question(name: str, identity: int = 0x1234) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!HHHHHH", identity, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", 1, 1)


def answer_to(query: bytes, address: str = "203.0.113.9") -> bytes:
    _, end = parse_question(query)
    record = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 60, 4) + socket.inet_aton(address)
    return query[:2] + struct.pack("!HHHHH", 0x8180, 1, 1, 0, 0) + query[12:end] + record


class FakeResolver(asyncio.DatagramProtocol):
    """By the name asked for: silent for `never.*`, first an answer to another question for `forged.*`, else an address."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.identities: list[bytes] = []

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        name, _ = parse_question(data)
        self.asked.append(name)
        self.identities.append(data[:2])
        if name.startswith("never."):
            return
        if name.startswith("forged."):
            self.transport.sendto(answer_to(question("other.test", int.from_bytes(data[:2], "big")), "203.0.113.66"), address)
            self.transport.sendto(answer_to(bytes([data[0] ^ 1]) + data[1:], "203.0.113.66"), address)
        self.transport.sendto(answer_to(data), address)

    async def stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            (length,) = struct.unpack("!H", await reader.readexactly(2))
            query = await reader.readexactly(length)
            self.asked.append("tcp " + parse_question(query)[0])
            answer = answer_to(query)
            writer.write(struct.pack("!H", len(answer)) + answer)
            await reader.read()
        writer.close()


@pytest.fixture
async def resolver(outside: Outside) -> AsyncIterator[FakeResolver]:
    fake = FakeResolver()
    udp = outside.socket(socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", PORT))
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: fake, sock=udp)
    server = await asyncio.start_server(fake.stream, sock=outside.listen(PORT, "127.0.0.1"))
    yield fake
    transport.close()
    server.close()
    await asyncio.sleep(0.01)


async def ask(inside: Inside, query: bytes, server: str = "10.77.0.1", seconds: float = 8.0) -> bytes:
    loop = asyncio.get_running_loop()
    with inside.socket(kind=socket.SOCK_DGRAM) as client:
        client.connect((server, 53))
        await loop.sock_sendall(client, query)
        async with asyncio.timeout(seconds):
            return await loop.sock_recv(client, 65535)


def code(answer: bytes) -> int:
    return answer[3] & 0x0F


@pytest.mark.parametrize("server", ["10.77.0.1", "8.8.8.8", "198.18.0.1"])
async def test_whichever_server_is_asked_the_hosts_resolver_answers(
    network: Network, resolver: FakeResolver, inside: Callable[[str], Inside], server: str
) -> None:
    await network.create("ws-1")
    answer = await ask(inside("ws-1"), question("www.example.test"), server)
    assert answer == answer_to(question("www.example.test"))
    assert resolver.asked == ["www.example.test"]


async def test_the_c_library_resolves(
    network: Network, resolver: FakeResolver, inside: Callable[[str], Inside], tmp_path: Path
) -> None:
    conf = tmp_path / "resolv.conf"
    conf.write_text("nameserver 10.77.0.1\n")
    await network.create("ws-1")
    status, output = await inside("ws-1").run(
        "unshare", "--mount", "sh", "-c", f"mount --bind {conf} /etc/resolv.conf && getent ahostsv4 www.example.test"
    )
    assert status == 0 and output.startswith("203.0.113.9"), output


async def test_a_closed_network_answers_refused_and_asks_nobody(
    network: Network, resolver: FakeResolver, inside: Callable[[str], Inside]
) -> None:
    """Names could carry data out: nothing may arrive at a resolver."""
    await network.create("ws-1", "none")
    answer = await ask(inside("ws-1"), question("secret-data.example.test"), seconds=1)
    assert answer[:2] == b"\x12\x34" and code(answer) == 5
    loop = asyncio.get_running_loop()
    with inside("ws-1").socket() as client:
        await loop.sock_connect(client, ("10.77.0.1", 53))
        query = question("more-secret.example.test")
        await loop.sock_sendall(client, struct.pack("!H", len(query)) + query)
        refused = await loop.sock_recv(client, 1000)
        assert code(refused[2:]) == 5
    assert resolver.asked == []


async def test_the_id_outside_is_not_the_one_inside(
    network: Network, resolver: FakeResolver, inside: Callable[[str], Inside]
) -> None:
    await network.create("ws-1")
    for _ in range(8):
        assert (await ask(inside("ws-1"), question("a.test", 7)))[:2] == b"\0\7"
    assert len(set(resolver.identities)) > 1


async def test_answers_to_other_questions_are_passed_over(
    network: Network, resolver: FakeResolver, inside: Callable[[str], Inside]
) -> None:
    await network.create("ws-1")
    answer = await ask(inside("ws-1"), question("forged.test"))
    assert answer == answer_to(question("forged.test"))


async def test_a_silent_resolver_becomes_a_server_failure(
    network: Network, resolver: FakeResolver, inside: Callable[[str], Inside]
) -> None:
    await network.create("ws-1")
    answer = await ask(inside("ws-1"), question("never.test"))
    assert code(answer) == 2
    assert resolver.asked == ["never.test"]
    # Others are answered while one waits.
    slow = asyncio.create_task(ask(inside("ws-1"), question("never.test")))
    await asyncio.sleep(0.1)
    assert code(await ask(inside("ws-1"), question("quick.test"), seconds=2)) == 0
    assert not slow.done()
    await slow


async def test_the_next_resolver_is_asked_when_one_is_silent_or_dead(
    network: Network, resolver: FakeResolver, outside: Outside, inside: Callable[[str], Inside]
) -> None:
    await network.create("ws-1")
    network._entries["ws-1"].gate._resolver._resolvers._fixed = [("127.0.0.1", 5355), ("127.0.0.1", 5354), ("127.0.0.1", PORT)]
    with outside.socket(socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 5354))
        assert code(await ask(inside("ws-1"), question("www.example.test"))) == 0


async def test_no_resolver_at_all_is_a_server_failure(network: Network, inside: Callable[[str], Inside]) -> None:
    await network.create("ws-1")
    assert code(await ask(inside("ws-1"), question("www.example.test"))) == 2


async def test_queries_over_tcp(network: Network, resolver: FakeResolver, inside: Callable[[str], Inside]) -> None:
    await network.create("ws-1")
    loop = asyncio.get_running_loop()
    with inside("ws-1").socket() as client:
        await loop.sock_connect(client, ("8.8.4.4", 53))
        for name in ("one.test", "two.test"):
            query = question(name)
            await loop.sock_sendall(client, struct.pack("!H", len(query)) + query)
            async with asyncio.timeout(30):
                answer = await loop.sock_recv(client, 65535)
            assert answer[2:] == answer_to(query)
    assert resolver.asked == ["tcp one.test", "tcp two.test"]


async def test_rubbish_is_answered_or_dropped_and_serving_goes_on(
    network: Network, resolver: FakeResolver, inside: Callable[[str], Inside]
) -> None:
    await network.create("ws-1")
    loop = asyncio.get_running_loop()
    rubbish = [
        b"",
        b"\0",
        b"x" * 11,
        bytes(12),
        b"\xff" * 512,
        question("a.test")[:-3],
        bytes(9000),
        question("a.test")[:12] + b"\x3f" * 300,
    ]
    with inside("ws-1").socket(kind=socket.SOCK_DGRAM) as client:
        client.connect(("10.77.0.1", 53))
        for packet in rubbish:
            await loop.sock_sendall(client, packet)
    for packet in rubbish:
        with inside("ws-1").socket() as client:
            await loop.sock_connect(client, ("10.77.0.1", 53))
            await loop.sock_sendall(client, struct.pack("!H", len(packet)) + packet)
            client.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                async with asyncio.timeout(30):
                    while await loop.sock_recv(client, 1000):
                        pass
    assert code(await ask(inside("ws-1"), question("fine.test"))) == 0
    assert resolver.asked == ["fine.test"]


async def test_a_flood_is_bounded(network: Network, resolver: FakeResolver, inside: Callable[[str], Inside]) -> None:
    await network.create("ws-1")
    gate = network._entries["ws-1"].gate
    with inside("ws-1").socket(kind=socket.SOCK_DGRAM) as client:
        client.connect(("10.77.0.1", 53))
        for number in range(600):
            with contextlib.suppress(BlockingIOError):
                client.send(question("never.test", number))
        async with asyncio.timeout(2):  # less than the queries' own time
            while len(gate._resolver._queries) != 128:
                await asyncio.sleep(0.02)
            # The others are answered at once.
            assert code(await asyncio.get_running_loop().sock_recv(client, 1000)) == 2
    await network.destroy("ws-1")
    assert not gate._resolver._queries


async def test_idle_tcp_connections_are_few(network: Network, resolver: FakeResolver, inside: Callable[[str], Inside]) -> None:
    await network.create("ws-1")
    loop = asyncio.get_running_loop()
    clients = [inside("ws-1").socket() for _ in range(30)]
    try:
        for client in clients:
            await loop.sock_connect(client, ("10.77.0.1", 53))
        await asyncio.sleep(0.2)
        assert len(network._entries["ws-1"].gate._resolver._clients) <= 16
    finally:
        for client in clients:
            client.close()


def test_questions_are_read() -> None:
    assert parse_question(question("www.example.test")) == ("www.example.test", 12 + 18 + 4)
    for bad in (b"", b"x" * 12, question("a.test")[:14], question("a.test")[:12] + b"\xc0\x0c\0\1\0\1", b"\x80" * 40):
        with pytest.raises(Malformed):
            parse_question(bad)
        assert len(error_answer(bad, 1)) == 12


@pytest.fixture
def conf(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "conf"


def test_resolv_conf_is_read(conf: Path) -> None:
    assert read_resolv_conf(conf) == []
    conf.write_text(
        "# x\nsearch a\nnameserver 192.0.2.1\nnameserver  fe80::1%eth0\nnameserver\nnameserver bad\nnameserver ::1\nnameserver 9.9.9.9\n"
    )
    assert read_resolv_conf(conf) == [("192.0.2.1", 53), ("fe80::1%eth0", 53), ("::1", 53)]
