"""DNS of a workspace: queries that nft redirected here go to the host's resolvers, if the policy allows.

Answers pass through unchanged but for their id. Everything is bounded: queries under way, TCP connections, time, sizes.
A denied query is answered REFUSED without a packet leaving the host, so names cannot carry data out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from pathlib import Path

from engine.network.policy import Destination, Policy
from engine.network.settings import NetworkSettings

log = logging.getLogger(__name__)

HostSocket = Callable[[int, int], Awaitable[socket.socket]]
ResolverAddress = tuple[str, int]

_RESOLV_CONF = Path("/etc/resolv.conf")
_MOST_RESOLVERS = 3
_HEADER = struct.Struct("!HHHHHH")
_QR, _OPCODE, _RD, _RA = 0x8000, 0x7800, 0x0100, 0x0080
FORMERR, SERVFAIL, REFUSED = 1, 2, 5
_LABEL_POINTER = 0xC0
_MOST_NAME = 255
_MOST_MESSAGE = 65535
_MOST_TCP = 16
_TCP_IDLE = 10.0
# One resolver may be silent this long before the next is asked (seconds).
_TRY_NEXT_AFTER = 2.0


class Malformed(ValueError):
    """A message that is no DNS query."""


def parse_question(message: bytes) -> tuple[str, int]:
    """Name asked for (dots between labels, odd bytes escaped) and the end of the question. Raises Malformed."""
    if len(message) < _HEADER.size:
        raise Malformed("shorter than a header")
    _, flags, questions, _, _, _ = _HEADER.unpack_from(message)
    if flags & (_QR | _OPCODE) or questions != 1:
        raise Malformed("not a standard query with one question")
    labels: list[str] = []
    at = _HEADER.size
    while True:
        if at >= len(message) or at - _HEADER.size > _MOST_NAME:
            raise Malformed("name without end")
        length = message[at]
        at += 1
        if length == 0:
            break
        if length & _LABEL_POINTER or at + length > len(message):
            raise Malformed("bad label")
        labels.append(message[at : at + length].decode("ascii", "backslashreplace"))
        at += length
    if at + 4 > len(message):
        raise Malformed("no type and class")
    return ".".join(labels), at + 4


def error_answer(query: bytes, code: int) -> bytes:
    """An answer without records to `query`, repeating its question when it has a proper one."""
    identity, flags = struct.unpack_from("!HH", query) if len(query) >= 4 else (0, 0)
    flags = _QR | _RA | flags & (_OPCODE | _RD) | code
    try:
        _, end = parse_question(query)
    except Malformed:
        return _HEADER.pack(identity, flags, 0, 0, 0, 0)
    return _HEADER.pack(identity, flags, 1, 0, 0, 0) + query[_HEADER.size : end]


def read_resolv_conf(path: Path = _RESOLV_CONF) -> list[ResolverAddress]:
    """The nameservers of a resolv.conf, at most three; lines without an address are passed over."""
    found: list[ResolverAddress] = []
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return found
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            try:
                ip_address(words[1].partition("%")[0])
            except ValueError:
                continue
            found.append((words[1], 53))
    return found[:_MOST_RESOLVERS]


class HostResolvers:
    """The host's resolvers; resolv.conf is read again when it changed."""

    def __init__(self, fixed: tuple[ResolverAddress, ...] | None) -> None:
        self._fixed = list(fixed) if fixed is not None else None
        self._found: list[ResolverAddress] = []
        self._seen: tuple[int, int] | None = None

    def current(self) -> list[ResolverAddress]:
        if self._fixed is not None:
            return self._fixed
        try:
            status = os.stat(_RESOLV_CONF)
        except OSError:
            return self._found
        seen = (status.st_mtime_ns, status.st_ino)
        if seen != self._seen:
            self._found, self._seen = read_resolv_conf(), seen
        return self._found


def _answers(query: bytes, answer: bytes) -> bool:
    """Whether `answer` belongs to `query`: same id, a response, and the same question when it repeats one."""
    if len(answer) < _HEADER.size or answer[:2] != query[:2] or not answer[2] & 0x80:
        return False
    if answer[4:6] == b"\0\0":
        return True
    _, end = parse_question(query)
    return answer[_HEADER.size : end].lower() == query[_HEADER.size : end].lower()


