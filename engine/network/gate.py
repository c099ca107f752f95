"""The egress gate of one workspace: the only way out of its namespace.

The listeners are sockets *of the namespace* held by the engine; nft (firewall.py) redirects every outgoing connection to
them. Which listener accepted tells the workspace; SO_ORIGINAL_DST tells where it wanted to go; the policy decides; the engine
connects from the host and relays bytes. Without an engine the redirect leads to a closed port: nothing gets out.

A client sees its connect() succeed before the outside answered; a refusal or a failure outside arrives as a reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from engine.errors import Unavailable
from engine.network.dns import Resolver
from engine.network.firewall import GatePorts, ruleset
from engine.network.namespace import NetworkNamespace
from engine.network.policy import Destination, Level, Policy
from engine.network.relay import relay_sockets, reset
from engine.network.settings import NetworkSettings
from engine.threads import in_thread

log = logging.getLogger(__name__)

_SO_ORIGINAL_DST = 80
_BACKLOG = 512
# Above the default ephemeral range, so that a workspace's own outgoing sockets never hold one of these.
_FIRST_PORT = 61001
_PORT_ATTEMPTS = 64
_ACCEPT_PAUSE = 0.1

# Makes a socket on the host's side: (family, kind) to a non-blocking socket.
HostSocket = Callable[[int, int], Awaitable[socket.socket]]


class Budget:
    """How many connections all gates together may hold (each costs two descriptors)."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0

    def take(self) -> bool:
        if self.used >= self.most:
            return False
        self.used += 1
        return True

    def give_back(self) -> None:
        self.used -= 1


@dataclass
class Counters:
    """What a gate has done since it started."""

    accepted: int = 0
    denied: int = 0
    refused_by_limit: int = 0
    failed: int = 0


@dataclass(frozen=True)
class Listeners:
    """The gate's sockets in a namespace."""

    tcp: socket.socket
    dns_udp: socket.socket
    dns_tcp: socket.socket

    def ports(self) -> GatePorts:
        return GatePorts(*(one.getsockname()[1] for one in (self.tcp, self.dns_udp, self.dns_tcp)))

    def inodes(self) -> set[int]:
        """Their numbers in the kernel's tables of the namespace."""
        return {os.fstat(one.fileno()).st_ino for one in (self.tcp, self.dns_udp, self.dns_tcp)}

    def close(self) -> None:
        for one in (self.tcp, self.dns_udp, self.dns_tcp):
            one.close()


def _bind(namespace: NetworkNamespace, kind: int, taken: set[int]) -> socket.socket:
    """Bind the first free port from _FIRST_PORT on. A process of the workspace may sit on some of them: only its own loss."""
    sock = namespace.socket(socket.AF_INET, kind)
    try:
        if kind == socket.SOCK_STREAM:
            # Connections of an earlier engine in TIME_WAIT must not hinder. Never for UDP: there it would let a process
            # of the workspace bind the same port and take the queries.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for port in [*range(_FIRST_PORT, _FIRST_PORT + _PORT_ATTEMPTS), 0]:
            if port in taken:
                continue
            try:
                sock.bind(("127.0.0.1", port))
                if kind == socket.SOCK_STREAM:
                    sock.listen(_BACKLOG)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                if sock.getsockname()[1] != 0:
                    # bind() succeeded and listen() did not: this socket keeps its port, go on with another.
                    sock.close()
                    sock = namespace.socket(socket.AF_INET, kind)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                continue
            taken.add(sock.getsockname()[1])
            return sock
        raise Unavailable(f"no port for the gate of {namespace.workspace_id}: its processes hold them all")
    except BaseException:
        sock.close()
        raise


def make_listeners(namespace: NetworkNamespace) -> Listeners:
    """Raises Unavailable, NotFound, OSError."""
    made: list[socket.socket] = []
    taken: set[int] = set()
    try:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_STREAM):
            made.append(_bind(namespace, kind, taken))
    except BaseException:
        for one in made:
            one.close()
        raise
    return Listeners(*made)


def original_destination(client: socket.socket) -> tuple[str, int]:
    """Where a redirected connection wanted to go. Raises OSError when it was not redirected and has no record."""
    raw = client.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)
    port, address = struct.unpack_from("!2xH4s", raw)
    return socket.inet_ntoa(address), port


