"""Frame-level equivalence: whatever a WebSocket peer may send, and what it may not, comes out as it went in. Judging it is the other end's."""

from __future__ import annotations

import asyncio
import random
import re
import struct

import pytest

from engine.config import REPO
from tests.stream.world import PATIENCE, Client, World

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA


def raw(opcode: int, payload: bytes = b"", *, fin: bool = True, masked: bool = False, reserved: int = 0, length_bytes: int | None = None) -> bytes:
    """One frame. `length_bytes` (0, 2 or 8) forces a longer length field than the payload needs."""
    size = len(payload)
    wide = length_bytes if length_bytes is not None else 0 if size < 126 else 2 if size < 65536 else 8
    mark = size if wide == 0 else 126 if wide == 2 else 127
    head = bytes(((0x80 if fin else 0) | reserved << 4 | opcode, (0x80 if masked else 0) | mark)) + (size.to_bytes(wide, "big") if wide else b"")
    if not masked:
        return head + payload
    key = b"\x37\xfa\x21\x3d"
    return head + key + bytes(byte ^ key[at % 4] for at, byte in enumerate(payload))


# The groups of the usual conformance suite, each in one direction's bytes.
CASES = {
    "sizes": b"".join(raw(BINARY, b"z" * size) for size in (0, 1, 125, 126, 127, 128, 65535, 65536)),
    "text": raw(TEXT, "Grüße 世界 \U0001f389".encode()) + raw(TEXT, b""),
    "text that is no UTF-8": raw(TEXT, b"\xce\xba\xed\xa0\x80\xff"),
    "text cut inside a character": raw(TEXT, b"\xe4\xb8", fin=False) + raw(CONTINUATION, b"\x96"),
    "fragments": raw(TEXT, b"one", fin=False) + raw(CONTINUATION, b"", fin=False) + raw(CONTINUATION, b"two"),
    "a ping between fragments": raw(TEXT, b"one", fin=False) + raw(PING, b"p") + raw(PONG, b"unasked") + raw(CONTINUATION, b"two"),
    "pings": raw(PING) + raw(PING, b"x" * 125) + raw(PONG) + raw(PONG, b"\x00\xff"),
    "a ping that is too long": raw(PING, b"x" * 126),
    "a fragmented ping": raw(PING, b"x", fin=False),
    "reserved bits": raw(TEXT, b"compressed", reserved=4) + raw(BINARY, b"x", reserved=3),
    "reserved opcodes": raw(0x3, b"three") + raw(0xB, b"eleven"),
    "a continuation of nothing": raw(CONTINUATION, b"lost"),
    "lengths written longer than needed": raw(BINARY, b"x" * 5, length_bytes=2) + raw(BINARY, b"y" * 300, length_bytes=8),
    "closes": raw(CLOSE, struct.pack("!H", 4000) + b"why"),
    "a close without a code": raw(CLOSE),
    "a close with a bad code": raw(CLOSE, struct.pack("!H", 1005)),
    "frames behind a close": raw(CLOSE, struct.pack("!H", 1000)) + raw(TEXT, b"late"),
}


async def _send_chopped(client: Client, data: bytes, chance: random.Random) -> None:
    position = 0
    while position < len(data):
        step = chance.choice((1, 2, 3, 5, 14, 1400, 40_000))
        await client.send(data[position : position + step])
        position += step
        if step < 20:
            await asyncio.sleep(0)


@pytest.mark.parametrize("name", CASES)
async def test_what_the_desktop_sends_arrives_byte_for_byte(world: World, name: str) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chance, data, position = random.Random(3), CASES[name], 0
        while position < len(data):
            step = chance.choice((1, 2, 3, 5, 14, 1400, 40_000))
            writer.write(data[position : position + step])
            await writer.drain()
            position += step
        await reader.read()

    await world.raw_websocket(handler)
    client = await world.websocket()
    assert await asyncio.wait_for(client.reader.readexactly(len(CASES[name])), PATIENCE) == CASES[name]


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "unmasked"])
async def test_what_a_viewer_sends_arrives_byte_for_byte(world: World, masked: bool) -> None:
    """All cases in one connection, in an order of chance: no frame changes what becomes of the next."""
    chance = random.Random(masked)
    data = b""
    for _ in range(60):
        opcode = chance.choice((CONTINUATION, TEXT, BINARY, PING, PONG, 0x3, 0xC))
        payload = chance.randbytes(chance.choice((0, 1, 4, 13, 125, 126, 4000, 70_000)))
        data += raw(opcode, payload, fin=chance.random() < 0.8, masked=masked, reserved=chance.choice((0, 0, 4, 7)))
    got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.set_result(await reader.readexactly(len(data)))
        await reader.read()

    await world.raw_websocket(handler)
    client = await world.websocket()
    await _send_chopped(client, data, chance)
    assert await asyncio.wait_for(got, PATIENCE) == data


async def test_http_timeouts_do_not_reach_a_relay(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies in front of desktops used to cut those who only look after 60 s. Here nothing of HTTP counts the time after 101."""
    for manager in (world.server._http,):
        manager._kwargs["keepalive_timeout"] = 0.2
        manager._kwargs["lingering_time"] = 0.2

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)

    await world.raw_websocket(handler)
    client = await world.websocket()
    idle = await world.connect()
    await idle.send(world.request("GET", "/__tclone/state"))
    await idle.reply()
    # A kept connection ends by that timeout, so it is in force.
    assert await idle.ended(3)
    await asyncio.sleep(1.0)
    await client.send(raw(PING, b"yet", masked=True))
    assert await asyncio.wait_for(client.reader.readexactly(9), PATIENCE) == raw(PING, b"yet", masked=True)


def test_every_promise_names_a_test_that_exists() -> None:
    """The table in docs/reference/streams.md."""
    text = (REPO / "docs" / "reference" / "streams.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) > 40
    for file, name in named:
        assert re.search(rf"^(async )?def {name}\(", (REPO / file).read_text(), re.MULTILINE), f"{file} has no {name}"
