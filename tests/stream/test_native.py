"""What is the native relay's own: the library and its certificate, the limits of connections, and what it hands over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from engine.config import Config
from portal.certificates import ensure
from portal.places import Places
from portal.stream.frames import close_frame
from portal.stream.front import NativeRelay
from portal.stream.native import GONE, LIBRARY, READY, Native, NativeError
from portal.stream.server import Settings, StreamServer
from tests.stream.test_frames import frame
from tests.stream.test_upgrade import echo
from tests.stream.world import PATIENCE, World, config_for

_LIBRARY = Config.from_environment().libexec / LIBRARY


@pytest_asyncio.fixture
async def native() -> AsyncIterator[Native]:
    """Room for two links."""
    made = Native(_LIBRARY, 2)
    yield made
    made.close()


async def _event(native: Native) -> tuple[int, int]:
    async with asyncio.timeout(PATIENCE):
        while (event := native.next()) is None:
            await asyncio.sleep(0.005)
    return event[0], event[1]


def _pair() -> tuple[socket.socket, int]:
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    return ours, theirs.detach()


async def _linked(native: Native) -> tuple[int, socket.socket, socket.socket]:
    """A plain link that is relayed: its number, and both peers."""
    client, descriptor = _pair()
    link = native.accept(descriptor, False, 1.0)
    assert await _event(native) == (link, READY)
    inner, descriptor = _pair()
    assert native.attach(link, descriptor)
    upstream, descriptor = _pair()
    assert native.switch(link, descriptor, b"", b"", b"")
    inner.close()
    return link, client, upstream


async def _received(sock: socket.socket, size: int) -> bytes:
    data = b""
    async with asyncio.timeout(PATIENCE):
        while len(data) < size and (part := await asyncio.get_running_loop().sock_recv(sock, size - len(data))):
            data += part
    return data


async def test_the_worlds_named_so_are_carried_by_it(world: World) -> None:
    await world.raw_websocket(echo)
    await world.websocket()
    (entry,) = world.server.registry._relays
    assert isinstance(entry.relay, NativeRelay)


@pytest.mark.parametrize("broken", ["missing", "something else"])
async def test_without_the_library_asyncio_relays(world: World, tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture) -> None:
    library = tmp_path / LIBRARY
    if broken != "missing":
        library.write_text("no library")
    (tmp_path / "run").mkdir()
    server = StreamServer(Settings(tmp_path / "run", world.pace, library=library), world.engine, lambda lost: world.descriptors)
    await server.start()
    sock = socket.create_server(("127.0.0.1", 0))
    await server.listen([sock], world.tls)
    try:
        assert f"{library} cannot be used" in caplog.text and "make -C native" in caplog.text
        reader, writer = await asyncio.open_connection("127.0.0.1", sock.getsockname()[1], ssl=world.trust, server_hostname="tclone.localhost")
        writer.write(b"GET / HTTP/1.1\r\nHost: elsewhere\r\n\r\n")
        assert (await asyncio.wait_for(reader.readline(), PATIENCE)).startswith(b"HTTP/1.1 421")
        writer.close()
    finally:
        await server.stop()


async def test_a_certificate_that_cannot_be_used_leaves_the_one_before(native: Native, tmp_path: Path, tls_directory: Path) -> None:
    native.certificate(tls_directory / "leaf.pem", tls_directory / "leaf.key")
    other = Places(config_for(tmp_path))
    ensure(other)
    (tmp_path / "empty").write_text("")
    for chain, key in (
        (tmp_path / "absent", tls_directory / "leaf.key"),
        (tmp_path / "empty", tls_directory / "leaf.key"),
        (tls_directory / "leaf.pem", other.leaf_key),
    ):
        with pytest.raises(NativeError):
            native.certificate(chain, key)
    client, descriptor = _pair()
    link = native.accept(descriptor, True, PATIENCE)
    trust = ssl.create_default_context(cafile=str(tls_directory / "ca.pem"))
    _, writer = await asyncio.open_connection(sock=client, ssl=trust, server_hostname="tclone.localhost")
    assert await _event(native) == (link, READY)
    writer.transport.abort()


async def test_a_renewed_certificate_is_served_and_open_connections_go_on(world: World, tmp_path: Path) -> None:
    await world.raw_websocket(echo)
    kept = await world.websocket()
    other = Places(config_for(tmp_path))
    ensure(other)
    world.tls.chain, world.tls.key = other.leaf_certificate, other.leaf_key
    world.tls.on_change()
    with pytest.raises(ssl.SSLCertVerificationError):
        await world.connect()
    world.trust = ssl.create_default_context(cafile=str(other.ca_certificate))
    await world.connect()
    await kept.send(frame(4))
    assert await kept.frame() == (2, b"xxxx")


async def test_more_links_than_there_is_room_for_are_refused(native: Native) -> None:
    clients = [_pair() for _ in range(3)]
    numbers = [native.accept(descriptor, False, 1.0) for _, descriptor in clients]
    assert numbers[0] and numbers[1] and not numbers[2]
    assert clients[2][0].recv(1) == b""
    assert native.abort(numbers[0])
    assert await _event(native) == (numbers[0], READY)
    while await _event(native) != (numbers[0], GONE):
        pass
    client, descriptor = _pair()
    again = native.accept(descriptor, False, 1.0)
    # The place is taken anew, the number is not.
    assert again and again not in numbers
    assert not native.abort(numbers[0]) and native.counts(numbers[0]) is None
    for one in (client, *(client for client, _ in clients)):
        one.close()


async def test_a_handshake_that_does_not_come_ends_in_time_and_one_of_garbage_at_once(native: Native, tls_directory: Path) -> None:
    native.certificate(tls_directory / "leaf.pem", tls_directory / "leaf.key")
    silent, descriptor = _pair()
    link = native.accept(descriptor, True, 0.2)
    babbling, descriptor = _pair()
    other = native.accept(descriptor, True, PATIENCE)
    babbling.send(b"GET / HTTP/1.0\r\n\r\n")
    assert [await _event(native), await _event(native)] == [(other, GONE), (link, GONE)]
    assert silent.recv(1) == b""
    silent.close()
    babbling.close()


async def test_calls_for_links_that_are_not_so_far_are_refused_and_close_what_they_were_given(native: Native) -> None:
    client, descriptor = _pair()
    link = native.accept(descriptor, False, 1.0)
    upstream, descriptor = _pair()
    assert not native.switch(link, descriptor, b"", b"", b"") and upstream.recv(1) == b""
    inner, descriptor = _pair()
    assert native.attach(link, descriptor)
    again, descriptor = _pair()
    assert not native.attach(link, descriptor) and again.recv(1) == b""
    for one in (client, upstream, inner, again):
        one.close()


async def test_what_was_read_before_the_switch_comes_first(native: Native) -> None:
    client, descriptor = _pair()
    link = native.accept(descriptor, False, 1.0)
    assert await _event(native) == (link, READY)
    inner, descriptor = _pair()
    assert native.attach(link, descriptor)
    client.send(b"request")
    assert await _received(inner, 7) == b"request"
    assert native.hold(link)
    client.send(b"held")
    inner.send(b"answer before, ")
    upstream, descriptor = _pair()
    assert native.switch(link, descriptor, b"head, ", b"\x82\x01d", b"\x82\x01u")
    upstream.send(b"\x82\x01e")
    assert await _received(client, 27) == b"answer before, head, \x82\x01d\x82\x01e"
    assert await _received(upstream, 7) == b"\x82\x01uheld"
    counts = native.counts(link)
    assert counts is not None and (counts.from_client, counts.from_upstream, counts.waiting) == (7, 6, 0)
    for one in (client, inner, upstream):
        one.close()


async def test_half_a_close_passes_in_plain_tcp_and_the_rest_still_comes(native: Native) -> None:
    link, client, upstream = await _linked(native)
    client.shutdown(socket.SHUT_WR)
    assert await _received(upstream, 1) == b""
    upstream.send(frame(5))
    assert await _received(client, 7) == frame(5)
    upstream.close()
    assert await _received(client, 1) == b""
    client.close()
    assert await _event(native) == (link, GONE)


async def test_an_answer_arrives_though_the_request_is_not_taken_any_more(native: Native) -> None:
    client, descriptor = _pair()
    link = native.accept(descriptor, False, 1.0)
    inner, descriptor = _pair()
    assert native.attach(link, descriptor)
    inner.shutdown(socket.SHUT_RD)
    for _ in range(5):
        client.send(b"more of the body")
        await asyncio.sleep(0.01)
    inner.send(b"too much")
    inner.close()
    assert await _received(client, 9) == b"too much"
    client.close()


async def test_what_waits_is_bounded_and_arrives(native: Native) -> None:
    link, client, upstream = await _linked(native)
    data, sent = frame(4 << 20), 0
    steady = 0
    while steady < 20:
        with contextlib.suppress(BlockingIOError):
            sent += upstream.send(data[sent : sent + 65536])
            steady = 0
            continue
        steady += 1
        await asyncio.sleep(0.005)
    counts = native.counts(link)
    assert counts is not None and 0 < counts.waiting <= 64 * 1024
    received = await _received(client, sent)
    assert received == data[:sent]
    client.close()
    upstream.close()


async def test_a_close_frame_waits_for_the_end_of_a_frame_and_for_the_clients_answer(native: Native) -> None:
    link, client, upstream = await _linked(native)
    upstream.send(frame(10)[:6])
    assert await _received(client, 6) == frame(10)[:6]
    assert native.end(link, close_frame(1001, "gone"), 5.0)
    upstream.send(frame(10)[6:] + frame(3))
    assert await _received(client, 6 + 8) == frame(10)[6:] + close_frame(1001, "gone")
    assert native.next() is None
    client.send(b"\x88\x80\0\0\0\0")
    assert await _received(client, 1) == b""
    client.close()
    assert await _event(native) == (link, GONE)
    upstream.close()


async def test_one_that_answers_no_close_frame_is_gone_in_time(native: Native) -> None:
    link, client, upstream = await _linked(native)
    assert native.end(link, close_frame(1001, "gone"), 0.2)
    async with asyncio.timeout(1.0):
        assert await _event(native) == (link, GONE)
    client.close()
    upstream.close()


async def test_a_relay_that_ends_keeps_no_descriptor(native: Native) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        link, client, upstream = await _linked(native)
        client.close()
        upstream.close()
        while await _event(native) != (link, GONE):
            pass
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_viewer_that_talks_too_much_before_its_answer_is_dropped(world: World) -> None:
    proceed = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await proceed.wait()
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        await reader.read()

    await world.raw_server(slow)
    client = await world.connect()
    await client.send(world.upgrade_bytes() + frame(300_000, masked=True))
    proceed.set()
    assert await client.ended(PATIENCE)
    await world.until(lambda: not world.server.registry.counts()["relays"])
