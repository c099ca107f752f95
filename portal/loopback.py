"""Servers of single workspaces on the host's loopback, for clients that can show no token."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from aiohttp import web

from portal.listeners import Server

# Whoever is on the host may connect, and each connection is a descriptor of the portal.
MOST_CONNECTIONS = 64


class Loopback(Server):
    """One workspace's application and the listener that leads to it. More than MOST_CONNECTIONS are closed at once."""

    def __init__(self, runner: web.AppRunner, on_dead: Callable[[], None]) -> None:
        super().__init__(on_dead)
        self._runner = runner
        self._connecting: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        self.stop_listening()
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        await self._runner.cleanup()

    def _accepted(self, client: socket.socket) -> None:
        assert self._runner.server is not None
        if len(self._connecting) + len(self._runner.server.connections) >= MOST_CONNECTIONS:
            client.close()
            return
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        task = loop.create_task(loop.connect_accepted_socket(self._runner.server, client))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
