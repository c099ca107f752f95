"""The WebSocket behind a terminal in a workspace's page: a shell of the desktop's user, which ends with the page and with its session."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from aiohttp import WSCloseCode, WSMsgType, web

from engine.client import ExecSession
from engine.errors import EngineError
from portal import audit
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


class Terminals:
    """`/workspaces/{id}/terminal`.

    First message of the page: {"type":"hello","key","rows","cols"}; then binary messages are what is typed, and {"resize":[rows,cols]} its
    size. To the page: binary messages are output; {"type":"ready"}, and last {"type":"exit","code"} or {"type":"error","message"} or
    {"type":"ended"} (the session is over).
    """

    def __init__(self, inside: Inside, endings: Endings, identity: Identity, router: Router) -> None:
        self._inside = inside
        self._endings = endings
        self._identity = identity
        self._router = router
        self._open: Counter[str] = Counter()
        self._sockets: set[web.WebSocketResponse] = set()

    def routes(self) -> list[web.RouteDef]:
        return [web.get(PREFIX + "/workspaces/{id}/terminal", self._serve)]

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
            pass  # the page has gone
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
            await _last(socket, {"type": "error", "code": error.code, "message": error.message})

    async def _session(self, socket: web.WebSocketResponse, identity: str, principal: Principal, hello: dict[str, Any]) -> None:
        if self._open[identity] >= _MOST_OPEN:
            message = f"{_MOST_OPEN} terminals of {identity} are open; close one"
            await _last(socket, {"type": "error", "code": "limit", "message": message})
            return
        self._open[identity] += 1
        audit.record("terminal", user=principal.user, workspace=identity)
        try:
            rows, cols = _size([hello.get("rows"), hello.get("cols")]) or (24, 80)
            async with self._endings.watch() as ended, self._inside.shell(identity, rows, cols) as shell:
                await socket.send_json({"type": "ready"})
                tasks = [
                    asyncio.create_task(_output(socket, shell)),
                    asyncio.create_task(_input(socket, shell, lambda: self._router.act(principal, identity))),
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


async def _output(socket: web.WebSocketResponse, shell: ExecSession) -> int:
    """Everything the terminal shows; then the status of the shell. A page that reads slowly makes the shell wait."""
    async for _, data in shell.output():
        await socket.send_bytes(data)
    return shell.exit_code()


async def _input(socket: web.WebSocketResponse, shell: ExecSession, act: Callable[[], None]) -> None:
    """What is typed, until the page goes. Raises Held when a person takes control of the workspace from the program that types."""
    async for message in socket:
        if message.type is WSMsgType.BINARY:
            act()
            await shell.write(message.data)
        elif message.type is WSMsgType.TEXT:
            size = _size(_resize(message.data))
            if size is not None:
                await shell.resize(*size)


def _resize(text: str) -> object:
    try:
        body = json.loads(text)
    except ValueError:
        return None
    return body.get("resize") if isinstance(body, dict) else None


def _size(value: object) -> tuple[int, int] | None:
    """Rows and columns; None for what is none."""
    if not isinstance(value, list) or len(value) != 2:
        return None
    if not all(isinstance(part, int) and not isinstance(part, bool) and 1 <= part <= _LARGEST for part in value):
        return None
    return value[0], value[1]


async def _last(socket: web.WebSocketResponse, message: dict[str, Any]) -> None:
    await socket.send_json(message)
    await socket.close()
