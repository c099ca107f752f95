"""Published ports: accept on the host's listeners that the engine opened, connect inside the workspace, relay bytes."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

from engine.errors import EngineError
from engine.network.relay import relay_sockets
from portal.listeners import Listeners, Server
from portal.stream.workspaces import Descriptors

_log = logging.getLogger(__name__)

# A workspace that accepts without reading must not eat the process's descriptors: each connection costs two.
_CONNECTIONS_PER_PORT = 512

# Workspace, container port, host port.
Key = tuple[str, int, int]


class PublishedPort(Server):
    """One published port: every client is tied to a connection inside."""

    def __init__(self, key: Key, descriptors: Descriptors, on_dead: Callable[[], None]) -> None:
        super().__init__(on_dead)
        self.key = key
        self._descriptors = descriptors
        self._connections: set[asyncio.Task[None]] = set()
        self.connected = 0

    async def close(self) -> None:
        """End everything; connections are reset."""
        self.stop_listening()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _full(self) -> bool:
        return len(self._connections) >= _CONNECTIONS_PER_PORT

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
        self._listeners: Listeners[Key, PublishedPort] = Listeners(self._make, lambda key: descriptors.listener(key[0], key[1]))

    def start(self) -> None:
        self._listeners.start()

    async def stop(self) -> None:
        await self._listeners.close()

    def want(self, workspaces: dict[str, dict[str, Any]]) -> None:
        """Set what has to be open. A host port that changed counts as another one."""
        self._listeners.want(
            {
                (workspace, int(container), int(host))
                for workspace, item in workspaces.items()
                for container, host in (item.get("ports") or {}).items()
                if host
            }
        )

    def engine_lost(self) -> None:
        """The engine that owned the listeners is gone: give them back and fetch new ones. Connections go on."""
        self._listeners.engine_lost()

    def counts(self) -> dict[str, int]:
        ports = self._listeners.servers.values()
        return {
            "ports": sum(port.listening for port in ports),
            "ports_wanted": len(self._listeners.wanted),
            "port_connections": sum(port.connected for port in ports),
        }

    async def _make(self, key: Key, on_dead: Callable[[], None]) -> PublishedPort:
        return PublishedPort(key, self._descriptors, on_dead)
