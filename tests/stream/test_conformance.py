"""The usual groups of WebSocket conformance against two strict servers, once straight and once through the relay: no difference is allowed."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable

import pytest
import websockets.asyncio.client
import websockets.asyncio.server
from aiohttp import WSMsgType, web

from tests.stream.test_equivalence import CLOSE, raw
from tests.stream.websocket_cases import GROUPS, NORMAL, PROTOCOL, Case, compressed, frames_of
from tests.stream.world import World

_PATIENCE = 60.0
_LARGEST = 32 << 20


@contextlib.asynccontextmanager
async def _by_websockets() -> AsyncIterator[int]:
    async def echo(socket: websockets.asyncio.server.ServerConnection) -> None:
        with contextlib.suppress(websockets.exceptions.ConnectionClosed):
            async for message in socket:
                await socket.send(message)

    async with websockets.asyncio.server.serve(echo, "127.0.0.1", 0, max_size=_LARGEST, ping_interval=None, close_timeout=2) as server:
        yield server.sockets[0].getsockname()[1]


@contextlib.asynccontextmanager
async def _by_aiohttp() -> AsyncIterator[int]:
    async def echo(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(max_msg_size=_LARGEST, timeout=2)
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await socket.send_str(message.data)
            elif message.type is WSMsgType.BINARY:
                await socket.send_bytes(message.data)
        return socket

    application = web.Application()
    application.router.add_get("/api/websockets", echo)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield site._server.sockets[0].getsockname()[1]
    finally:
        await runner.cleanup()


SERVERS: dict[str, Callable[[], contextlib.AbstractAsyncContextManager[int]]] = {"websockets": _by_websockets, "aiohttp": _by_aiohttp}
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _exchange(world: World, ends: Ends, case: Case, offer: str) -> tuple[str, bytes]:
    """The extensions that were agreed on, and every byte that the server sent after its handshake, up to the end of the connection."""
    reader, writer = ends
    writer.write(world.upgrade_bytes("ws-1", *([f"Sec-WebSocket-Extensions: {offer}"] if offer else [])))
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert head.startswith("HTTP/1.1 101 "), head
    agreed = [line.partition(":")[2].strip() for line in head.split("\r\n") if line.lower().startswith("sec-websocket-extensions:")]
    sending = asyncio.create_task(_send(writer, case))
    received = bytearray()
    async with asyncio.timeout(_PATIENCE):
        # A Close frame that came together with messages would stop their echo; only behind their last one it says nothing new.
        while len(_messages(received)) < case.echoes and (piece := await reader.read(1 << 20)):
            received += piece
        await sending
        if case.echoes >= 0:
            with contextlib.suppress(OSError):
                writer.write(raw(CLOSE, struct.pack("!H", NORMAL), masked=True))
        received += await reader.read()
    writer.close()
    return "; ".join(agreed), bytes(received)


async def _send(writer: asyncio.StreamWriter, case: Case) -> None:
    step = case.chop or len(case.sent)
    with contextlib.suppress(OSError):
        for at in range(0, len(case.sent), step):
            writer.write(case.sent[at : at + step])
            await writer.drain()
            if case.chop:
                await asyncio.sleep(0)


def _messages(data: bytes | bytearray) -> list[bytes]:
    """Frames of messages as they came."""
    return [frame for frame in frames_of(bytes(data)) if not frame[0] & 0x08]


def _control(data: bytes) -> list[bytes]:
    """Control frames as they came. Between them and messages a server that is fed differently may choose another order."""
    return [frame for frame in frames_of(data) if frame[0] & 0x08]


def _close_code(control: list[bytes]) -> int:
    """Of the Close frame, which is the last; 0 without a code."""
    assert control and control[-1][0] & 0x0F == CLOSE, control
    return int.from_bytes(control[-1][2:4], "big")


async def _both(world: World, port: int, case: Case, offer: str = "") -> tuple[list[bytes], list[bytes]]:
    """The frames of the exchange without the relay, which those with it are equal to."""
    straight = await _exchange(world, await asyncio.open_connection("127.0.0.1", port), case, offer)
    client = await world.connect()
    relayed = await _exchange(world, (client.reader, client.writer), case, offer)
    world.forget_clients()
    assert relayed[0] == straight[0], "other extensions were agreed on"
    assert _control(relayed[1]) == _control(straight[1]), (case.sent[:60], _control(relayed[1]), _control(straight[1]))
    if case.echoes >= 0:
        assert len(_messages(straight[1])) == case.echoes, case.sent[:60]
        # Not one by one: that a frame of 16 MiB differs is enough to know.
        assert sum(map(len, frames_of(relayed[1]))) == len(relayed[1]), "the last frame is cut off"
        same = _messages(relayed[1]) == _messages(straight[1])
        assert same, [frame[:40] for frame in _messages(relayed[1])[:5]]
    return _messages(straight[1]), _control(straight[1])


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("group", GROUPS)
async def test_a_server_answers_a_relayed_client_as_it_answers_any(world: World, server: str, group: str) -> None:
    async with SERVERS[server]() as port:
        world.descriptors.targets[("ws-1", 8080)] = port
        for case in GROUPS[group]:
            _, control = await _both(world, port, case)
            # What the stricter one of the two is known to say, so that two equal failures do not pass.
            if server == "websockets":
                assert _close_code(control) == case.code, (case.sent[:60], control)


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("offer", compressed())
async def test_compression_is_between_the_two_ends(world: World, server: str, offer: str) -> None:
    async with SERVERS[server]() as port:
        world.descriptors.targets[("ws-1", 8080)] = port
        whole, plain, broken = compressed()[offer]
        data, control = await _both(world, port, whole, offer)
        assert data[0][0] & 0x40, "the server's answers are compressed"
        assert _close_code(control) == NORMAL
        await _both(world, port, plain, offer)
        _, control = await _both(world, port, broken, offer)
        if server == "websockets":
            assert _close_code(control) == PROTOCOL


async def test_a_whole_client_and_a_whole_server_understand_each_other(world: World) -> None:
    """Both ends are libraries now: masks, fragments, compression and the closing are theirs."""
    async with _by_websockets() as port:
        world.descriptors.targets[("ws-1", 8080)] = port
        headers = {"Host": world.host(), "Cookie": world.cookies["ws-1"]}
        async with websockets.asyncio.client.connect(
            f"wss://{world.host()}/api/websockets", host="127.0.0.1", port=world.port, ssl=world.trust, origin=world.origin(),
            additional_headers={"Cookie": headers["Cookie"]}, max_size=_LARGEST, compression="deflate", proxy=None,
        ) as socket:  # fmt: skip
            assert socket.protocol.extensions, "compression was agreed on"
            for message in ("", "µ" * 70_000, bytes(range(256)) * 65_536, b"x" * (16 << 20)):
                await socket.send(message)
                assert await asyncio.wait_for(socket.recv(), _PATIENCE) == message
            await socket.send(["one ", "two ", "three"])
            assert await socket.recv() == "one two three"
            await asyncio.wait_for(await socket.ping(b"how far"), _PATIENCE)
            await socket.close(4001, "enough")
        assert (socket.close_code, socket.close_reason) == (4001, "enough")
