"""The WebSocket half of the checklist: what the handshake carries, and a relay that neither loses, adds nor hoards bytes."""

from __future__ import annotations

import asyncio
import base64
import os
import socket

import pytest
from aiohttp import web

from engine.errors import NotFound, Unavailable
from portal.stream.frames import close_frame
from portal.stream.tuning import BUFFERED_LIMIT
from tests.stream.test_frames import frame
from tests.stream.world import PATIENCE, TOKEN, Client, World


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


def protocols(head: bytes) -> list[str]:
    """The subprotocols that a handshake offered."""
    lines = [line for line in head.decode().split("\r\n") if line.lower().startswith("sec-websocket-protocol:")]
    return [protocol.strip() for line in lines for protocol in line.partition(":")[2].split(",")]


TOKEN_PROTOCOL = "selkies.token." + base64.urlsafe_b64encode(TOKEN.encode()).decode().rstrip("=")


async def test_the_token_goes_in_on_the_way_and_the_browser_need_not_offer_any(world: World) -> None:
    heads = await world.raw_websocket(echo, "Sec-WebSocket-Protocol: selkies\r\n")
    client = await world.connect()
    await client.send(world.upgrade_bytes())
    answer = await client.head()
    assert answer.status == 101
    # A browser fails a handshake that names a subprotocol it did not offer.
    assert not answer.all("Sec-WebSocket-Protocol")
    assert protocols(heads[0]) == ["selkies", TOKEN_PROTOCOL]
    assert b"authorization" not in heads[0].lower() and b"__Host-tclone" not in heads[0]


async def test_the_subprotocol_upstream_chose_is_the_one_the_client_is_told(world: World) -> None:
    heads = await world.raw_websocket(echo, "Sec-WebSocket-Protocol: b\r\n")
    client = await world.connect()
    await client.send(world.upgrade_bytes("ws-1", "Sec-WebSocket-Protocol: a, b, selkies.token.c3RvbGVu"))
    assert (await client.head()).get("Sec-WebSocket-Protocol") == "b"
    assert protocols(heads[0]) == ["a", "b", "selkies", TOKEN_PROTOCOL]


async def test_the_handshake_passes_and_the_answer_is_cleaned(world: World) -> None:
    extra = "Sec-WebSocket-Accept: xyz\r\nSet-Cookie: __Host-tclone-desk=forged\r\nSet-Cookie: own=1; Domain=localhost\r\n"
    heads = await world.raw_websocket(echo, extra)
    client = await world.connect()
    await client.send(world.upgrade_bytes("ws-1", "Sec-WebSocket-Extensions: permessage-deflate"))
    answer = await client.head()
    assert answer.get("Sec-WebSocket-Accept") == "xyz" and answer.all("Set-Cookie") == ["own=1"]
    assert not answer.all("Sec-WebSocket-Extensions"), "the proxy negotiates nothing by itself"
    assert b"Sec-WebSocket-Extensions: permessage-deflate" in heads[0] and b"Sec-WebSocket-Key: " in heads[0]
    assert f"Host: {world.host()}".encode() in heads[0]


