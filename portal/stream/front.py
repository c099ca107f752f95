"""Connections of browsers whose bytes the native relay carries: TLS is ended there, HTTP spoken here over socket pairs, and what became a WebSocket
never comes here again."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import socket
import struct
import termios
from collections.abc import Callable
from pathlib import Path

from portal.stream.certificate import Certificate
from portal.stream.frames import close_frame
from portal.stream.native import GONE, READY, Counts, Native, NativeError
from portal.stream.relay import LINGER_SECONDS
from portal.stream.tuning import HIGH_WATER, tune_viewer

_log = logging.getLogger(__name__)

_ACCEPTED_AT_ONCE = 100
_ACCEPT_PAUSE_SECONDS = 1.0
_WAIT_FOR = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# How long what was written of an answer that breaks off may take to leave, and how often that is looked at.
_CUT_SECONDS = 0.2
_CUT_POLL_SECONDS = 0.005
# How long answers that are on their way when all ends may take to leave.
_FLUSH_SECONDS = 1.0
# More than any viewer has to say before it knows that its handshake succeeded; behind it are two full buffers.
_MOST_EARLY = 128 * 1024


class NativeRelay:
    """The sister of `relay.Relay` for a connection of a `Front`: the same for the registry, carried by the native relay."""

    websocket = True

    def __init__(self, native: Native, number: int) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._native = native
        self._number = number
        self._counts = Counts()
        self._switched = False

    def switched(self) -> None:
        """Bytes flow from now on."""
        self._switched = True

    def ended(self, counts: Counts) -> None:
        """Both connections are gone; what they carried."""
        self._counts = counts
        if not self.done.done():
            self.done.set_result(None)

    def _counted(self) -> Counts:
        if self.done.done():
            return self._counts
        return self._native.counts(self._number) or self._counts

    @property
    def from_client(self) -> int:
        return self._counted().from_client

    @property
    def from_upstream(self) -> int:
        return self._counted().from_upstream

    @property
    def carried(self) -> int:
        """Bytes that came from both sides."""
        counts = self._counted()
        return counts.from_client + counts.from_upstream

    @property
    def buffered(self) -> int:
        """Bytes waiting in user space, both directions."""
        return 0 if self.done.done() else self._counted().waiting

    def sockets(self) -> list[socket.socket]:
        """The client's and upstream's connection, to look at their options; the caller closes these copies."""
        return [socket.socket(fileno=os.dup(fd)) for side in (0, 1) if (fd := self._native.descriptor(self._number, side)) >= 0]

    def close(self, code: int, reason: str) -> None:
        """End the relay within a second, with a Close frame at the next frame's end."""
        if self.done.done():
            return
        if self._switched:
            self._native.end(self._number, close_frame(code, reason), LINGER_SECONDS)
        else:
            self.abort()

    def abort(self) -> None:
        """Drop both connections now."""
        if not self.done.done():
            self._native.abort(self._number)


class Link:
    """One browser's connection."""

    def __init__(self, native: Native, number: int, peer: str) -> None:
        self.peer = peer
        self.number = number
        self.relay: NativeRelay | None = None
        self._native = native
        self._gone = False

    def gone(self, counts: Counts) -> None:
        """It is closed; what its relay has carried."""
        self._gone = True
        if self.relay is not None:
            self.relay.ended(counts)

    def abort(self) -> None:
        """Drop it without a proper end."""
        self._native.abort(self.number)

    async def cut(self, inner: asyncio.Transport | None) -> None:
        """The same, once the native relay has taken what was written to `inner`, the pair's transport; it has a moment for that."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _CUT_SECONDS
        while inner is not None and not inner.is_closing() and _unread(inner) and loop.time() < end:
            await asyncio.sleep(_CUT_POLL_SECONDS)
        self.abort()

    def new_relay(self) -> NativeRelay:
        """The relay that `switch` will begin; it has ended already when the browser is gone."""
        self.relay = NativeRelay(self._native, self.number)
        if self._gone:
            self.relay.ended(Counts())
        return self.relay

    def switch(self, inner: asyncio.Transport, upstream: asyncio.Transport, head: bytes, down: bytes, up: bytes) -> None:
        """Relay between the browser and `upstream`, of which copies go to the native relay and whose transports are dropped.

        `inner` is the pair's transport here; `head` is the answer to the upgrade. `down` was read from upstream, `up` from the pair. The relay's end tells
        when the browser is gone already; one that takes no answers, or has sent too much, is dropped.
        """
        assert self.relay is not None
        inner.pause_reading()
        upstream.pause_reading()
        self._native.hold(self.number)
        up += _emptied(inner, _MOST_EARLY)
        if inner.get_write_buffer_size() or len(up) > _MOST_EARLY:
            _log.info("a viewer is dropped that takes no answer, or sends too much before it has one")
            self.relay.abort()
        else:
            self._native.switch(self.number, os.dup(upstream.get_extra_info("socket").fileno()), head, down, up)
        # Both let go of their descriptors without a word to the other end: no shutdown() is part of it.
        for transport in (upstream, inner):
            transport.set_protocol(asyncio.Protocol())
            transport.abort()
        self.relay.switched()


def _unread(transport: asyncio.Transport) -> int:
    """Bytes that were written to one end of a socket pair and not read at the other (with the kernel's own beside them)."""
    count = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, struct.pack("=i", 0))
    return transport.get_write_buffer_size() + int(struct.unpack("=i", count)[0])


