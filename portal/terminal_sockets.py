"""The WebSockets behind the terminals in workspaces' pages: each a shell of the desktop's user."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from aiohttp import web

from engine.client import ExecSession
from portal import audit
from portal.exec_sockets import ExecSockets, size_of
from portal.principal import Principal


class TerminalSockets(ExecSockets):
    """`/workspaces/{id}/terminal`. The hello has `rows` and `cols`; binary messages are what is typed and what the terminal shows."""

    word = "terminal"
    noun = "terminal"
    summary = "A shell of the desktop's user, as a WebSocket"

    def opened(self, identity: str, principal: Principal, hello: dict[str, Any]) -> AbstractAsyncContextManager[ExecSession]:
        audit.record("terminal", user=principal.user, token=principal.token, workspace=identity)
        rows, cols = size_of([hello.get("rows"), hello.get("cols")]) or (24, 80)
        return self.inside.shell(identity, rows, cols)

    async def output(self, socket: web.WebSocketResponse, session: ExecSession) -> int:
        async for _, data in session.output():
            await socket.send_bytes(data)
        return session.exit_code()

    async def typed(self, session: ExecSession, data: bytes) -> None:
        await session.write(data)