@pytest.mark.parametrize("connection", ["Upgrade", "keep-alive, Upgrade", "upgrade", "UPGRADE,keep-alive"])
@pytest.mark.parametrize("upgrade", ["websocket", "WebSocket"])
async def test_an_upgrade_is_asked_for_in_many_spellings(world: World, connection: str, upgrade: str) -> None:
    await world.raw_websocket(echo)
    client = await world.connect()
    extra = (f"Connection: {connection}", f"Upgrade: {upgrade}", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: x", f"Origin: {world.origin()}")
    await client.send(world.request("GET", "/api/websockets", "ws-1", *extra))
    assert (await client.head()).status == 101


@pytest.mark.parametrize("extra", [("Upgrade: websocket",), ("Connection: Upgrade",)])
async def test_half_an_upgrade_is_an_ordinary_request(world: World, extra: tuple[str, ...]) -> None:
    async def probe(request: web.Request) -> web.Response:
        return web.Response(status=204, headers={"X-Upgrade": request.headers.get("Upgrade", "none")})

    await world.desktop_app(web.get("/api/websockets", probe))
    answer = await world.ask("GET", "/api/websockets", "ws-1", f"Origin: {world.origin()}", *extra)
    assert answer.status == 204 and answer.get("X-Upgrade") == "none"


async def test_bytes_right_behind_the_handshake_are_not_lost_either_way(world: World) -> None:
    got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n" + frame(3))
        got.set_result(await reader.readexactly(6))
        await reader.read()

    await world.raw_server(handler)
    client = await world.connect()
    await client.send(world.upgrade_bytes() + b"\x81\x80abcd")
    assert (await client.head()).status == 101
    assert await client.frame() == (2, b"xxx")
    assert await asyncio.wait_for(got, PATIENCE) == b"\x81\x80abcd"


async def test_pings_pass_and_are_never_answered_here(world: World) -> None:
    got: list[bytes] = []
    done = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x89\x02hi")
        got.append(await reader.readexactly(8))
        done.set()
        await reader.read()

    await world.raw_websocket(handler)
    client = await world.websocket()
    assert await client.frame() == (9, b"hi")
    # Nothing reaches upstream until the client itself answers.
    await asyncio.sleep(0.1)
    assert not got
    await client.send(b"\x8a\x82\0\0\0\0hi")
    await asyncio.wait_for(done.wait(), PATIENCE)
    assert got == [b"\x8a\x82\0\0\0\0hi"]


async def test_a_relay_carries_bytes_unchanged_both_ways(world: World) -> None:
    await world.raw_websocket(echo)
    client = await world.websocket()
    data = frame(300_000, masked=True) * 10

    async def send() -> None:
        for start in range(0, len(data), 10_007):
            await client.send(data[start : start + 10_007])

    sending = asyncio.create_task(send())
    # The echo is masked, which a server must not do, but the relay does not care.
    assert await asyncio.wait_for(client.reader.readexactly(len(data)), PATIENCE) == data
    await sending


async def test_liveness_is_tcps_own(world: World) -> None:
    await world.raw_websocket(echo)
    await world.websocket()
    (entry,) = world.server.registry._relays
    viewer, desktop = entry.relay.sockets()
    for sock in (viewer, desktop):
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    assert viewer.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
    # The kernel doubles what was asked, for its own bookkeeping.
    assert desktop.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) <= 256 * 1024
    viewer.close()
    desktop.close()


async def test_a_close_frame_in_the_pipe_arrives_before_the_end(world: World) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(60_000) * 20 + close_frame(1000, "bye"))
        await writer.drain()

    await world.raw_websocket(handler)
    client = await world.websocket()
    everything = await asyncio.wait_for(client.reader.read(-1), PATIENCE)
    assert everything == frame(60_000) * 20 + close_frame(1000, "bye")


async def test_what_the_client_sent_before_it_left_reaches_upstream(world: World) -> None:
    got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.set_result(await reader.read(-1))

    await world.raw_websocket(handler)
    client = await world.websocket()
    data = frame(50_000, masked=True) * 10
    client.writer.write(data)
    client.writer.close()
    assert await asyncio.wait_for(got, PATIENCE) == data


@pytest.mark.parametrize("status", [401, 403, 404, 426, 500])
async def test_a_refused_handshake_shows_its_reason(world: World, status: int) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=status, text="the reason")

    await world.desktop_app(web.get("/api/websockets", refuse))
    client = await world.connect()
    await client.send(world.upgrade_bytes())
    answer = await client.reply()
    assert answer.status == status and answer.body == b"the reason"
    assert await client.ended()


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(Unavailable("refused"), 503, "starting"), (NotFound("gone"), 404, "not_found"), (OSError("net"), 503, "starting")],
)
async def test_the_error_comes_before_101(world: World, error: Exception, status: int, code: str) -> None:
    world.descriptors.error = error  # type: ignore[assignment]
    client = await world.connect()
    await client.send(world.upgrade_bytes())
    answer = await client.reply()
    assert answer.status == status and answer.json()["error"]["code"] == code


