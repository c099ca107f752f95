"""WebSockets that the portal itself serves: prepared, greeted by their first message, closed when the portal stops."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from engine.errors import EngineError
from portal.errors import LoginNeeded, PortalError, TooMany, refusal_body

_HELLO_SECONDS = 5.0
_PING_SECONDS = 20.0
_MOST_OPEN = 16

Serve = Callable[[web.Request, web.WebSocketResponse, dict[str, Any]], Awaitable[None]]


class Sockets:
    """The open sockets of one kind. `longest`: bytes that a client's message may have; `compress`: whether it may ask for compression."""

    def __init__(self, longest: int, compress: bool = True) -> None:
        self._longest = longest
        self._compress = compress
        self._open: set[web.WebSocketResponse] = set()

    def handler(self, serve: Serve) -> Callable[[web.Request], Awaitable[web.WebSocketResponse]]:
        """What takes each socket of a route and hands it to `serve` with its hello, which has the session key; one without a hello is closed.

        What `serve` raises is the last message: {"type":"ended"} for LoginNeeded, {"type":"error","error":{…}} for other refusals. That the client
        has gone is no error.
        """

        async def handle(request: web.Request) -> web.WebSocketResponse:
            return await self._handle(request, serve)

        return handle

    async def _handle(self, request: web.Request, serve: Serve) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(heartbeat=_PING_SECONDS, max_msg_size=self._longest, compress=self._compress)
        await socket.prepare(request)
        self._open.add(socket)
        try:
            hello = await _hello_of(socket)
            if hello is None:
                await socket.close(code=WSCloseCode.POLICY_VIOLATION, message=b"the first message must be a hello")
            else:
                await _served(serve, request, socket, hello)
        except ConnectionError:
            pass
        finally:
            self._open.discard(socket)
        return socket

    async def close(self) -> None:
        """Tell every client that this process stops; they come back when there is one again."""
        for socket in list(self._open):
            with contextlib.suppress(ConnectionError, RuntimeError):
                await socket.close(code=WSCloseCode.SERVICE_RESTART, message=b"the portal restarts")


class Limited:
    """How many of a kind are open for each of something (a workspace, a user): `most`. `noun`: what a refusal calls one."""

    def __init__(self, noun: str, most: int = _MOST_OPEN) -> None:
        self._noun = noun
        self._most = most
        self._open: Counter[str] = Counter()

    @contextlib.contextmanager
    def another(self, whose: str) -> Iterator[None]:
        """Count one while the block lasts. Raises TooMany."""
        if self._open[whose] >= self._most:
            raise TooMany(f"{self._most} {self._noun}s of {whose} are open; close one")
        self._open[whose] += 1
        try:
            yield
        finally:
            self._open[whose] -= 1
            if not self._open[whose]:
                del self._open[whose]


@contextlib.asynccontextmanager
async def side_by_side(*work: Coroutine[Any, Any, Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Run all until the first of them ends; what still runs when the block is left is cancelled."""
    tasks = [asyncio.create_task(part) for part in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def object_in(message: WSMessage) -> dict[str, Any]:
    """The JSON object in a text message; empty for anything else."""
    if message.type is not WSMsgType.TEXT:
        return {}
    try:
        value = json.loads(message.data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


async def last(socket: web.WebSocketResponse, message: dict[str, Any]) -> None:
    """Send a message after which there is nothing more to say."""
    await socket.send_json(message)
    await socket.close()


async def _served(serve: Serve, request: web.Request, socket: web.WebSocketResponse, hello: dict[str, Any]) -> None:
    try:
        await serve(request, socket, hello)
    except LoginNeeded:
        await last(socket, {"type": "ended"})
    except (EngineError, PortalError) as error:
        await last(socket, {"type": "error", **refusal_body(error)})


async def _hello_of(socket: web.WebSocketResponse) -> dict[str, Any] | None:
    """A socket's first message; None when it is something else or does not come."""
    try:
        message = await socket.receive(timeout=_HELLO_SECONDS)
    except TimeoutError:
        return None
    hello = object_in(message)
    return hello if hello.get("type") == "hello" else None
