"""What listens on ports of the host that the engine opened: kept equal to what the workspaces are to have, also when the engine starts anew."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Set
from typing import Generic, Protocol, TypeVar

from engine.errors import EngineError

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5


class Server(Protocol):
    """What answers on one listener. The listener comes and goes with the engine; connections stay until their own end or `close()`."""

    @property
    def listening(self) -> bool: ...

    def listen(self, listener: socket.socket) -> None: ...

    def stop_listening(self) -> None: ...

    async def close(self) -> None: ...


K = TypeVar("K")
S = TypeVar("S", bound=Server)


class Listeners(Generic[K, S]):
    """A server for each key that is wanted. `make` makes one, and is given what the server calls when its listener is shut down by somebody else;
    `fetch` gets the listener of a key from the engine, and raises EngineError, OSError, TimeoutError."""

    def __init__(self, make: Callable[[K, Callable[[], None]], Awaitable[S]], fetch: Callable[[K], Awaitable[socket.socket]]) -> None:
        self._make = make
        self._fetch = fetch
        self._servers: dict[K, S] = {}
        self._wanted: set[K] = set()
        self._lost = False
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def servers(self) -> Mapping[K, S]:
        """Those that there are, whether they listen or not."""
        return self._servers

    @property
    def wanted(self) -> Set[K]:
        """What was asked for last."""
        return self._wanted

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="listeners")

    async def close(self) -> None:
        """End everything, connections too."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*(server.close() for server in self._servers.values()))
        self._servers.clear()

    def want(self, keys: set[K]) -> None:
        """Set what has to be there; what is not in it any more is closed."""
        if keys != self._wanted:
            self._wanted = keys
            self._changed.set()

    def engine_lost(self) -> None:
        """The engine that owned the listeners is gone: give them back and fetch new ones. Connections go on."""
        self._lost = True
        self._changed.set()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            complete = await self._reconcile()
            try:
                await asyncio.wait_for(self._changed.wait(), None if complete else _RETRY_SECONDS)
            except TimeoutError:
                continue

    async def _reconcile(self) -> bool:
        """Close what is not wanted, open what is missing. False when something has to be tried again."""
        if self._lost:
            self._lost = False
            for server in self._servers.values():
                server.stop_listening()
        wanted = self._wanted
        await asyncio.gather(*(self._servers.pop(key).close() for key in self._servers.keys() - wanted))
        for key in wanted - self._servers.keys():
            self._servers[key] = await self._make(key, self._changed.set)
        complete = True
        for key, server in list(self._servers.items()):
            if not server.listening:
                complete &= await self._listen(key, server)
        return complete

    async def _listen(self, key: K, server: S) -> bool:
        """Whether it listens now."""
        try:
            server.listen(await self._fetch(key))
        except (EngineError, OSError, TimeoutError) as error:
            _log.debug("listener of %s: %s", key, error)
            return False
        return True
