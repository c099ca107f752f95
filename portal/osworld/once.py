"""Carries out once what a client asks for again because the connection broke before it had its answer.

OSWorld's client sends no key: after any broken connection it sends the same bytes again, five seconds later, up to three times. But the same bytes
may also be meant twice: a second click at the same place. So only an answer that did not go out is given to a repetition.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

# The client comes back after 5 s; between its last two tries lie two such pauses and what it waits for connections.
_KEPT_SECONDS = 60.0
_MOST_KEPT = 32


@dataclass
class _Call:
    task: asyncio.Task[web.Response]
    request: web.Request
    delivered: bool = False
    ended: float = 0.0

    @property
    def lost(self) -> bool:
        """Whether its client has gone without an answer."""
        return not self.delivered and _gone(self.request)


class Once:
    """The requests of one workspace's clients."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls: dict[str, _Call] = {}

    async def answer(self, request: web.Request, body: bytes, work: Callable[[], Awaitable[web.Response]]) -> web.StreamResponse:
        """Send the answer of `work`, or of the same request's work whose answer nobody got. The work goes on when its client goes."""
        self._forget_old()
        key = hashlib.sha256(request.path.encode() + b"\0" + body).hexdigest()
        call = self._calls.get(key)
        if call is not None and call.lost:
            call.request = request
        else:
            call = _Call(asyncio.ensure_future(work()), request)
            # Not where it is waited for: who waits may go first.
            call.task.add_done_callback(functools.partial(self._over, call))
            self._calls[key] = call
        made = await asyncio.shield(call.task)
        # A response belongs to the request that it answers: each client gets one of its own.
        response = web.Response(body=made.body, status=made.status, content_type=made.content_type)
        await response.prepare(request)
        await response.write_eof()
        if not _gone(request):
            call.delivered = True
            if self._calls.get(key) is call:
                del self._calls[key]
        return response

    async def close(self) -> None:
        for call in self._calls.values():
            call.task.cancel()
        await asyncio.gather(*(call.task for call in self._calls.values()), return_exceptions=True)

    def _over(self, call: _Call, task: asyncio.Task[web.Response]) -> None:
        call.ended = self._clock()
        if not task.cancelled():
            task.exception()  # told to whoever waited; nobody may be left

    def _forget_old(self) -> None:
        now = self._clock()
        for key, call in list(self._calls.items()):
            if call.task.done() and (now - call.ended > _KEPT_SECONDS or len(self._calls) > _MOST_KEPT):
                del self._calls[key]


def _gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()
