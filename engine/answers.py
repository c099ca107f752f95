"""What every answer over HTTP has, the engine's and the portal's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

# What answers call themselves: no version, which would tell a stranger what to try.
SERVER = "TClone"
# As nginx notes it.
_CLIENT_GONE = 499


@web.middleware
async def ended_lines(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
    """End JSON with a newline: on a terminal the next prompt has a line of its own, and `read` of a shell finds the end."""
    response = await handler(request)
    if isinstance(response, web.Response) and not response.prepared and response.content_type == "application/json":
        body = response.body
        if isinstance(body, bytes) and body and not body.endswith(b"\n"):
            response.body = body + b"\n"
    return response


async def say_server(_: web.Request, response: web.StreamResponse) -> None:
    """A signal for what is about to be sent: the library's own name and version are not."""
    response.headers["Server"] = SERVER


def left_alone(request: web.Request, error: Exception) -> web.Response | None:
    """What to answer in place of raising an error that is no defect: the client has gone in the midst of its answer. None for any other.

    Raised, aiohttp would write it into the log, with a traceback. Nobody gets the answer.
    """
    gone = isinstance(error, ConnectionError) and (request.transport is None or request.transport.is_closing())
    return web.Response(status=_CLIENT_GONE) if gone else None
