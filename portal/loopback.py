"""Servers of single workspaces on the host's loopback, for clients that can show no token."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Any

from aiohttp import web

# Whoever is on the host may connect, and each connection is a descriptor of the portal.
MOST_CONNECTIONS = 64
_ACCEPT_PAUSE = 0.2
_PASSING = frozenset({errno.ECONNABORTED, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Loopback:
    """One workspace's application and the listener that leads to it, which may come and go.

    `on_dead` is called when the listener was shut down by somebody else.
    """

    def __init__(self, workspace: str, runner: web.AppRunner, on_dead: Callable[[], None]) -> None:
        self.workspace = workspace
        self._runner = runner
        self._on_dead = on_dead
        self._listener: socket.socket | None = None
        self._connecting: set[asyncio.Task[Any]] = set()

    @property
    def listening(self) -> bool:
        """Whether there is a listener."""
        return self._listener is not None

    def listen(self, listener: socket.socket) -> None:
        """Accept on it from now on; it is closed with this."""
        listener.setblocking(False)
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept)

    def stop_listening(self) -> None:
        """Give the listener back: a new engine cannot bind a port that is still held here."""
        listener, self._listener = self._listener, None
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()

    async def close(self) -> None:
        """Listen no more, and end what is connected."""
        self.stop_listening()
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        await self._runner.cleanup()

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._listener is not None
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            loop.remove_reader(self._listener)
            if error.errno in _PASSING:
                loop.call_later(_ACCEPT_PAUSE, self._watch)
                return
            # EINVAL: the engine shut the listener down, because the workspace goes or has no such server any more.
            self.stop_listening()
            self._on_dead()
            return
        assert self._runner.server is not None
        if len(self._connecting) + len(self._runner.server.connections) >= MOST_CONNECTIONS:
            client.close()
            return
        client.setblocking(False)
        task = loop.create_task(loop.connect_accepted_socket(self._runner.server, client))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def _watch(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)
