"""Published ports: accept on the host's listeners that the engine opened, connect inside the workspace, relay bytes."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

from engine.errors import EngineError
from engine.network.relay import relay_sockets
from portal.accepting import Acceptor
from portal.stream.workspaces import Descriptors

_log = logging.getLogger(__name__)

# A workspace that accepts without reading must not eat the process's descriptors: each connection costs two.
_CONNECTIONS_PER_PORT = 512
_RETRY_SECONDS = 0.5

# Workspace, container port, host port.
Key = tuple[str, int, int]


class PublishedPort:
    """One published port. Its listener comes and goes with the engine; its connections stay until their own end or `close()`."""

    def __init__(self, key: Key, descriptors: Descriptors, on_dead: Callable[[], None]) -> None:
        self.key = key
        self._descriptors = descriptors
        self._connections: set[asyncio.Task[None]] = set()
        self._acceptor = Acceptor(self._accepted, on_dead, lambda: len(self._connections) >= _CONNECTIONS_PER_PORT)
        self.connected = 0

    @property
    def listening(self) -> bool:
        return self._acceptor.listening

    async def listen(self) -> None:
        """Fetch the listener from the engine and begin to accept. Raises EngineError, OSError."""
        self._acceptor.listen(await self._descriptors.listener(self.key[0], self.key[1]))

    def stop_listening(self) -> None:
        """Give the listener back; connections go on."""
        self._acceptor.stop()

    async def close(self) -> None:
        """End everything; connections are reset."""
        self.stop_listening()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accepted(self, client: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(client))
        self._connections.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        self._acceptor.watch()
        if not task.cancelled() and task.exception() is not None:
            _log.error("port %d of %s", self.key[1], self.key[0], exc_info=task.exception())

    async def _serve(self, client: socket.socket) -> None:
        """Tie a client to the server inside. Without a server the client is closed at once, as it would be locally."""
        client.setblocking(False)
        try:
            upstream = await self._descriptors.connect(self.key[0], self.key[1])
        except (EngineError, OSError, TimeoutError) as exc:
            _log.debug("port %d of %s: %s", self.key[1], self.key[0], exc)
            client.close()
            return
        except BaseException:
            client.close()
            raise
        upstream.setblocking(False)
        self.connected += 1
        try:
            await relay_sockets(client, upstream)
        except OSError as exc:
            _log.debug("port %d of %s: %s", self.key[1], self.key[0], exc)
        finally:
            self.connected -= 1


class PublishedPorts:
    """Keeps the listeners equal to what the workspaces publish."""

    def __init__(self, descriptors: Descriptors) -> None:
        self._descriptors = descriptors
        self._ports: dict[Key, PublishedPort] = {}
        self._wanted: set[Key] = set()
        self._engine_lost = False
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._reconcile_for_ever())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*(port.close() for port in self._ports.values()))
        self._ports.clear()

    def want(self, workspaces: dict[str, dict[str, Any]]) -> None:
        """Set what has to be open. A host port that changed counts as another one."""
        wanted = {
            (workspace, int(container), int(host))
            for workspace, item in workspaces.items()
            for container, host in (item.get("ports") or {}).items()
            if host
        }
        if wanted != self._wanted:
            self._wanted = wanted
            self._changed.set()

    def engine_lost(self) -> None:
        """The engine that owned the listeners is gone: give them back and fetch new ones. Connections go on."""
        self._engine_lost = True
        self._changed.set()

    def counts(self) -> dict[str, int]:
        return {
            "ports": sum(port.listening for port in self._ports.values()),
            "ports_wanted": len(self._wanted),
            "port_connections": sum(port.connected for port in self._ports.values()),
        }

    async def _reconcile_for_ever(self) -> None:
        while True:
            self._changed.clear()
            complete = await self._reconcile()
            try:
                await asyncio.wait_for(self._changed.wait(), None if complete else _RETRY_SECONDS)
            except TimeoutError:
                continue

    async def _reconcile(self) -> bool:
        """Close what is not wanted, open what is missing. False when something has to be tried again."""
        if self._engine_lost:
            self._engine_lost = False
            for port in self._ports.values():
                port.stop_listening()
        unwanted = [self._ports.pop(key) for key in self._ports.keys() - self._wanted]
        await asyncio.gather(*(port.close() for port in unwanted))
        for key in self._wanted - self._ports.keys():
            self._ports[key] = PublishedPort(key, self._descriptors, self._changed.set)
        complete = True
        for port in list(self._ports.values()):
            if port.listening:
                continue
            try:
                await port.listen()
            except (EngineError, OSError, TimeoutError) as exc:
                _log.debug("listener of port %d of %s: %s", port.key[1], port.key[0], exc)
                complete = False
        return complete
