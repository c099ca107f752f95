"""Published ports: one host port for each (workspace, container port).

The listening sockets are made and kept here and handed to the portal's stream process by descriptor; it accepts. A port given
back is not chosen again for a minute, so that a stale client of a removed workspace never meets another one; the record of
that is kept in a file because an engine may restart in between.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import random
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import BadRequest, Conflict, EngineError, Internal, LimitReached, NotFound, Unavailable
from engine.network.settings import NetworkSettings

log = logging.getLogger(__name__)

# A key that is no port inside: what is accepted on its listener the portal answers itself (docs/reference/osworld.md).
FACE = 0
_LOOPBACK = "127.0.0.1"
_BACKLOG = 512
_MOST_PER_WORKSPACE = 64
_NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})


@dataclass(frozen=True)
class PortRequest:
    """`container`: the port inside the workspace, or FACE. `host`: the wanted port of the host, None for a free one. `local`: on the host's loopback only."""

    container: int
    host: int | None = None
    local: bool = False


@dataclass
class PublishedPort:
    """`listener` is None while something else still holds the host port (after a restart of the engine)."""

    workspace: str
    container: int
    host: int
    listener: socket.socket | None
    local: bool = False

    def close(self) -> None:
        if self.listener is not None:
            # shutdown() ends the listening itself: a copy of the descriptor in the stream process must not keep the port open.
            with contextlib.suppress(OSError):
                self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()
            self.listener = None


