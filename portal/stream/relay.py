"""Bytes of an upgraded connection to its upstream and back, with bounded buffers and real backpressure: where there is no native relay (`front.py`).

`engine.network.relay` is its plain sister for published ports. This one counts what TLS buffers below it into the bound, keeps both
sides still until both are there, and knows WebSocket frames, so that a viewer is told why its stream ends.
"""

from __future__ import annotations

import asyncio
import os
import socket

from portal.stream.frames import FrameTracker, close_frame
from portal.stream.tuning import CHUNK, HIGH_WATER

# Reads are handed over inside one callback, so every relay of the process reads into the same buffer (private ones: 6.4 MB for 50 viewers).
_SCRATCH_VIEW = memoryview(bytearray(CHUNK))

# How long a closing relay waits for its peers to take what is buffered and to close their side, in seconds. A revoked session has to
# be gone within one second, so this stays below it.
LINGER_SECONDS = 0.7
# How long what is buffered for a browser may take to flush once the desktop's side is gone, in seconds.
_FLUSH_SECONDS = 30.0


class Side(asyncio.BufferedProtocol):
    """One of the two connections of a relay: what it receives, its `peer` sends."""

    __slots__ = ("relay", "transport", "peer", "tracker", "received", "early", "ended", "discarding")

    def __init__(self, relay: Relay, tracker: FrameTracker | None = None) -> None:
        self.relay = relay
        self.transport: asyncio.Transport | None = None
        self.peer: Side
        self.tracker = tracker
        self.received = 0
        self.early = b""
        self.ended = False
        self.discarding = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # Not checked: uvloop's transports are no subclasses of asyncio's.
        self.transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER)
        if not self.relay.started:
            transport.pause_reading()

    def close(self) -> None:
        """Flush and close. Once only: a second close() makes asyncio's TLS transport forget its protocol, and abort() does nothing then."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        # Never a bytearray: asyncio's TLS reads several records into slices of this, and a bytearray's slice is a copy (bytes lost).
        return _SCRATCH_VIEW

    def buffer_updated(self, count: int) -> None:
        self.forward(bytes(_SCRATCH_VIEW[:count]))

    def forward(self, data: bytes) -> None:
        """Send `data`, received here, to the peer. Bytes for a peer that is gone are dropped: its loss closes this side too."""
        self.received += len(data)
        if self.relay.closing:
            self._forward_last(data)
            return
        if self.tracker is not None:
            self.tracker.feed(data)
        out = self.peer.transport
        if out is not None and not out.is_closing():
            out.write(data)

    def _forward_last(self, data: bytes) -> None:
        """While the relay closes: upstream's bytes up to the end of a frame, where our Close frame follows."""
        if self.discarding:
            self._discard(data)
            return
        ending = self is self.relay.upstream
        if self.tracker is not None:
            data = data[: self.tracker.feed(data, stop_at_boundary=ending)]
        out = self.peer.transport
        if out is not None and not out.is_closing():
            out.write(data)
        if ending and self.tracker is not None and self.tracker.at_boundary:
            self.relay.finish_close()

    def _discard(self, data: bytes) -> None:
        """Our Close frame is out: drop what comes, until the client's own. It is the server that hangs up then (RFC 6455, 7.1.1)."""
        if self.tracker is None or self is not self.relay.client:
            return
        self.tracker.feed(data)
        if self.tracker.saw_close:
            self.close()

    def pause_writing(self) -> None:
        if self.peer.transport is not None and not self.peer.transport.is_closing():
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer.transport is not None and not self.peer.transport.is_closing():
            self.peer.transport.resume_reading()

    def eof_received(self) -> bool:
        """Pass the end on. True keeps this side open for what the peer still has to say (plain TCP; TLS knows no half close)."""
        self.ended = True
        out = self.peer.transport
        if out is None or out.is_closing():
            return False
        both_can = out.can_write_eof() and self.transport is not None and self.transport.can_write_eof()
        if not both_can or self.peer.ended:
            self.peer.close()
            self.relay.limit_flush()
            return False
        out.write_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.peer.transport is not None:
            self.peer.close()
            self.relay.limit_flush()
        self.relay.side_lost()


