"""What terminals and commands over a WebSocket have in common: a command inside a workspace that ends with its socket and with the right that opened it."""

from __future__ import annotations

import abc
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from aiohttp import WSMsgType, web

from engine.client import ExecSession
from portal.endings import Endings, until
from portal.errors import error_body
from portal.identity import Identity
from portal.inside import Inside
from portal.principal import Principal, Scope
from portal.routes import PREFIX, Router, SocketRoute
from portal.sockets import Limited, Sockets, last, object_in, side_by_side

_LONGEST_MESSAGE = 1 << 20
_LARGEST = 1000


class ExecSockets(abc.ABC):
    """One kind of them (portal.terminal_sockets, portal.command_sockets), at `/workspaces/{id}/<word>`; `noun` is what refusals call one.

    First message of the client: {"type":"hello","key"?,…}, then what is typed and {"resize":[rows,cols]}. To the client: {"type":"ready"}, output,
    and last {"type":"exit","code"}, {"type":"error","error":{…}} or {"type":"ended"} (the right is over).
    """

    word: str
    noun: str
    summary: str

    def __init__(self, inside: Inside, endings: Endings, identity: Identity, router: Router) -> None:
        self.inside = inside
        self._endings = endings
        self._identity = identity
        self._router = router
        self._open = Limited(self.noun)
        self._sockets = Sockets(_LONGEST_MESSAGE)

    def route(self) -> SocketRoute:
        return SocketRoute(f"/workspaces/{{id}}/{self.word}", Scope.CONTROL, self.summary)

    def routes(self) -> list[web.RouteDef]:
        return [web.get(PREFIX + self.route().path, self._sockets.handler(self._greeted))]

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
        await self._sockets.close()

    async def _greeted(self, request: web.Request, socket: web.WebSocketResponse, hello: dict[str, Any]) -> None:
        principal = self._identity.of_socket(request, hello.get("key"))
        identity = self._router.admit(request, principal, Scope.CONTROL, acts=True)
        await self._session(socket, identity, principal, hello)

    async def _session(self, socket: web.WebSocketResponse, identity: str, principal: Principal, hello: dict[str, Any]) -> None:
        with self._open.another(identity):
            async with self._endings.watch() as ended, self.opened(identity, principal, hello) as session:
                await socket.send_json({"type": "ready"})
                typed = self._input(socket, session, lambda: self._router.act(principal, identity, "input"))
                async with side_by_side(self.output(socket, session), typed, until(principal.grant, ended)) as (shown, typing, right):
                    if right.done() and not socket.closed:
                        await last(socket, {"type": "ended"} if right.result() else {"type": "error", **error_body("unavailable", "the portal restarts")})
                    elif shown.done():
                        await last(socket, {"type": "exit", "code": shown.result()})
                    else:
                        typing.result()

    async def _input(self, socket: web.WebSocketResponse, session: ExecSession, act: Callable[[], None]) -> None:
        """What is typed, until the client goes. Raises Held when a person takes control of the workspace from the program that types."""
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                act()
                await self.typed(session, message.data)
            elif message.type is WSMsgType.TEXT:
                await self.told(session, object_in(message))


def size_of(value: object) -> tuple[int, int] | None:
    """Rows and columns; None for what is none."""
    if not isinstance(value, list) or len(value) != 2:
        return None
    if not all(isinstance(part, int) and not isinstance(part, bool) and 1 <= part <= _LARGEST for part in value):
        return None
    return value[0], value[1]