def check_port(value: object, what: str) -> int:
    """The port number. Raises BadRequest."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65535:
        raise BadRequest(f"{what} must be a number from 1 to 65535, not {value!r}")
    return value


def _check_request(request: PortRequest) -> None:
    """A face is on the loopback or nowhere. Raises BadRequest."""
    if not request.local or request.container != FACE or isinstance(request.container, bool):
        check_port(request.container, "the container port")
    if request.host is not None:
        check_port(request.host, "the host port")


def bind_listener(address: str, port: int) -> socket.socket:
    """A non-blocking listening TCP socket; `::` takes IPv4 as well, and is 0.0.0.0 on a host without IPv6. Raises OSError."""
    if ":" in address:
        try:
            return _bind(socket.AF_INET6, address, port)
        except OSError as error:
            if error.errno not in _NO_IPV6 or address != "::":
                raise
        address = "0.0.0.0"
    return _bind(socket.AF_INET, address, port)


def _bind(family: int, address: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Old connections in TIME_WAIT may not block the port after a restart.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((address, port))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


class PortTable:
    """Every published port of one engine. Methods take well under a millisecond and do not wait."""

    def __init__(self, settings: NetworkSettings, record: Path) -> None:
        self._settings = settings
        self._record = record
        self._by_workspace: dict[str, dict[int, PublishedPort]] = {}
        self._released: dict[int, float] = {}
        span = settings.port_last - settings.port_first + 1
        self._next = settings.port_first + random.randrange(span)

    def load(self) -> None:
        """Read which ports an earlier engine gave back lately."""
        try:
            found = json.loads(self._record.read_bytes()[:1_000_000])
            now = time.time()
            # A clock set back must not lock a port for longer than one quarantine.
            self._released = {int(port): min(float(at), now) for port, at in found.items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, AttributeError, TypeError) as error:
            log.warning("cannot read %s, starting without it: %s", self._record, error)

    def allocate(self, workspace: str, requests: Sequence[PortRequest]) -> dict[int, int]:
        """Bind a host port for each request, all or none; container port to host port.

        Raises BadRequest, Conflict, LimitReached.
        """
        self._check(workspace, requests)
        made: dict[int, PublishedPort] = {}
        try:
            for request in requests:
                port = self._bound(workspace, request)
                made[request.container] = port
                self._by_workspace.setdefault(workspace, {})[request.container] = port
        except BaseException:
            for port in made.values():
                port.close()
            self._by_workspace.pop(workspace, None)
            raise
        self._by_workspace.setdefault(workspace, {})
        return self.ports(workspace)

    def add(self, workspace: str, request: PortRequest) -> int:
        """Publish one more port of a workspace; its host port. One that is published already stays where it is.

        Raises BadRequest, Conflict, LimitReached.
        """
        _check_request(request)
        ports = self._by_workspace.setdefault(workspace, {})
        existing = ports.get(request.container)
        if existing is not None:
            if request.host not in (None, existing.host):
                raise Conflict(f"port {request.container} of {workspace} is published at {existing.host} already; unpublish it first")
            return existing.host
        if len(ports) >= _MOST_PER_WORKSPACE:
            raise LimitReached(f"{workspace} has {len(ports)} published ports; at most {_MOST_PER_WORKSPACE} are allowed")
        made = self._bound(workspace, request)
        ports[request.container] = made
        return made.host

    def remove(self, workspace: str, container: int) -> None:
        """Close one published port. Raises NotFound."""
        port = self._by_workspace.get(workspace, {}).pop(container, None)
        if port is None:
            raise NotFound(f"{workspace} does not publish port {container}")
        port.close()
        self._released[port.host] = time.time()
        self._save()

    def _check(self, workspace: str, requests: Sequence[PortRequest]) -> None:
        if workspace in self._by_workspace:
            raise Conflict(f"{workspace} has its published ports already")
        if len(requests) > _MOST_PER_WORKSPACE:
            raise LimitReached(f"{len(requests)} published ports for {workspace}; at most {_MOST_PER_WORKSPACE} are allowed")
        seen: set[int] = set()
        for request in requests:
            _check_request(request)
            if request.container in seen:
                raise BadRequest(f"container port {request.container} is named twice")
            seen.add(request.container)

    def restore(self, workspace: str, container: int, host: int, local: bool = False) -> bool:
        """After a restart: take the same host port again. False while something holds it; `retry` tries again."""
        _check_request(PortRequest(container, host, local))
        port = PublishedPort(workspace, container, host, None, local)
        self._by_workspace.setdefault(workspace, {})[container] = port
        return self._try(port)

    def waiting(self) -> list[PublishedPort]:
        """Restored ports that are not bound yet."""
        return [port for ports in self._by_workspace.values() for port in ports.values() if port.listener is None]

    def retry(self) -> list[PublishedPort]:
        """Try to bind what `waiting` lists; what still waits."""
        return [port for port in self.waiting() if not self._try(port)]

    def _try(self, port: PublishedPort) -> bool:
        try:
            port.listener = bind_listener(self._address(port.local), port.host)
        except OSError as error:
            log.debug("port %d of %s cannot be bound yet: %s", port.host, port.workspace, error)
            return False
        return True

    def release(self, workspace: str) -> None:
        """Close the ports of a workspace: new connections are refused from now on."""
        ports = self._by_workspace.pop(workspace, {})
        for port in ports.values():
            port.close()
            self._released[port.host] = time.time()
        if ports:
            self._save()

    def listener(self, workspace: str, container: int) -> socket.socket:
        """The listening socket, still owned by the table. Raises NotFound, Unavailable."""
        port = self._by_workspace.get(workspace, {}).get(container)
        if port is None:
            raise NotFound(f"{workspace} does not publish port {container}")
        if port.listener is None:
            raise Unavailable(f"host port {port.host} of {workspace} is held by another program; it is tried again")
        return port.listener

    def ports(self, workspace: str) -> dict[int, int]:
        return {port.container: port.host for port in self._by_workspace.get(workspace, {}).values()}

    def close(self) -> None:
        """Close every listener without giving the ports back: the next engine restores them."""
        for ports in self._by_workspace.values():
            for port in ports.values():
                if port.listener is not None:
                    # No shutdown(): the stream process may go on serving while the engine restarts.
                    port.listener.close()
                    port.listener = None
        self._by_workspace.clear()

    def _owner(self, host: int) -> PublishedPort | None:
        for ports in self._by_workspace.values():
            for port in ports.values():
                if port.host == host:
                    return port
        return None

    def _address(self, local: bool) -> str:
        return _LOOPBACK if local else self._settings.publish_address

    def _bound(self, workspace: str, request: PortRequest) -> PublishedPort:
        if request.host is None:
            return self._any(workspace, request.container, request.local)
        return self._one(workspace, request.container, request.host, request.local)

    def _one(self, workspace: str, container: int, host: int, local: bool) -> PublishedPort:
        """The very port that was asked for. The quarantine is for our own choice only: who names a port knows it."""
        owner = self._owner(host)
        if owner is not None:
            raise Conflict(f"host port {host} is port {owner.container} of {owner.workspace}; choose another or leave it out")
        try:
            return PublishedPort(workspace, container, host, bind_listener(self._address(local), host), local)
        except OSError as error:
            raise _bind_error(error, host) from error

    def _any(self, workspace: str, container: int, local: bool) -> PublishedPort:
        """The next free port of the range; going round makes reuse rare even after the quarantine."""
        first, last = self._settings.port_first, self._settings.port_last
        now = time.time()
        self._forget_old(now)
        for _ in range(last - first + 1):
            candidate = self._next
            self._next = first if candidate >= last else candidate + 1
            if candidate in self._released or self._owner(candidate) is not None:
                continue
            try:
                return PublishedPort(workspace, container, candidate, bind_listener(self._address(local), candidate), local)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise _bind_error(error, candidate) from error
        raise LimitReached(f"no free host port from {first} to {last} for {workspace}; remove a workspace or wait a minute")

    def _forget_old(self, now: float) -> None:
        limit = now - self._settings.port_quarantine
        # A time in the future (the clock was set back) counts as old after the same span.
        self._released = {port: min(at, now) for port, at in self._released.items() if min(at, now) > limit}

    def _save(self) -> None:
        self._forget_old(time.time())
        temporary = self._record.with_suffix(".new")
        try:
            temporary.write_text(json.dumps(self._released))
            os.replace(temporary, self._record)
        except OSError as error:
            log.warning("cannot record released ports in %s: %s", self._record, error)


def _bind_error(error: OSError, host: int) -> EngineError:
    if error.errno == errno.EADDRINUSE:
        return Conflict(f"host port {host} is in use by another program on this host; choose another or leave it out")
    if error.errno == errno.EACCES:
        return Conflict(f"host port {host} may not be bound: {error.strerror}")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return LimitReached(f"no descriptor left for host port {host}; raise the limit of open files")
    return Internal(f"cannot bind host port {host}: {error}")