def _emptied(transport: asyncio.Transport, most: int) -> bytes:
    """What is in a paused transport's socket, a little more than `most` at the most."""
    taken = bytearray()
    with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as copy, contextlib.suppress(BlockingIOError, ConnectionError):
        while len(taken) <= most and (data := copy.recv(HIGH_WATER, socket.MSG_DONTWAIT)):
            taken += data
    return bytes(taken)


class Front:
    """Listens, and gives each connection a protocol of `factory` for its HTTP."""

    def __init__(self, library: Path, most: int, factory: Callable[[], asyncio.Protocol], handshake_seconds: float) -> None:
        """Raises NativeError."""
        self._native = Native(library, most)
        self._factory = factory
        self._handshake_seconds = handshake_seconds
        self._loop = asyncio.get_running_loop()
        self._listeners: list[socket.socket] = []
        self._tls = False
        self._links: dict[int, Link] = {}
        self._by_protocol: dict[asyncio.Protocol, Link] = {}
        self._attaching: set[asyncio.Task[None]] = set()
        self._closed = False
        self._loop.add_reader(self._native.fileno(), self._events)

    def listen(self, sockets: list[socket.socket], certificate: Certificate | None) -> None:
        """Accept on listening sockets; with a certificate TLS. Raises NativeError."""
        if certificate is not None:
            self._tls = True
            self._native.certificate(certificate.chain, certificate.key)
            certificate.on_change = lambda: self._renew(certificate)
        for listener in sockets:
            listener.setblocking(False)
            self._listeners.append(listener)
            self._loop.add_reader(listener, self._accept, listener)

    def _renew(self, certificate: Certificate) -> None:
        try:
            self._native.certificate(certificate.chain, certificate.key)
        except NativeError as error:
            _log.error("the certificate cannot be used, the old one stays: %s", error)

    def link(self, protocol: object) -> Link | None:
        """The connection whose HTTP `protocol` speaks."""
        return self._by_protocol.get(protocol)  # type: ignore[call-overload]

    def forget(self, protocol: object) -> None:
        """`protocol` has lost its transport."""
        self._by_protocol.pop(protocol, None)  # type: ignore[call-overload]

    def stop_listening(self) -> None:
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()

    async def close(self) -> None:
        """Let what was answered leave, then drop every connection."""
        self.stop_listening()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_SECONDS):
                while self._links:
                    await asyncio.sleep(0.02)
        self._closed = True
        self._loop.remove_reader(self._native.fileno())
        self._native.close()
        for link in self._links.values():
            link.gone(Counts())
        self._links.clear()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                client, address = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno not in _WAIT_FOR:
                    raise
                _log.error("no connection can be taken: %s; trying again in %g s", error.strerror, _ACCEPT_PAUSE_SECONDS)
                self._loop.remove_reader(listener)
                self._loop.call_later(_ACCEPT_PAUSE_SECONDS, self._accept_again, listener)
                return
            client.setblocking(False)
            with contextlib.suppress(OSError):
                tune_viewer(client)
            number = self._native.accept(client.detach(), self._tls, self._handshake_seconds)
            if number:
                self._links[number] = Link(self._native, number, str(address[0]))
            else:
                _log.error("too many connections; refusing one")

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)

    def _events(self) -> None:
        while not self._closed and (event := self._native.next()) is not None:
            number, kind, counts = event
            if kind == READY:
                task = self._loop.create_task(self._attach(self._links[number]))
                self._attaching.add(task)
                task.add_done_callback(self._attaching.discard)
            elif kind == GONE:
                self._links.pop(number).gone(counts)

    async def _attach(self, link: Link) -> None:
        """Speak HTTP on a connection whose handshake is done."""
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            _log.error("a connection is dropped: %s", error.strerror)
            link.abort()
            return
        # What a browser sends before it is answered waits there, and is not to be more than of any other connection.
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, HIGH_WATER)
        for end in (ours, theirs):
            end.setblocking(False)

        def protocol() -> asyncio.Protocol:
            made = self._factory()
            self._by_protocol[made] = link
            return made

        try:
            await self._loop.connect_accepted_socket(protocol, ours)
        except BaseException:
            theirs.close()
            ours.close()
            raise
        if self._closed or not self._native.attach(link.number, theirs.detach()):
            theirs.close()


__all__ = ["Front", "Link", "NativeError", "NativeRelay"]