class Relay:
    """Two sides tied together. `client` faces the browser, `upstream` the workspace or control.

    With `websocket` the frames are followed, so that `close()` can end them with a Close frame.
    `done` is set when both connections are gone.
    """

    def __init__(self, websocket: bool = False) -> None:
        loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = loop.create_future()
        self.client = Side(self, FrameTracker() if websocket else None)
        self.upstream = Side(self, FrameTracker() if websocket else None)
        self.client.peer, self.upstream.peer = self.upstream, self.client
        self.started = False
        self.closing = False
        self._loop = loop
        self._close_frame = b""
        self._finished = False
        self._timer: asyncio.TimerHandle | None = None

    def attach(self, side: Side, transport: asyncio.Transport, early: bytes = b"") -> None:
        """Take over a connected transport; `early` was read from it before. Nothing more is read before `start()`."""
        transport.set_protocol(side)
        side.connection_made(transport)
        side.early = early

    def start(self) -> None:
        """Begin to read on both sides, where the other side's buffer has room."""
        self.started = True
        for side in (self.client, self.upstream):
            out = side.peer.transport
            if side.transport is None or out is None:
                # One was lost while the other was being connected.
                self.abort()
                return
            if side.early:
                side.forward(side.early)
                side.early = b""
            if out.get_write_buffer_size() <= HIGH_WATER:
                side.transport.resume_reading()

    @property
    def websocket(self) -> bool:
        """Whether frames are followed."""
        return self.upstream.tracker is not None

    @property
    def from_client(self) -> int:
        """Bytes that the browser sent."""
        return self.client.received

    @property
    def from_upstream(self) -> int:
        """Bytes that the workspace or control sent."""
        return self.upstream.received

    @property
    def carried(self) -> int:
        """Bytes that came from both sides."""
        return self.client.received + self.upstream.received

    def sockets(self) -> list[socket.socket]:
        """The client's and upstream's connection, to look at their options; the caller closes these copies."""
        return [
            socket.socket(fileno=os.dup(side.transport.get_extra_info("socket").fileno()))
            for side in (self.client, self.upstream) if side.transport is not None
        ]  # fmt: skip

    @property
    def buffered(self) -> int:
        """Bytes waiting in user space, both directions."""
        return sum(
            side.transport.get_write_buffer_size() for side in (self.client, self.upstream) if side.transport is not None
        )

    def close(self, code: int, reason: str) -> None:
        """End the relay within a second: for a WebSocket with a Close frame at the next frame's end, for anything else after a flush."""
        if self.closing or self.done.done():
            return
        self.closing = True
        self._timer_at(LINGER_SECONDS)
        tracker = self.upstream.tracker
        if tracker is None:
            for side in (self.client, self.upstream):
                side.close()
            return
        self._close_frame = b"" if tracker.saw_close else close_frame(code, reason)
        if tracker.at_boundary:
            self.finish_close()

    def finish_close(self) -> None:
        """Send the Close frame and wait for the client's: hanging up with its bytes unread would reset the connection instead."""
        if self._finished:
            return
        self._finished = True
        self.client.discarding = True
        self.upstream.discarding = True
        transport = self.client.transport
        if transport is not None and not transport.is_closing():
            transport.write(self._close_frame)
            transport.resume_reading()

    def abort(self) -> None:
        """Drop both connections now."""
        for side in (self.client, self.upstream):
            if side.transport is not None:
                side.transport.abort()
        if self.client.transport is None and self.upstream.transport is None:
            self.side_lost()

    def limit_flush(self) -> None:
        """Bound how long the surviving side may take to drain, once the other is gone."""
        if self._timer is None:
            self._timer_at(_FLUSH_SECONDS)

    def side_lost(self) -> None:
        """Called when a side's connection is gone."""
        if self.client.transport is not None or self.upstream.transport is not None or self.done.done():
            return
        if self._timer is not None:
            self._timer.cancel()
        self.done.set_result(None)

    def _timer_at(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self.abort)
