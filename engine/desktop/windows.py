"""Windows, as the window manager lists them on the root window (EWMH). Every word and number of it is a program's own."""

from __future__ import annotations

import asyncio
import struct

from engine.desktop.connection import Connection
from engine.desktop.interface import Window
from engine.text import printable
from engine.x11 import XError

_GET_PROPERTY, _GET_GEOMETRY, _TRANSLATE, _SEND_EVENT, _CHANGE_ATTRIBUTES = 20, 14, 40, 25, 2
_CLIENT_MESSAGE = 33
_EVENT_MASK, _SUBSTRUCTURE = 1 << 11, 1 << 19
_ROOT_EVENTS = 1 << 19 | 1 << 20
_MOST_WINDOWS = 256
_LONGEST_TEXT = 1024
# A program that does not answer within this may be busy or may not take part.
_PING_SECONDS = 5.0
# For programs that do not answer at all.
_BLIND_SECONDS = 0.5


async def listed(x: Connection) -> list[Window]:
    """All windows, the lowest first. Raises XError when there is no window manager that lists them."""
    root = x.screen.root
    identities = await _numbers(x, root, "_NET_CLIENT_LIST_STACKING", _MOST_WINDOWS) or await _numbers(x, root, "_NET_CLIENT_LIST", _MOST_WINDOWS)
    active = await _active(x)
    found = []
    for identity in identities:
        try:
            found.append(await _window(x, identity, identity == active))
        except XError:
            continue  # it has gone meanwhile
    return found


async def activate(x: Connection, identity: int) -> None:
    """Ask the window manager to bring a window to the front. Raises LookupError when it does not list it."""
    root = x.screen.root
    if identity not in await _numbers(x, root, "_NET_CLIENT_LIST", _MOST_WINDOWS):
        raise LookupError(f"no window {identity}")
    # 2: for whom a person or an agent speaks, so that the window manager does not take it for a program that pushes itself forward.
    event = await _message(x, identity, "_NET_ACTIVE_WINDOW", 2, 0, await _active(x))
    await x.send(_sent(root, _ROOT_EVENTS, event))
    await x.settled()


async def caught_up(x: Connection) -> None:
    """Return when the program with the keyboard has read all events sent so far; after a while in any case."""
    root, active = x.screen.root, await _active(x)
    protocols = await _numbers(x, active, "WM_PROTOCOLS", 32) if active else []
    if await x.atom("_NET_WM_PING") not in protocols:
        await asyncio.sleep(_BLIND_SECONDS)
        return
    await x.send(struct.pack("<BBHIII", _CHANGE_ATTRIBUTES, 0, 4, root, _EVENT_MASK, _SUBSTRUCTURE))
    ping = await _message(x, active, "WM_PROTOCOLS", await x.atom("_NET_WM_PING"), 0, active)
    await x.send(_sent(active, 0, ping))
    try:
        async with asyncio.timeout(_PING_SECONDS):
            # It sends the same message back, to the root window.
            while not _is_answer(await x.event(), root, ping):
                pass
    except TimeoutError:
        pass
    await x.send(struct.pack("<BBHIII", _CHANGE_ATTRIBUTES, 0, 4, root, _EVENT_MASK, 0))


def _is_answer(event: bytes, root: int, ping: bytes) -> bool:
    return event[0] & 0x7F == _CLIENT_MESSAGE and struct.unpack_from("<I", event, 4)[0] == root and event[8:24] == ping[8:24]


async def _active(x: Connection) -> int:
    return next(iter(await _numbers(x, x.screen.root, "_NET_ACTIVE_WINDOW", 1)), 0)


async def _message(x: Connection, window: int, kind: str, *values: int) -> bytes:
    numbers = (*values, 0, 0, 0, 0, 0)[:5]
    return struct.pack("<BBHII5I", _CLIENT_MESSAGE, 32, 0, window, await x.atom(kind), *numbers)


def _sent(window: int, mask: int, event: bytes) -> bytes:
    return struct.pack("<BBHII", _SEND_EVENT, 0, 11, window, mask) + event


async def _property(x: Connection, window: int, name: str, words: int) -> tuple[int, bytes]:
    """Format and bytes of a window's property, at most so many words; (0, b"") without one."""
    request = struct.pack("<BBHIIIII", _GET_PROPERTY, 0, 6, window, await x.atom(name), 0, 0, words)
    reply = await x.ask(request, 4 * words)
    unit = reply[1]
    (count,) = struct.unpack_from("<I", reply, 16)
    return unit, reply[32 : 32 + count * unit // 8]


async def _numbers(x: Connection, window: int, name: str, most: int) -> list[int]:
    unit, data = await _property(x, window, name, most)
    return list(struct.unpack(f"<{len(data) // 4}I", data[: len(data) // 4 * 4])) if unit == 32 else []


async def _text(x: Connection, window: int, *names: str) -> str:
    for name in names:
        unit, data = await _property(x, window, name, _LONGEST_TEXT // 4)
        if unit == 8 and data:
            return printable(data.rstrip(b"\0").split(b"\0")[-1].decode(errors="replace"))
    return ""


async def _window(x: Connection, identity: int, active: bool) -> Window:
    geometry = await x.ask(struct.pack("<BBHI", _GET_GEOMETRY, 0, 2, identity))
    width, height = struct.unpack_from("<HH", geometry, 16)
    corner = await x.ask(struct.pack("<BBHIIhh", _TRANSLATE, 0, 4, identity, x.screen.root, 0, 0))
    left, top = struct.unpack_from("<hh", corner, 12)
    hidden = await x.atom("_NET_WM_STATE_HIDDEN") in await _numbers(x, identity, "_NET_WM_STATE", 32)
    title = await _text(x, identity, "_NET_WM_NAME", "WM_NAME")
    return Window(identity, title, await _text(x, identity, "WM_CLASS"), left, top, width, height, active, hidden)
