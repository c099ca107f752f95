"""Servers of single workspaces on the host's loopback, for clients that can show no token."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from aiohttp import web

from portal.accepting import Acceptor

# Whoever is on the host may connect, and each connection is a descriptor of the portal.
MOST_CONNECTIONS = 64


class Loopback:
    """One workspace's application and the listener that leads to it, which may come and go.

    `on_dead` is called when the listener was shut down by somebody else.
    """

    def __init__(self, runner: web.AppRunner, on_dead: Callable[[], None]) -> None:
        self._runner = runner
        self._acceptor = Acceptor(self._accepted, on_dead)
        self._connecting: set[asyncio.Task[Any]] = set()

    @property
    def listening(self) -> bool:
        """Whether there is a listener."""
        return self._acceptor.listening

    def listen(self, listener: socket.socket) -> None:
        """Accept on it from now on; it is closed with this."""
        self._acceptor.listen(listener)

    def stop_listening(self) -> None:
        """Give the listener back; connections go on."""
        self._acceptor.stop()

    async def close(self) -> None:
        """Listen no more, and end what is connected."""
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
