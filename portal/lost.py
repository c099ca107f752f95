"""Carries out once what a client asks for again because the connection broke before it had its answer.

Some clients send no key. OSWorld's sends the same bytes again after any broken connection, five seconds later, up to three times; cua's sends them again by
its other way, up to three times. But the same bytes may also be meant twice: a second click at the same place. So only an answer that did not go out is
given to a repetition.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from aiohttp import web

from engine.errors import EngineError
from engine.waiting import seen
from portal.errors import NotStarted, PortalError

# OSWorld's client comes back after 5 s; between its last two tries lie two such pauses and what it waits for connections.
_KEPT_SECONDS = 60.0
_MOST_KEPT = 32  # as a rule

T = TypeVar("T")


@dataclass
class _Call(Generic[T]):
    task: asyncio.Task[T]
    request: web.Request
    delivered: bool = False
    ended: float = 0.0

    @property
    def lost(self) -> bool:
        """Whether its client has gone without an answer."""
        return not self.delivered and _gone(self.request)


class Lost(Generic[T]):
    """The requests of one workspace's clients, of which those count whose answers did not go out. `close` after the last."""

    def __init__(self, most: int = _MOST_KEPT, clock: Callable[[], float] = time.monotonic) -> None:
        """`most`: how many answers are kept."""
        self._most = most
        self._clock = clock
        self._calls: dict[str, _Call[T]] = {}

    @contextlib.asynccontextmanager
    async def answer(self, request: web.Request, asked: bytes, work: Callable[[], Awaitable[T]]) -> AsyncIterator[T]:
        """What `work` makes, or what the same request's work made (`asked`: all that it is known by) whose answer nobody got; to be sent in the block.

        Work goes on when its client goes.
        """
        self._forget_old()
        key = hashlib.sha256(asked).hexdigest()
        call = self._calls.get(key)
        if call is not None and call.lost:
            call.request = request
        else:
            call = _Call(asyncio.ensure_future(work()), request)
            # Not where it is waited for: who waits may go first.
            call.task.add_done_callback(functools.partial(self._over, call))
            self._calls[key] = call
        try:
            made = await asyncio.shield(call.task)
        except (PortalError, EngineError) as error:
            # Whoever tells of it does so elsewhere. Where nothing was done, the same may be asked again at once.
            if _was_refused(error):
                self._forget(key, call)
            raise
        yield made
        if not _gone(request):
            call.delivered = True
            self._forget(key, call)

    async def close(self) -> None:
        for call in self._calls.values():
            call.task.cancel()
        await asyncio.gather(*(call.task for call in self._calls.values()), return_exceptions=True)

    def _over(self, call: _Call[T], task: asyncio.Task[T]) -> None:
        call.ended = self._clock()
        seen(task)

    def _forget(self, key: str, call: _Call[T]) -> None:
        if self._calls.get(key) is call:
            del self._calls[key]

    def _forget_old(self) -> None:
        now = self._clock()
        for key, call in list(self._calls.items()):
            if call.task.done() and (now - call.ended > _KEPT_SECONDS or len(self._calls) > self._most):
                del self._calls[key]


def _was_refused(error: PortalError | EngineError) -> bool:
    """Whether it says that nothing was done; others (the engine went away, it took too long) leave that open."""
    return isinstance(error, NotStarted) or (error.status if isinstance(error, PortalError) else error.http_status) < 500


def _gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()
