"""A byte relay between two asyncio transports, for the gate, for published ports and for upgraded connections.

Imports nothing privileged: the portal's stream process uses it too. At most 192 KiB wait in each direction (high-water mark
plus one read); a slow reader stops the other side's reading. One read buffer serves the whole thread: reading and passing on
are one synchronous step, so private buffers would only cost memory (256 KiB for each of 50 streams, measured).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from typing import Any

_READ_SIZE = 64 * 1024
HIGH_WATER = 128 * 1024
_LOW_WATER = 32 * 1024
_KEEPALIVE_IDLE = 30
_KEEPALIVE_INTERVAL = 10
_KEEPALIVE_PROBES = 3
# Closing with this linger drops unsent data and sends a reset.
_RESET = struct.pack("ii", 1, 0)

_shared = threading.local()


def _read_buffer() -> memoryview:
    buffer = getattr(_shared, "buffer", None)
    if buffer is None:
        buffer = _shared.buffer = memoryview(bytearray(_READ_SIZE))
    return buffer


def tune(connection: socket.socket, stalled: float | None = None) -> None:
    """No delay for small writes, and a dead idle peer is noticed within a minute. Only for TCP sockets.

    `stalled`: end the connection when the peer takes no data for so many seconds. Right for a viewer of a live stream, wrong
    for a download, which its reader may pause for as long as it likes.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
    if stalled is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stalled * 1000))


def reset(connection: socket.socket) -> None:
    """Close a TCP socket with a reset instead of an orderly end."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()


class RelayEnd(asyncio.BufferedProtocol):
    """One side of a `Relay`: what it reads goes to its `other`."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.other: RelayEnd = self
        self.transport: Any = None
        self.received = 0
        self._ended = False
        self._lost = False
        # Read before the other end had a transport; at most a read or two.
        self._kept = b""

    def attach(self, transport: Any, early: bytes = b"") -> None:
        """Take over a connected transport; `early` are bytes already read from it."""
        transport.set_protocol(self)
        self.connection_made(transport)
        if early:
            self._pass_on(early)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER, low=_LOW_WATER)
        if self.other.transport is None:
            # Nowhere to put bytes yet. uvloop starts reading after this call all the same: see `_pass_on`.
            transport.pause_reading()
            return
        self._take_what_was_kept()
        self.other._resume_reading()
        self._resume_reading()

    def _take_what_was_kept(self) -> None:
        """Send what the other end read, or that it ended, before this end had a transport."""
        other = self.other
        if other._kept:
            self.transport.write(other._kept)
            other._kept = b""
        if other._lost:
            self.transport.close()
        elif other._ended:
            other._pass_end()

    def get_buffer(self, sizehint: int) -> memoryview:
        return _read_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        # A copy: a transport may keep what it could not send at once, and the buffer is everybody's.
        self._pass_on(bytes(_read_buffer()[:nbytes]))

    def _pass_on(self, data: bytes) -> None:
        self.received += len(data)
        target = self.other.transport
        if target is None:
            self._kept += data
            self.transport.pause_reading()
        elif not target.is_closing():
            target.write(data)

    def eof_received(self) -> bool:
        self._ended = True
        return self._pass_end()

    def _pass_end(self) -> bool:
        """End the other side's writing; whether this side's transport should stay open for what still comes back."""
        target = self.other.transport
        if target is None:
            return bool(self.transport.can_write_eof())
        if target.is_closing():
            return False
        if not self.other._ended and target.can_write_eof() and self.transport.can_write_eof():
            target.write_eof()
            return True
        # Both directions have ended, or one side is TLS, which has no half close. close() sends what is queued first.
        target.close()
        return False

    def pause_writing(self) -> None:
        source = self.other.transport
        if source is not None and not source.is_closing():
            source.pause_reading()

    def resume_writing(self) -> None:
        self.other._resume_reading()

    def _resume_reading(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        target = self.other.transport
        if target is not None and not target.is_closing():
            if error is None:
                target.close()
            else:
                _abort(target)
        self.relay._end_lost(self)


def _abort(transport: Any) -> None:
    """End a transport at once, with a reset where it is plain TCP, so that the peer does not take it for a proper end."""
    raw = transport.get_extra_info("socket")
    if raw is not None and transport.get_extra_info("ssl_object") is None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()


class Relay:
    """Two ends joined. `left` and `right` are protocols; give each a transport by `attach` or as a protocol factory's result."""

    def __init__(self) -> None:
        self.left = RelayEnd(self)
        self.right = RelayEnd(self)
        self.left.other, self.right.other = self.right, self.left
        self._open = {self.left, self.right}
        self._finished = asyncio.get_running_loop().create_future()

    async def finished(self) -> tuple[int, int]:
        """Wait until both transports are closed; bytes left to right and right to left."""
        await asyncio.shield(self._finished)
        return self.left.received, self.right.received

    @property
    def done(self) -> bool:
        return self._finished.done()

    def abort(self) -> None:
        """End both sides at once, with a reset."""
        for end in (self.left, self.right):
            if end.transport is not None:
                _abort(end.transport)
            else:
                self._end_lost(end)

    def _end_lost(self, end: RelayEnd) -> None:
        self._open.discard(end)
        if end.other.transport is None:
            # Never attached: nothing will report its end.
            self._open.discard(end.other)
        if not self._open and not self._finished.done():
            self._finished.set_result(None)


async def relay_sockets(left: socket.socket, right: socket.socket) -> tuple[int, int]:
    """Relay two connected, non-blocking TCP sockets until both directions have ended; owns and closes both.

    Returns bytes left to right and right to left. When cancelled, both are reset.
    """
    try:
        tune(left)
        tune(right)
        relay = Relay()
    except BaseException:
        left.close()
        right.close()
        raise
    loop = asyncio.get_running_loop()
    try:
        await loop.create_connection(lambda: relay.right, sock=right)
        await loop.create_connection(lambda: relay.left, sock=left)
        return await relay.finished()
    finally:
        if not relay.done:
            relay.abort()
        # A socket whose transport was never made is still ours.
        for end, raw in ((relay.left, left), (relay.right, right)):
            if end.transport is None:
                raw.close()
