"""One middleware tells the log, the figures and the traces of each request of control, and how it ended."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager

from aiohttp import web
from aiohttp.typedefs import Middleware

from portal.logs import Answer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
# Entered before a request is handed on and left after it; the answer's status is known then.
Watch = Callable[[web.Request, Answer], AbstractContextManager[object]]


def watched(*watches: Watch) -> Middleware:
    """The first of `watches` is the outermost. aiohttp's refusals come as exceptions; any other exception counts as 500."""

    @web.middleware
    async def watch(request: web.Request, handler: Handler) -> web.StreamResponse:
        answer = Answer()
        with contextlib.ExitStack() as stack:
            for each in watches:
                stack.enter_context(each(request, answer))
            try:
                response = await handler(request)
            except web.HTTPException as refusal:
                answer.status = refusal.status
                raise
            answer.status = response.status
            return response

    return watch