@pytest.mark.parametrize(
    "answer",
    [b"", b"garbage\r\n\r\n", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", b"HTTP/1.1 101 X\r\n\r\n"],
    ids=["nothing", "garbage", "another protocol", "no upgrade"],
)
async def test_a_broken_handshake_is_a_bad_gateway(world: World, answer: bytes) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    await world.raw_server(handler)
    client = await world.connect()
    await client.send(world.upgrade_bytes())
    assert (await client.reply()).status == 502


async def test_the_connection_to_a_desktop_without_a_listener_is_not_kept_open(world: World) -> None:
    client = await world.connect()
    await client.send(world.upgrade_bytes())
    assert (await client.reply()).status == 503
    assert world.server.registry.counts()["relays"] == 0


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends frames as fast as they are taken."""
    part = frame(60_000)
    while True:
        writer.write(part)
        await writer.drain()


async def test_a_stalled_viewer_costs_a_bounded_buffer_and_stalls_nobody_else(world: World) -> None:
    await world.raw_websocket(flood)
    await world.raw_websocket(echo, workspace="ws-2")
    stalled = await world.websocket()
    stalled.writer.transport.pause_reading()
    other = await world.websocket("ws-2")
    (entry,) = [entry for entry in world.server.registry._relays if entry.workspace == "ws-1"]
    before, steady = -1, 0
    async with asyncio.timeout(PATIENCE):
        while steady < 5:
            steady = steady + 1 if entry.relay.from_upstream == before else 0
            before = entry.relay.from_upstream
            await asyncio.sleep(0.05)
    assert 0 < entry.relay.buffered <= BUFFERED_LIMIT
    assert world.server.health()["buffered"] <= BUFFERED_LIMIT
    # The test's own client and the kernel hold some of it, the proxy no more than its bound.
    assert entry.relay.from_upstream < 12 << 20
    for _ in range(50):
        await other.send(frame(5))
        assert await asyncio.wait_for(other.frame(), 1) == (2, b"xxxxx")
    stalled.writer.transport.resume_reading()
    await asyncio.wait_for(stalled.reader.readexactly(8 << 20), PATIENCE)
    assert entry.relay.from_upstream > before


async def test_a_stalled_desktop_stops_the_viewer_from_sending(world: World) -> None:
    stop = asyncio.Event()

    async def never_reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()
        await stop.wait()

    await world.raw_websocket(never_reads)
    client = await world.websocket()
    (entry,) = world.server.registry._relays
    part = frame(60_000, masked=True)
    try:
        async with asyncio.timeout(1.5):
            while True:
                await client.send(part)
    except TimeoutError:
        pass
    assert entry.relay.buffered <= BUFFERED_LIMIT
    stop.set()


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _resident_kib() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


async def _cycle(world: World, number: int) -> None:
    client: Client = await world.websocket()
    await client.send(frame(10, masked=True))
    if number % 4 == 0:
        await client.frame_of_upstream()
    if number % 4 == 1:
        raw = client.writer.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    if number % 4 == 2:
        await client.send(frame(100, masked=True)[:50])
    if number % 4 == 3:
        client.writer.close()
        return
    await client.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_two_thousand_viewers_coming_and_going_leave_nothing(world: World) -> None:
    await world.raw_websocket(echo)

    async def many(count: int) -> None:
        for start in range(0, count, 20):
            await asyncio.gather(*(_cycle(world, start + offset) for offset in range(20)))
            world.forget_clients()
        await world.until(lambda: world.server.registry.counts()["relays"] == 0)
        await world.until(lambda: not world.server.health()["http_connections"])

    await many(200)
    await asyncio.sleep(0.3)
    descriptors, resident = _descriptors(), _resident_kib()
    await many(1800)
    await world.until(lambda: _descriptors() <= descriptors + 2)
    assert _resident_kib() - resident < 20 * 1024
    assert world.server.registry.counts()["connections"] == 0
