"""Commands that programs run inside a workspace over a WebSocket: input and both outputs as they come, and the exit status."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pydantic
from aiohttp import web

from engine.account import DESKTOP_USER
from engine.client import ExecSession
from portal import audit
from portal.bodies import Body, checked
from portal.endings import Endings
from portal.identity import Identity
from portal.inside import Inside
from portal.exec_sockets import ExecSockets
from portal.principal import Principal
from portal.rates import Rates
from portal.routes import Router

_STDIN = 0

Cells = Annotated[int, pydantic.Field(ge=1, le=1000)]
Word = Annotated[str, pydantic.Field(max_length=128 << 10)]


class Run(Body):
    """`user`: a name, a number, `uid:gid`, or `@desktop` for whoever the desktop belongs to."""

    argv: Annotated[list[Word], pydantic.Field(min_length=1, max_length=1000)]
    env: Annotated[dict[str, Word], pydantic.Field(max_length=1000)] = {}
    user: Annotated[str, pydantic.Field(min_length=1, max_length=256)] = DESKTOP_USER
    cwd: Annotated[str, pydantic.Field(max_length=4095)] | None = None
    tty: bool = False
    rows: Cells = 24
    cols: Cells = 80


class CommandSockets(ExecSockets):
    """`/workspaces/{id}/exec`. The hello has the fields of Run. The first byte of binary messages is 0 for input, 1 for stdout, 2 for
    stderr, as in the engine's API; {"stdin":"eof"} ends the input."""

    word = "exec"
    noun = "command"
    summary = "Run a command with input and a terminal if wanted, as a WebSocket"

    def __init__(self, inside: Inside, endings: Endings, identity: Identity, router: Router, rates: Rates) -> None:
        super().__init__(inside, endings, identity, router)
        self._rates = rates

    @contextlib.asynccontextmanager
    async def opened(self, identity: str, principal: Principal, hello: dict[str, Any]) -> AsyncIterator[ExecSession]:
        wanted = checked({name: value for name, value in hello.items() if name not in ("type", "key")}, Run)
        # Not the command: what it is given may be a secret.
        with audit.outcome("exec", principal, identity, account=wanted.user):
            self._rates.take(principal.grant, 1)
            async with self.inside.command(identity, **wanted.model_dump()) as session:
                yield session

    async def output(self, socket: web.WebSocketResponse, session: ExecSession) -> int:
        async for stream, data in session.output():
            await socket.send_bytes(bytes([stream]) + data)
        return session.exit_code()

    async def typed(self, session: ExecSession, data: bytes) -> None:
        if data[:1] == bytes([_STDIN]):
            await session.write(data[1:])

    async def told(self, session: ExecSession, message: dict[str, Any]) -> None:
        if message.get("stdin") == "eof":
            await session.close_stdin()
        await super().told(session, message)
