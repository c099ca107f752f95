"""Enough of the X11 protocol to read the root window and the idle time: connect, set up, ask, leave.

The server belongs to a workspace and may be hostile: it has to be quick, and nothing it says makes us allocate more than a screen of
`MOST_PIXELS`. Nothing else of what it sends is looked at.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import stat
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from engine import syscalls

T = TypeVar("T")

# A screen of 8K. At 4 bytes each that is 132 MB for one picture, which is as much as a picture may cost.
MOST_PIXELS = 7680 * 4320
_BYTES_PER_PIXEL = 4
_SETUP = struct.pack("<BxHHHH2x", ord("l"), 11, 0, 0, 0)
_SETUP_HEAD = struct.Struct("<BBHHH")
_LONGEST_SETUP = 256 * 1024
_REPLY = struct.Struct("<BBHIIIIIII")
_GET_IMAGE, _Z_PIXMAP = 73, 2
# A region that is not on the screen. Error and code are where replies have their kind and depth.
_ERROR, _ANSWER, _BAD_MATCH = 0, 1, 8
# Between a question and its answer.
_MOST_EVENTS = 1000
_QUERY_EXTENSION, _QUERY_INFO = 98, 1
_SCREEN_SAVER = b"MIT-SCREEN-SAVER"
_EXTENSION_REPLY = struct.Struct("<8xBB22x")
_INFO_REPLY = struct.Struct("<B15xI12x")
_XFIXES, _XFIXES_VERSION, _GET_CURSOR_IMAGE = b"XFIXES", 0, 4
_CURSOR_REPLY = struct.Struct("<B7xhhHHHH12x")
# In each direction. Pointers of desktops have 16 to 64 pixels, magnified ones 256.
_LARGEST_CURSOR = 512
_ALL_PLANES = 0xFFFFFFFF
_DISPLAY = re.compile(r"(?:unix)?:([0-9]{1,5})(?:\.[0-9]{1,3})?")


class XError(Exception):
    """The X server cannot be reached, refuses, or does not speak X11; says which."""


class _Resized(XError):
    """The screen became smaller between the greeting, which tells its size, and the question for its picture."""


@dataclass(frozen=True)
class Screen:
    """The root window of the first screen."""

    root: int
    width: int
    height: int
    # The keycodes that there are, first and last.
    keycodes: tuple[int, int] = (8, 255)
    # The first number that this client may give to something of its own.
    identities: int = 0


@dataclass(frozen=True)
class Pointer:
    """The pointer's picture, its left upper corner in pixels of the screen: 4 bytes each, blue first, the fourth the opacity that the others are multiplied by."""

    x: int
    y: int
    width: int
    height: int
    pixels: bytearray


@dataclass(frozen=True)
class Raster:
    """Pixels of a screen: rows of 4 bytes each, blue first, the fourth meaningless; and what belongs on top of them."""

    width: int
    height: int
    pixels: bytearray
    pointer: Pointer | None = None


async def grab(root_fd: int, display: str, pointer: bool = False) -> Raster:
    """The picture that `display` of the tree at `root_fd` shows now, with the pointer beside it when asked for. Raises XError; set a time limit around it."""
    question = _grab_with_pointer if pointer else _grab
    try:
        return await _asked(root_fd, display, question)
    except _Resized:
        return await _asked(root_fd, display, question)


async def idle(root_fd: int, display: str) -> float:
    """Seconds since a mouse or keyboard of `display` was last used. Raises XError; set a time limit around it.

    By MIT-SCREEN-SAVER, whose clock starts anew with every input event, also with those that XTEST makes.
    """
    return await _asked(root_fd, display, _idle)


async def _asked(root_fd: int, display: str, question: Callable[[asyncio.AbstractEventLoop, socket.socket, Screen], Awaitable[T]]) -> T:
    """Connect, ask, leave."""
    loop = asyncio.get_running_loop()
    try:
        with socket_of(root_fd, display) as sock:
            return await question(loop, sock, await greeted(loop, sock))
    except EOFError:
        raise XError(f"display {display}: the X server closed the connection") from None
    except OSError as error:
        raise XError(f"display {display}: {error}") from error


def socket_of(root_fd: int, display: str) -> socket.socket:
    """A connection to the display's socket file, found with the kernel holding the walk inside the tree."""
    number = _DISPLAY.fullmatch(display)
    if number is None:
        raise XError(f"{display[:40]!r} is no local display")
    path = f"/tmp/.X11-unix/X{number[1]}"
    found = syscalls.openat2(root_fd, path, os.O_PATH, syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS)
    try:
        if not stat.S_ISSOCK(os.fstat(found).st_mode):
            raise XError(f"{path} is not a socket")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.setblocking(False)
            # A local connection is made at once or refused, also when its queue is full.
            sock.connect(f"/proc/self/fd/{found}")
        except BaseException:
            sock.close()
            raise
        return sock
    finally:
        os.close(found)


