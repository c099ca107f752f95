"""An ASGI application behind one aiohttp route: the request as a scope, its answer as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from aiohttp import web

Message = MutableMapping[str, Any]
Application = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]

# Of one connection, not of what is said: the server behind us has its own, and two of them would be one too many.
_NOT_PASSED_ON = {"connection", "content-length", "date", "keep-alive", "server", "transfer-encoding"}


async def answer(application: Application, request: web.Request, body: bytes) -> web.StreamResponse:
    """What the application answers to `request`, whose body was read. A client that hangs up is told to the application, and its answer dropped.

    Raises whatever the application does before it began to answer.
    """
    exchange = _Exchange(request, body)
    try:
        await application(_scope(request), exchange.receive, exchange.send)
    except Exception:
        if exchange.response is None:
            raise
        # Half an answer cannot be taken back: a connection that breaks off says that it is not all.
        if request.transport is not None:
            request.transport.abort()
        raise
    if exchange.response is None:
        raise RuntimeError("the application did not answer")
    return exchange.response


class _Exchange:
    """One request and its answer."""

    def __init__(self, request: web.Request, body: bytes) -> None:
        self._request = request
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        self.response: web.StreamResponse | None = None

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if self._gone.is_set():
            return
        try:
            if message["type"] == "http.response.start":
                self.response = web.StreamResponse(status=message["status"])
                for name, value in message.get("headers", ()):
                    if name.decode("latin-1").lower() not in _NOT_PASSED_ON:
                        self.response.headers.add(name.decode("latin-1"), value.decode("latin-1"))
                await self.response.prepare(self._request)
            elif message["type"] == "http.response.body" and self.response is not None:
                await self.response.write(message.get("body", b""))
                if not message.get("more_body", False):
                    await self.response.write_eof()
        except ConnectionError:
            self._gone.set()


def _scope(request: web.Request) -> Message:
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": request.method, "scheme": "https", "path": request.path,
        "raw_path": request.path.encode(), "query_string": request.rel_url.raw_query_string.encode(), "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.raw_headers], "client": None, "server": None,
    }  # fmt: skip
