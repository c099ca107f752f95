"""What listens on ports of the host that the engine opened: kept equal to what the workspaces are to have, also when the engine starts anew."""

from __future__ import annotations

import abc
import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Set
from typing import Generic, TypeVar

from engine.errors import EngineError
from portal.accepting import Acceptor

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5


class Server(abc.ABC):
    """What answers on one listener. The listener comes and goes with the engine; connections stay until their own end or `close()`.

    `on_dead` is called when the listener was shut down by somebody else.
    """

    def __init__(self, on_dead: Callable[[], None]) -> None:
        self._acceptor = Acceptor(self._accepted, on_dead, self._full)

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

    @abc.abstractmethod
    async def close(self) -> None:
        """Listen no more, and end what is connected."""

    @abc.abstractmethod
    def _accepted(self, client: socket.socket) -> None:
        """Take a client that has connected."""

    def _full(self) -> bool:
        """Whether nobody more is taken for now: others wait in the listener's queue."""
        return False


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