class Resolver(asyncio.DatagramProtocol):
    """Answers one workspace's queries over UDP and TCP."""

    def __init__(self, workspace: str, policy: Policy, settings: NetworkSettings, host_socket: HostSocket) -> None:
        self.workspace = workspace
        self._policy = policy
        self._most = settings.dns_queries_per_workspace
        self._timeout = settings.dns_timeout
        self._host_socket = host_socket
        self._resolvers = HostResolvers(settings.resolvers)
        self._transport: asyncio.DatagramTransport | None = None
        self._full = False
        self._server: asyncio.Server | None = None
        self._queries: set[asyncio.Task[None]] = set()
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self, udp: socket.socket, tcp: socket.socket) -> None:
        """Serve on two bound sockets of the namespace; the transports close them."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, sock=udp)
        self._server = await asyncio.start_server(self._serve_tcp, sock=tcp, limit=_MOST_MESSAGE + 2)

    async def stop(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None
        if self._server is not None:
            self._server.close()
            self._server = None
        tasks = [*self._queries, *self._clients]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # One turn of the loop, in which closed transports let go of their sockets.
        await asyncio.sleep(0)

    async def answer(self, query: bytes, stream: bool) -> bytes:
        """The answer to one message, from a resolver or an error code; never raises for what the workspace sent."""
        try:
            name, _ = parse_question(query)
        except Malformed:
            return error_answer(query, FORMERR)
        decision = await self._policy.decide(self.workspace, Destination("dns", name, 53))
        if not decision.allow:
            return error_answer(query, REFUSED)
        # A fresh id outside: the workspace's own choice must not help anyone to guess it.
        outside = secrets.token_bytes(2) + query[2:]
        ask = self._ask_stream if stream else self._ask_datagram
        try:
            async with asyncio.timeout(self._timeout):
                resolvers = self._resolvers.current()
                for left, resolver in enumerate(resolvers, 1 - len(resolvers)):
                    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                        # The last one has all the time that is left.
                        async with asyncio.timeout(_TRY_NEXT_AFTER if left else None):
                            return query[:2] + (await ask(resolver, outside))[2:]
        except TimeoutError:
            pass
        return error_answer(query, SERVFAIL)

    async def _outside(self, resolver: ResolverAddress, kind: int) -> socket.socket:
        """A socket connected to a resolver, so that only its answers are received."""
        family = socket.AF_INET6 if ":" in resolver[0] else socket.AF_INET
        sock = await self._host_socket(family, kind)
        try:
            await asyncio.get_running_loop().sock_connect(sock, resolver)
        except BaseException:
            sock.close()
            raise
        return sock

    async def _ask_datagram(self, resolver: ResolverAddress, query: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        with await self._outside(resolver, socket.SOCK_DGRAM) as sock:
            await loop.sock_sendall(sock, query)
            while True:
                answer = await loop.sock_recv(sock, _MOST_MESSAGE)
                if _answers(query, answer):
                    return answer

    async def _ask_stream(self, resolver: ResolverAddress, query: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(sock=await self._outside(resolver, socket.SOCK_STREAM))
        try:
            writer.write(struct.pack("!H", len(query)) + query)
            (length,) = struct.unpack("!H", await reader.readexactly(2))
            answer = await reader.readexactly(length)
        finally:
            writer.close()
        if not _answers(query, answer):
            raise OSError("the resolver answered another question")
        return answer

    # UDP side of the workspace

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        if len(self._queries) >= self._most:
            self._send(error_answer(data, SERVFAIL), address)
            return
        task = asyncio.get_running_loop().create_task(self._serve_datagram(data, address))
        self._queries.add(task)
        task.add_done_callback(self._queries.discard)

    async def _serve_datagram(self, query: bytes, address: tuple[str, int]) -> None:
        self._send(await self.answer(query, stream=False), address)

    def _send(self, answer: bytes, address: tuple[str, int]) -> None:
        if self._transport is not None and not self._full:
            self._transport.sendto(answer, address)

    def pause_writing(self) -> None:
        """The queue of answers is full (64 KiB): drop them, as a network would."""
        self._full = True

    def resume_writing(self) -> None:
        self._full = False

    def error_received(self, exc: Exception) -> None:
        log.debug("resolver of %s: %s", self.workspace, exc)

    # TCP side of the workspace

    async def _serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            while len(self._clients) <= _MOST_TCP:
                async with asyncio.timeout(_TCP_IDLE):
                    (length,) = struct.unpack("!H", await reader.readexactly(2))
                    query = await reader.readexactly(length)
                answer = await self.answer(query, stream=True)
                writer.write(struct.pack("!H", len(answer)) + answer)
                async with asyncio.timeout(_TCP_IDLE):
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            # stop() cancels; asyncio's server would log it as an unhandled error.
            pass
        finally:
            self._clients.discard(task)
            writer.transport.abort()
