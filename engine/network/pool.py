"""Spare network namespaces, made ahead: a namespace with its rules and listeners takes about 30 ms, most of it the kernel's
waiting for all CPUs when rules change; a spare takes about 1 ms, and eight branches want eight at once.

A spare is held by descriptors only. It has no name and no process, so an engine that dies leaves none behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from engine.errors import EngineError
from engine.network.firewall import ruleset
from engine.network.gate import Listeners, make_listeners
from engine.network.namespace import NetworkNamespace
from engine.network.policy import Level
from engine.threads import in_thread

log = logging.getLogger(__name__)

# Refilling waits until the launches and forks that emptied the pool are over, and again after a failure (seconds).
_CALM = 2.0
_AFTER_FAILURE = 30.0


@dataclass(frozen=True)
class Spare:
    """A namespace without a name, the gate's listeners in it, and the rules of level `open` in force."""

    namespace: NetworkNamespace
    listeners: Listeners

    def close(self) -> None:
        self.listeners.close()
        self.namespace.close()


def make_spare(holder: int) -> Spare:
    """Blocks for about 30 ms. Raises EngineError, OSError."""
    namespace = NetworkNamespace.make(holder)
    try:
        listeners = make_listeners(namespace)
        try:
            namespace.apply(ruleset(Level.OPEN, listeners.ports()))
        except BaseException:
            listeners.close()
            raise
    except BaseException:
        namespace.close()
        raise
    return Spare(namespace, listeners)


class NamespacePool:
    """Keeps `size` spares ready from `start` to `stop`."""

    def __init__(self, size: int, make: Callable[[], Spare]) -> None:
        self._size = size
        self._make = make
        self._spares: list[Spare] = []
        self._taken = asyncio.Event()
        self._refilling: asyncio.Task[None] | None = None
        self._executor: Executor | None = None

    def start(self, executor: Executor) -> None:
        self._executor = executor
        if self._size > 0:
            self._refilling = asyncio.create_task(self._refill(), name="network namespaces")

    def __len__(self) -> int:
        return len(self._spares)

    def take(self) -> Spare | None:
        """A spare, the caller's from now on; None when there is none ready."""
        self._taken.set()
        return self._spares.pop() if self._spares else None

    async def stop(self) -> None:
        if self._refilling is not None:
            self._refilling.cancel()
            await asyncio.gather(self._refilling, return_exceptions=True)
            self._refilling = None
        while self._spares:
            self._spares.pop().close()

    async def _refill(self) -> None:
        while True:
            while len(self._spares) < self._size:
                await self._until_calm()
                try:
                    await self._add_one()
                except (EngineError, OSError) as error:
                    log.warning("no network namespace can be made ahead: %s", error)
                    await asyncio.sleep(_AFTER_FAILURE)
            self._taken.clear()
            if len(self._spares) >= self._size:
                await self._taken.wait()

    async def _until_calm(self) -> None:
        while self._taken.is_set():
            self._taken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CALM):
                    await self._taken.wait()

    async def _add_one(self) -> None:
        self._spares.append(await in_thread(self._make, self._executor, discard=Spare.close))
