"""WebSockets that are joined to a command inside a workspace, which ends with them and with the right that opened them."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web

from engine.client import ExecSession
from engine.errors import EngineError
from portal.endings import Endings, until
from portal.errors import LoginNeeded, PortalError
from portal.identity import Identity
from portal.inside import Inside
from portal.live import hello_of
from portal.principal import Principal, Scope
from portal.routes import PREFIX, Router

_PING_SECONDS = 20.0
_LONGEST_MESSAGE = 1 << 20
_MOST_OPEN = 16
_LARGEST = 1000


class Joined(abc.ABC):
    """One kind of them, at `/workspaces/{id}/<word>`; `noun` is what refusals call one.

    First message of the client: {"type":"hello","key"?,…}, then what is typed and {"resize":[rows,cols]}. To the client: {"type":"ready"}, output,
    and last {"type":"exit","code"}, {"type":"error","code","message"} or {"type":"ended"} (the right is over).
    """

    word: str
    noun: str

    def __init__(self, inside: Inside, endings: Endings, identity: Identity, router: Router) -> None:
        self.inside = inside
        self._endings = endings
        self._identity = identity
        self._router = router
        self._open: Counter[str] = Counter()
        self._sockets: set[web.WebSocketResponse] = set()

    def routes(self) -> list[web.RouteDef]:
        return [web.get(f"{PREFIX}/workspaces/{{id}}/{self.word}", self._serve)]

    @abc.abstractmethod
    def opened(self, identity: str, principal: Principal, hello: dict[str, Any]) -> AbstractAsyncContextManager[ExecSession]:
        """The command that the client asks for. Raises Malformed, EngineError."""

    @abc.abstractmethod
    async def output(self, socket: web.WebSocketResponse, session: ExecSession) -> int:
        """Send everything that it writes; then its status. A client that reads slowly makes it wait."""

    @abc.abstractmethod
    async def typed(self, session: ExecSession, data: bytes) -> None:
        """Pass on what the client typed."""

    async def told(self, session: ExecSession, message: dict[str, Any]) -> None:
        """What the client says beside it."""
        size = size_of(message.get("resize"))
        if size is not None:
            await session.resize(*size)

    async def close(self) -> None:
        for socket in list(self._sockets):
            with contextlib.suppress(ConnectionError, RuntimeError):
                await socket.close(code=WSCloseCode.SERVICE_RESTART, message=b"the portal restarts")

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(heartbeat=_PING_SECONDS, max_msg_size=_LONGEST_MESSAGE)
        await socket.prepare(request)
        self._sockets.add(socket)
        try:
            hello = await hello_of(socket)
            if hello is None:
                await socket.close(code=WSCloseCode.POLICY_VIOLATION, message=b"the first message must be a hello")
                return socket
            await self._greeted(request, socket, hello)
        except ConnectionError:
            pass  # the client has gone
        finally:
            self._sockets.discard(socket)
        return socket

    async def _greeted(self, request: web.Request, socket: web.WebSocketResponse, hello: dict[str, Any]) -> None:
        try:
            principal = self._identity.of_socket(request, hello.get("key"))
            identity = self._router.admit(request, principal, Scope.CONTROL, acts=True)
            await self._session(socket, identity, principal, hello)
        except LoginNeeded:
            await _last(socket, {"type": "ended"})
        except (EngineError, PortalError) as error:
            more = error.more if isinstance(error, PortalError) else {}
            await _last(socket, {**more, "type": "error", "code": error.code, "message": error.message})

    async def _session(self, socket: web.WebSocketResponse, identity: str, principal: Principal, hello: dict[str, Any]) -> None:
        if self._open[identity] >= _MOST_OPEN:
            message = f"{_MOST_OPEN} {self.noun}s of {identity} are open; close one"
            await _last(socket, {"type": "error", "code": "limit", "message": message})
            return
        self._open[identity] += 1
        try:
            async with self._endings.watch() as ended, self.opened(identity, principal, hello) as session:
                await socket.send_json({"type": "ready"})
                tasks = [
                    asyncio.create_task(self.output(socket, session)),
                    asyncio.create_task(self._input(socket, session, lambda: self._router.act(principal, identity))),
                    asyncio.create_task(until(principal.grant, ended)),
                ]
                try:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    if tasks[2].done() and not socket.closed:
                        await _last(socket, {"type": "ended"} if tasks[2].result() else {"type": "error", "message": "the portal restarts"})
                    elif tasks[0].done():
                        await _last(socket, {"type": "exit", "code": tasks[0].result()})
                    else:
                        tasks[1].result()
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._open[identity] -= 1
            if not self._open[identity]:
                del self._open[identity]

    async def _input(self, socket: web.WebSocketResponse, session: ExecSession, act: Callable[[], None]) -> None:
        """What is typed, until the client goes. Raises Held when a person takes control of the workspace from the program that types."""
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                act()
                await self.typed(session, message.data)
            elif message.type is WSMsgType.TEXT:
                await self.told(session, _message(message.data))


def size_of(value: object) -> tuple[int, int] | None:
    """Rows and columns; None for what is none."""
    if not isinstance(value, list) or len(value) != 2:
        return None
    if not all(isinstance(part, int) and not isinstance(part, bool) and 1 <= part <= _LARGEST for part in value):
        return None
    return value[0], value[1]


def _message(text: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


async def _last(socket: web.WebSocketResponse, message: dict[str, Any]) -> None:
    await socket.send_json(message)
    await socket.close()