class Gate:
    """Serves one workspace from `start` to `stop`."""

    def __init__(
        self,
        namespace: NetworkNamespace,
        policy: Policy,
        settings: NetworkSettings,
        budget: Budget,
        executor: Executor,
        host_socket: HostSocket,
    ) -> None:
        self.workspace = namespace.workspace_id
        self.counters = Counters()
        self._namespace = namespace
        self._policy = policy
        self._settings = settings
        self._budget = budget
        self._executor = executor
        self._host_socket = host_socket
        self._resolver = Resolver(self.workspace, policy, settings, host_socket)
        self._listeners: Listeners | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._connections: dict[asyncio.Task[None], Destination | None] = {}

    @property
    def connections(self) -> int:
        return len(self._connections)

    def inodes(self) -> set[int]:
        """The numbers of its listeners: they lie in the workspace's namespace and are none of the workspace's."""
        return self._listeners.inodes() if self._listeners is not None else set()

    async def start(self, listeners: Listeners | None = None) -> None:
        """Make the listeners and let the rules lead to them. Raises Unavailable, Internal, OSError.

        Given `listeners` become the gate's; the rules of level `open` must lead to them already.
        """
        ready = listeners is not None and self._policy.level(self.workspace) is Level.OPEN
        if listeners is None:
            listeners = await in_thread(lambda: make_listeners(self._namespace), self._executor, discard=Listeners.close)
        self._listeners = listeners
        try:
            await self._resolver.start(self._listeners.dns_udp, self._listeners.dns_tcp)
            self._accepting = asyncio.create_task(self._accept(self._listeners.tcp), name=f"gate {self.workspace}")
            if not ready:
                await self.refresh()
        except BaseException:
            await self.stop()
            raise

    async def refresh(self) -> None:
        """Put the rules of the policy's present level in force and reset the connections that it now denies."""
        ports = self._listeners.ports() if self._listeners is not None else None
        rules = ruleset(self._policy.level(self.workspace), ports)
        await asyncio.get_running_loop().run_in_executor(self._executor, self._namespace.apply, rules)
        for task, destination in list(self._connections.items()):
            if destination is not None and not (await self._policy.decide(self.workspace, destination)).allow:
                task.cancel()

    async def stop(self) -> None:
        """Close listeners and connections. The rules stay and lead nowhere."""
        tasks = list(self._connections)
        if self._accepting is not None:
            tasks.append(self._accepting)
            self._accepting = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._resolver.stop()
        if self._listeners is not None:
            self._listeners.close()
            self._listeners = None

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError as error:
                # Out of descriptors, or a client that reset before it was accepted. Neither may end the gate.
                if error.errno not in (errno.ECONNABORTED, errno.EPROTO):
                    log.warning("gate of %s cannot accept: %s", self.workspace, error)
                    await asyncio.sleep(_ACCEPT_PAUSE)
                continue
            self.counters.accepted += 1
            if self.connections >= self._settings.connections_per_workspace or not self._budget.take():
                self.counters.refused_by_limit += 1
                reset(client)
                continue
            task = asyncio.create_task(self._serve(client))
            self._connections[task] = None
            task.add_done_callback(functools.partial(self._connection_ended, client))

    def _connection_ended(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        self._connections.pop(task, None)
        self._budget.give_back()
        # A task cancelled before its first step never owned it.
        reset(client)
        if not task.cancelled() and task.exception() is not None:
            log.error("gate of %s: connection failed", self.workspace, exc_info=task.exception())

    async def _serve(self, client: socket.socket) -> None:
        """One connection, from the decision to its end. Owns `client`."""
        upstream: socket.socket | None = None
        try:
            host, port = original_destination(client)
            destination = Destination("tcp", host, port)
            task = asyncio.current_task()
            if task in self._connections:
                # Before the decision: a change of level meanwhile must find this connection (refresh).
                self._connections[task] = destination
            decision = await self._policy.decide(self.workspace, destination)
            if not decision.allow:
                self.counters.denied += 1
                log.info("%s may not connect to %s:%d: %s", self.workspace, host, port, decision.reason)
                return
            upstream = await self._connect(host, port)
        except (OSError, TimeoutError) as error:
            self.counters.failed += 1
            log.debug("%s: no connection outside: %s", self.workspace, error)
            return
        finally:
            if upstream is None:
                reset(client)
        with contextlib.suppress(OSError):
            await relay_sockets(client, upstream)

    async def _connect(self, host: str, port: int) -> socket.socket:
        upstream = await self._host_socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            async with asyncio.timeout(self._settings.egress_connect_timeout):
                await asyncio.get_running_loop().sock_connect(upstream, (host, port))
        except BaseException:
            upstream.close()
            raise
        return upstream