async def greeted(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> Screen:
    """What a server says to a new client. Raises XError."""
    await loop.sock_sendall(sock, _SETUP)
    status, _, _, _, words = _SETUP_HEAD.unpack(await receive(loop, sock, _SETUP_HEAD.size))
    if words * 4 > _LONGEST_SETUP:
        raise XError("the X server's greeting is too long")
    greeting = bytes(await receive(loop, sock, words * 4))
    if status != 1:
        raise XError("the X server lets nobody in without authority")
    return screen_of(greeting)


async def _grab(loop: asyncio.AbstractEventLoop, sock: socket.socket, screen: Screen) -> Raster:
    request = struct.pack("<BBHIhhHHI", _GET_IMAGE, _Z_PIXMAP, 5, screen.root, 0, 0, screen.width, screen.height, _ALL_PLANES)
    await loop.sock_sendall(sock, request)
    kind, depth, _, length, *_ = _REPLY.unpack(await _reply(loop, sock))
    size = screen.width * screen.height * _BYTES_PER_PIXEL
    if kind != _ANSWER or depth != 24 or length * 4 != size:
        raise (_Resized if (kind, depth) == (_ERROR, _BAD_MATCH) else XError)(f"the X server did not send its picture (reply {kind}, depth {depth})")
    return Raster(screen.width, screen.height, await receive(loop, sock, size))


async def _grab_with_pointer(loop: asyncio.AbstractEventLoop, sock: socket.socket, screen: Screen) -> Raster:
    opcode = await _extension(loop, sock, _XFIXES, "does not tell its pointer")
    # An extension that was not asked for its version refuses everything else.
    await loop.sock_sendall(sock, struct.pack("<BBHII", opcode, _XFIXES_VERSION, 3, 2, 0))
    await _reply(loop, sock)
    raster = await _grab(loop, sock, screen)
    await loop.sock_sendall(sock, struct.pack("<BBH", opcode, _GET_CURSOR_IMAGE, 1))
    kind, x, y, width, height, left, top = _CURSOR_REPLY.unpack(await _reply(loop, sock))
    if kind != _ANSWER or not (0 < width <= _LARGEST_CURSOR and 0 < height <= _LARGEST_CURSOR):
        raise XError(f"the X server did not send its pointer (reply {kind}, {width}x{height})")
    pixels = await receive(loop, sock, width * height * _BYTES_PER_PIXEL)
    return Raster(raster.width, raster.height, raster.pixels, Pointer(x - left, y - top, width, height, pixels))


async def _extension(loop: asyncio.AbstractEventLoop, sock: socket.socket, name: bytes, without: str) -> int:
    """The opcode of an extension. Raises XError."""
    padded = name + bytes(-len(name) % 4)
    await loop.sock_sendall(sock, struct.pack(f"<BBHHH{len(padded)}s", _QUERY_EXTENSION, 0, 2 + len(padded) // 4, len(name), 0, padded))
    present, opcode = _EXTENSION_REPLY.unpack(await _reply(loop, sock))
    if not present:
        raise XError(f"the X server {without} (no {name.decode()})")
    return opcode


async def _idle(loop: asyncio.AbstractEventLoop, sock: socket.socket, screen: Screen) -> float:
    opcode = await _extension(loop, sock, _SCREEN_SAVER, "does not count idle time")
    await loop.sock_sendall(sock, struct.pack("<BBHI", opcode, _QUERY_INFO, 2, screen.root))
    kind, milliseconds = _INFO_REPLY.unpack(await _reply(loop, sock))
    if kind != _ANSWER:
        raise XError("the X server does not say how long it was idle")
    return milliseconds / 1000


async def _reply(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> bytearray:
    """The head of the next reply, or an error. Raises XError, EOFError.

    What was not asked for may come before it: when somebody changes the keyboard, every client is told (MappingNotify), as it is when a viewer comes.
    """
    for _ in range(_MOST_EVENTS):
        head = await receive(loop, sock, _REPLY.size)
        if head[0] in (_ERROR, _ANSWER):
            return head
    raise XError(f"the X server sent {_MOST_EVENTS} events and no answer")


async def receive(loop: asyncio.AbstractEventLoop, sock: socket.socket, size: int) -> bytearray:
    """Just `size` bytes. Raises EOFError when the server closes before."""
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        count = await loop.sock_recv_into(sock, view[filled:])
        if not count:
            raise EOFError
        filled += count
    return data


def screen_of(greeting: bytes) -> Screen:
    """The first screen that a server's greeting describes. Raises XError for one that does not have the picture format we read."""
    try:
        vendor_length, _, screens, formats, byte_order = struct.unpack_from("<HHBBB", greeting, 16)
        keycodes, (identities,) = struct.unpack_from("<BB", greeting, 26), struct.unpack_from("<I", greeting, 4)
        offset = 32 + (vendor_length + 3) // 4 * 4
        depths = [struct.unpack_from("<BB", greeting, offset + 8 * index) for index in range(formats)]
        root, width, height, root_depth = struct.unpack_from("<I16xHH14xB", greeting, offset + 8 * formats)
    except struct.error:
        raise XError("the X server's greeting is cut off") from None
    if screens < 1 or byte_order != 0 or root_depth != 24 or (24, 32) not in depths:
        raise XError("the X server's screen does not have 24 bits of colour in 32, lowest byte first")
    if not 1 <= width * height <= MOST_PIXELS:
        raise XError(f"a screen of {width}x{height} is not one")
    if not 8 <= keycodes[0] <= keycodes[1]:
        raise XError(f"keycodes from {keycodes[0]} to {keycodes[1]} are none")
    return Screen(root, width, height, keycodes, identities)
