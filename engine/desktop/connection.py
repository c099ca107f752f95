"""One X client: requests and their replies over a socket that somebody hostile may hold the other end of.

Every reply is bounded in size and what comes beside it in number; set a time limit around each use.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import AsyncIterator

from engine import x11
from engine.x11 import Screen, XError

MESSAGE = 32
_MOST_REPLY = 1 << 20
# Events and errors that may come before an awaited reply: a busy desktop sends some dozens.
_MOST_BETWEEN = 20_000
_KEPT_EVENTS = 256
_ERROR, _REPLY, _GENERIC_EVENT = 0, 1, 35
_GET_INPUT_FOCUS, _QUERY_EXTENSION, _INTERN_ATOM = 43, 98, 16


class Connection:
    """Requests are bytes without the sequence number, which counts by itself; replies are checked against it."""

    def __init__(self, sock: socket.socket, screen: Screen) -> None:
        self.screen = screen
        self.events: deque[bytes] = deque(maxlen=_KEPT_EVENTS)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._sequence = 0
        self._atoms: dict[str, int] = {}
        self._failed: XError | None = None

    async def send(self, *requests: bytes) -> None:
        """Send requests that have no reply. What the server says against them is raised by the next `ask` or `settled`."""
        self._sequence += len(requests)
        await self._loop.sock_sendall(self._sock, b"".join(requests))

    async def ask(self, request: bytes, most: int = _MOST_REPLY) -> bytes:
        """Send a request; its reply of at most `most` bytes. Raises XError for an X error, also of an earlier `send`."""
        await self.send(request)
        for _ in range(_MOST_BETWEEN):
            message, sequence = await self._next(most)
            if message[0] == _ERROR and sequence == self._sequence & 0xFFFF:
                raise _error_of(message)
            if message[0] == _REPLY:
                if sequence != self._sequence & 0xFFFF:
                    raise XError("the X server answered what was not asked")
                if self._failed is not None:
                    failed, self._failed = self._failed, None
                    raise failed
                return message
        raise XError("the X server does not come to its answer")

    async def settled(self) -> None:
        """Return when the server has done everything sent so far. Raises XError when it refused some of it."""
        await self.ask(struct.pack("<BBH", _GET_INPUT_FOCUS, 0, 1))

    async def event(self) -> bytes:
        """The next event that was not seen yet; waits for it. After a time limit that ended it nothing more can be asked if it came in
        the midst of a message, which a server that is well sends in one piece."""
        while not self.events:
            await self._next(_MOST_REPLY)
        return self.events.popleft()

    async def arrived(self) -> None:
        """Take in the events that the server has sent already; waits for none."""
        for _ in range(_MOST_BETWEEN):
            try:
                ahead = self._sock.recv(MESSAGE, socket.MSG_PEEK)
            except BlockingIOError:
                return
            if len(ahead) < MESSAGE:
                return
            await self._next(_MOST_REPLY)

    async def extension(self, name: str) -> int:
        """The major opcode of an extension. Raises XError when the server has none."""
        return (await self.extension_and_event(name))[0]

    async def extension_and_event(self, name: str) -> tuple[int, int]:
        """The major opcode of an extension and the number of its first event. Raises XError."""
        data = name.encode()
        reply = await self.ask(struct.pack(f"<BBHHH{len(data)}s", _QUERY_EXTENSION, 0, 2 + (len(data) + 3) // 4, len(data), 0, data) + _padding(data))
        if not reply[8]:
            raise XError(f"the X server has no extension {name}")
        return reply[9], reply[10]

    async def atom(self, name: str) -> int:
        """The number of a name; asked for once."""
        if name not in self._atoms:
            data = name.encode()
            request = struct.pack(f"<BBHHH{len(data)}s", _INTERN_ATOM, 0, 2 + (len(data) + 3) // 4, len(data), 0, data) + _padding(data)
            (self._atoms[name],) = struct.unpack_from("<I", await self.ask(request), 8)
        return self._atoms[name]

    async def _next(self, most: int) -> tuple[bytes, int]:
        """The next message and its sequence number. Events are kept, errors of requests without reply remembered."""
        message = bytes(await x11.receive(self._loop, self._sock, MESSAGE))
        kind, (sequence, words) = message[0], struct.unpack_from("<HI", message, 2)
        if kind in (_REPLY, _GENERIC_EVENT) and words:
            if words * 4 > most:
                raise XError(f"the X server's answer is longer than {most} bytes")
            message += bytes(await x11.receive(self._loop, self._sock, words * 4))
        if kind == _ERROR and sequence != self._sequence & 0xFFFF:
            self._failed = self._failed or _error_of(message)
        elif kind not in (_ERROR, _REPLY):
            self.events.append(message)
        return message, sequence


@contextlib.asynccontextmanager
async def connected(root_fd: int, display: str) -> AsyncIterator[Connection]:
    """A connection to `display` of the tree at `root_fd`. Raises XError for whatever goes wrong with it, within it, too."""
    loop = asyncio.get_running_loop()
    try:
        with x11.socket_of(root_fd, display) as sock:
            yield Connection(sock, await x11.greeted(loop, sock))
    except EOFError:
        raise XError(f"display {display}: the X server closed the connection") from None
    except (OSError, struct.error, IndexError) as error:
        if isinstance(error, TimeoutError):
            raise
        raise XError(f"display {display}: {error}") from error


def _padding(data: bytes) -> bytes:
    return bytes(-len(data) % 4)


def _error_of(message: bytes) -> XError:
    return XError(f"the X server refused a request (error {message[1]}, request {message[10]})")
