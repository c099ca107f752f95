"""`Network`: everything the engine does with the network of workspaces, in one object."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from engine import syscalls
from engine.config import Config
from engine.errors import BadRequest, Conflict, EngineError, Internal, LimitReached, NotFound
from engine.network import namespace as namespaces
from engine.network.errors import ConnectError
from engine.network.fdserver import FdServer
from engine.network.firewall import ruleset
from engine.network.gate import Budget, Gate, Listeners
from engine.network.listening import TcpListener, listening
from engine.network.namespace import NetworkNamespace
from engine.network.policy import HostAddresses, Level, Policy, read_local_routes
from engine.network.policy import Network as IpNetwork
from engine.network.pool import NamespacePool, Spare, make_spare
from engine.network.ports import PortRequest, PortTable, check_port
from engine.network.settings import ADDRESS, NetworkSettings
from engine.threads import in_thread

log = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_PORTS_EVERY = 0.25
_COMPLAIN_AFTER = 10.0
# As much as the unit for systemd says.
_OPEN_FILES = 1 << 20
# Servers listen on one of these; the first is by far the most usual.
_INSIDE = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET, ADDRESS))


@dataclass(frozen=True)
class NetworkHandle:
    """`path`: for `{"type":"network","path":…}` in an OCI config (valid while this engine process lives; it works from any
    mount namespace). `ports`: container port to host port."""

    path: str
    ports: dict[int, int]


@dataclass
class _Entry:
    namespace: NetworkNamespace
    gate: Gate
    gate_works: bool = False


class Network:
    """One engine's workspaces' networks. Every method but `listener` and `ports` is a coroutine; all errors are EngineError."""

    def __init__(self, config: Config, settings: NetworkSettings | None = None) -> None:
        self._config = config
        self._settings = settings or NetworkSettings()
        self._directory = config.run / "netns"
        self._entries: dict[str, _Entry] = {}
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        self._policy = Policy(HostAddresses(self._read_host_networks), self._settings.exempt)
        self._ports = PortTable(self._settings, config.run / "released-ports.json")
        self._budget = Budget(self._settings.connections_total)
        self._fd_server = FdServer(config.fd_socket, config.portal_user, self.connect, self.listener)
        self._holder = -1
        self._egress = -1
        self._pool = NamespacePool(self._settings.spares, lambda: make_spare(self._holder))
        self._retrying: asyncio.Task[None] | None = None
        # Making namespaces takes tens of milliseconds and must not hold up sockets for the desktop streams.
        self._makers: ThreadPoolExecutor | None = None
        self._sockets: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        """Start: makes run directories, raises the soft limit of open files, opens `config.fd_socket`."""
        _raise_limit()
        self._makers = ThreadPoolExecutor(4, thread_name_prefix="network")
        self._sockets = ThreadPoolExecutor(2, thread_name_prefix="network-socket")
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._ports.load()
            if self._settings.egress_namespace is not None:
                self._egress = os.open(self._settings.egress_namespace, os.O_RDONLY | os.O_CLOEXEC)
            self._holder = await self._make(namespaces.open_holder, self._directory, undo=os.close)
            await self._fd_server.start()
            self._pool.start(self._makers)
        except OSError as error:
            await self.close()
            raise Internal(f"cannot start the network: {error}") from error
        except BaseException:
            await self.close()
            raise

    async def create(self, workspace_id: str, policy: str = "open", ports: Sequence[PortRequest] = ()) -> NetworkHandle:
        """Make namespace, gate and published ports of a new workspace; all or nothing.

        Raises Conflict, LimitReached, BadRequest.
        """
        level = Level.parse(policy)
        namespaces.check_id(workspace_id)
        async with self._exclusive(workspace_id):
            if workspace_id in self._entries:
                raise Conflict(f"{workspace_id} has a network already")
            self._ports.allocate(workspace_id, ports)
            try:
                await self._create_namespace(workspace_id, level)
            except BaseException:
                self._ports.release(workspace_id)
                raise
            return self._handle(workspace_id)

    async def publish(self, workspace_id: str, ports: Sequence[PortRequest]) -> dict[int, int]:
        """Publish ports of a workspace that has none yet (a branch is prepared before it is known whose it is); all or none.

        Raises NotFound, Conflict, LimitReached, BadRequest.
        """
        async with self._exclusive(workspace_id):
            self._entry(workspace_id)
            if self._ports.ports(workspace_id):
                raise Conflict(f"{workspace_id} has its published ports already")
            self._ports.release(workspace_id)
            return self._ports.allocate(workspace_id, ports)

    async def publish_one(self, workspace_id: str, port: PortRequest) -> int:
        """Publish one more port of a workspace; its host port. Raises NotFound, Conflict, LimitReached, BadRequest."""
        async with self._exclusive(workspace_id):
            self._entry(workspace_id)
            return self._ports.add(workspace_id, port)

    async def unpublish(self, workspace_id: str, container: int) -> None:
        """Close one published port; new connections are refused from now on. Raises NotFound."""
        async with self._exclusive(workspace_id):
            self._entry(workspace_id)
            self._ports.remove(workspace_id, container)

    async def tcp_listeners(self, workspace_id: str) -> list[TcpListener]:
        """What listens in a workspace's namespace, but for the engine's own gate. Raises NotFound."""
        entry = self._entry(workspace_id)
        own = entry.gate.inodes()
        return [item for item in await self._make(listening, entry.namespace) if item.inode not in own]

    async def adopt(self, workspace_id: str, policy: str, ports: Mapping[int, int], local: Collection[int] = ()) -> NetworkHandle:
        """After a restart: find the namespace again, make gate and listeners anew. Raises NotFound when the namespace is gone.

        A host port that something still holds (the stream process of the portal, for a moment) is tried again in the
        background; those of the container ports in `local` are on the host's loopback only. A gate that cannot be made leaves the workspace closed, and is tried again by `set_policy`.
        """
        level = Level.parse(policy)
        async with self._exclusive(workspace_id):
            if workspace_id in self._entries:
                return self._handle(workspace_id)
            found = await self._make(NetworkNamespace.open, self._directory, workspace_id, undo=NetworkNamespace.close)
            try:
                await self._start(found, level)
            except (EngineError, OSError) as error:
                log.error("%s has no way out: its gate cannot be made: %s", workspace_id, error)
                self._policy.set(workspace_id, level)
                self._entries[workspace_id] = _Entry(found, self._new_gate(found))
                with contextlib.suppress(EngineError):
                    await self._make(found.apply, ruleset(level, None))
            except BaseException:
                found.close()
                raise
            for container, host in ports.items():
                self._ports.restore(workspace_id, container, host, container in local)
            if self._ports.waiting() and self._retrying is None:
                self._retrying = asyncio.create_task(self._retry_ports(), name="published ports")
            return self._handle(workspace_id)

    async def destroy(self, workspace_id: str) -> None:
        """Close everything of a workspace; an unknown one is no error."""
        async with self._exclusive(workspace_id):
            self._ports.release(workspace_id)
            entry = self._entries.pop(workspace_id, None)
            self._policy.forget(workspace_id)
            if entry is not None:
                await entry.gate.stop()
                await self._make(entry.namespace.delete)
            elif workspace_id in namespaces.listed(self._directory):
                await self._make(namespaces.delete_path, self._directory, workspace_id)

    async def prune(self, keep: Collection[str]) -> list[str]:
        """Destroy what an earlier engine left for workspaces not in `keep`; the ids destroyed."""
        left = [name for name in namespaces.listed(self._directory) if name not in keep and name not in self._entries]
        for name in left:
            await self.destroy(name)
        return left

    async def set_policy(self, workspace_id: str, policy: str) -> None:
        """Change a workspace's egress at once; open connections that the new policy denies are reset."""
        level = Level.parse(policy)
        async with self._exclusive(workspace_id):
            entry = self._entry(workspace_id)
            # First the decision, then the rules: between the two the narrower of both holds.
            self._policy.set(workspace_id, level)
            if entry.gate_works:
                await entry.gate.refresh()
            else:
                await entry.gate.start()
                entry.gate_works = True

    async def connect(self, workspace_id: str, port: int) -> socket.socket:
        """A connected, non-blocking TCP socket to a server inside. Raises NotFound, ConnectError (refused, timeout)."""
        check_port(port, "the port")
        namespace = self._entry(workspace_id).namespace
        seconds = self._settings.connect_timeout
        try:
            async with asyncio.timeout(seconds):
                for family, address in _INSIDE:
                    found = await self._try_connect(namespace, family, address, port)
                    if found is not None:
                        return found
        except TimeoutError:
            raise ConnectError(f"port {port} of {workspace_id} did not answer within {seconds:g} s", "timeout") from None
        raise ConnectError(f"nothing listens on port {port} of {workspace_id}", "refused")

    def listener(self, workspace_id: str, port: int) -> socket.socket:
        """The listening host socket of container port `port`; the network's own. Raises NotFound, Unavailable."""
        return self._ports.listener(workspace_id, port)

    def ports(self, workspace_id: str) -> dict[int, int]:
        """Container port to host port of one workspace."""
        return self._ports.ports(workspace_id)

    async def close(self) -> None:
        """Stop serving. Namespaces stay, for the next engine to adopt."""
        await self._fd_server.stop()
        await self._pool.stop()
        if self._retrying is not None:
            self._retrying.cancel()
            await asyncio.gather(self._retrying, return_exceptions=True)
            self._retrying = None
        for entry in self._entries.values():
            await entry.gate.stop()
            entry.namespace.close()
        self._entries.clear()
        self._ports.close()
        for executor in (self._makers, self._sockets):
            if executor is not None:
                await asyncio.to_thread(executor.shutdown)
        for fd in (self._holder, self._egress):
            if fd >= 0:
                os.close(fd)
        self._holder = self._egress = -1
        if not namespaces.listed(self._directory):
            with contextlib.suppress(OSError):
                await asyncio.to_thread(namespaces.delete_holder, self._directory)

    # Parts

    def _entry(self, workspace_id: str) -> _Entry:
        try:
            return self._entries[workspace_id]
        except KeyError:
            raise NotFound(f"no workspace {workspace_id}; `tclone ls` lists them") from None

    def _handle(self, workspace_id: str) -> NetworkHandle:
        return NetworkHandle(self._entries[workspace_id].namespace.reference, self._ports.ports(workspace_id))

    def _new_gate(self, namespace: NetworkNamespace) -> Gate:
        assert self._makers is not None
        return Gate(namespace, self._policy, self._settings, self._budget, self._makers, self._host_socket)

    async def _create_namespace(self, workspace_id: str, level: Level) -> None:
        """A spare, or a new namespace when none is ready, becomes the workspace's; all or nothing."""
        spare = self._pool.take()
        if spare is None:
            spare = await self._make(make_spare, self._holder, undo=Spare.close)
        try:
            # Quick enough for the loop: one bind mount, about 0.1 ms.
            spare.namespace.keep(self._directory, workspace_id)
            await self._start(spare.namespace, level, spare.listeners)
        except BaseException as error:
            spare.listeners.close()
            await self._make(spare.namespace.delete)
            if isinstance(error, OSError):
                raise Internal(f"cannot keep the network namespace of {workspace_id}: {error}") from error
            raise

    async def _start(self, namespace: NetworkNamespace, level: Level, listeners: Listeners | None = None) -> None:
        """Gate and entry of a namespace; on failure neither is there."""
        gate = self._new_gate(namespace)
        self._policy.set(namespace.workspace_id, level)
        try:
            await gate.start(listeners)
        except BaseException as error:
            self._policy.forget(namespace.workspace_id)
            if isinstance(error, OSError):
                raise LimitReached(f"no gate for {namespace.workspace_id}: {error}") from error
            raise
        self._entries[namespace.workspace_id] = _Entry(namespace, gate, gate_works=True)

    async def _try_connect(self, namespace: NetworkNamespace, family: int, address: str, port: int) -> socket.socket | None:
        """None when nobody listens there."""
        loop = asyncio.get_running_loop()
        try:
            sock = await in_thread(lambda: namespace.socket(family, socket.SOCK_STREAM), self._sockets, discard=socket.socket.close)
        except OSError as error:
            raise LimitReached(f"no socket for {namespace.workspace_id}: {error}") from error
        try:
            await loop.sock_connect(sock, (address, port))
            # TCP connects a socket to itself when the kernel happens to choose the very port that it calls.
            if sock.getsockname() != sock.getpeername():
                return sock
        except OSError:
            pass
        except BaseException:
            sock.close()
            raise
        sock.close()
        return None

    async def _host_socket(self, family: int, kind: int) -> socket.socket:
        """A non-blocking socket for the outside."""
        if self._egress < 0:
            made = socket.socket(family, kind)
        else:
            made = await in_thread(lambda: syscalls.socket_in(self._egress, family, kind), self._sockets, discard=socket.socket.close)
        made.setblocking(False)
        return made

    def _read_host_networks(self) -> list[IpNetwork]:
        found = read_local_routes()
        if self._egress >= 0:
            with syscalls.namespace_of(self._egress, syscalls.CLONE_NEWNET, "net"):
                found += read_local_routes()
        return found

    async def _retry_ports(self) -> None:
        started = time.monotonic()
        complained = False
        while waiting := self._ports.retry():
            if not complained and time.monotonic() - started > _COMPLAIN_AFTER:
                complained = True
                for port in waiting:
                    log.warning("host port %d of %s is still held by another program", port.host, port.workspace)
            await asyncio.sleep(_RETRY_PORTS_EVERY)
        self._retrying = None

    async def _make(self, function: Callable[..., T], *arguments: object, undo: Callable[[T], None] | None = None) -> T:
        """Run a blocking function in a thread that may move between network namespaces; what came of a cancelled call goes to `undo`.

        OSError becomes Internal.
        """
        try:
            return await in_thread(functools.partial(function, *arguments), self._makers, discard=undo)
        except OSError as error:
            raise Internal(f"network: {error}") from error

    @contextlib.asynccontextmanager
    async def _exclusive(self, workspace_id: str) -> AsyncIterator[None]:
        """One operation at a time on each workspace."""
        if not isinstance(workspace_id, str):
            raise BadRequest("a workspace id is a string")
        lock, users = self._locks.get(workspace_id, (asyncio.Lock(), 0))
        self._locks[workspace_id] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[workspace_id]
            if users == 1:
                del self._locks[workspace_id]
            else:
                self._locks[workspace_id] = (lock, users - 1)


def _raise_limit() -> None:
    """A desktop's egress alone may hold 1024 descriptors, the usual soft limit, and a fork holds all open files of a workspace at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (max(hard, _OPEN_FILES), hard):
        # The hard limit itself is raised by root with CAP_SYS_RESOURCE alone, and never above fs.nr_open.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
            return
