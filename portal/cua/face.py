"""Where cua's client finds a computer: by a token at the portal, or, for clients that can send none, at a loopback address that was asked for."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pydantic
from aiohttp import web

from portal import audit
from portal.bodies import Body
from portal.cua.addresses import Addresses, checked
from portal.cua.computer_server import ComputerServer
from portal.cua.door import Door, line, message_of, status
from portal.endings import Endings, until
from portal.errors import Conflicting, NotThere, PortalError, error_body
from portal.feed import Feed, Queue
from portal.identity import Identity
from portal.loopback import Loopback
from portal.principal import Principal, Scope, closure
from portal.routes import Call, Route, Router
from portal.sockets import Limited

KEY_HEADER, NAME_HEADER = "X-API-Key", "X-Container-Name"
_MOST_OPEN = 32
_MOST_AT_ONCE = 32


class CuaWanted(Body):
    """Where on the host's loopback, each place for one workspace. Without both a free address, with the port that cua's client always uses; `port` 0: a free one."""

    address: Annotated[str, pydantic.Field(max_length=15)] | None = None
    port: Annotated[int, pydantic.Field(ge=0, le=65535)] | None = None


class CuaOpened(pydantic.BaseModel):
    """Where cua's client finds a workspace without a token."""

    workspace: str
    address: str
    port: int


class _Open:
    """One address that answers for one workspace, in the name of who asked for it."""

    def __init__(self, workspace: str, place: tuple[str, int], runner: web.AppRunner) -> None:
        self.workspace = workspace
        self.place = place
        self.server = Loopback(runner, lambda: None)
        self.watch: asyncio.Task[None] | None = None

    def public(self) -> dict[str, Any]:
        return CuaOpened(workspace=self.workspace, address=self.place[0], port=self.place[1]).model_dump()


class Cua:
    """`/cmd` and `/status` of the portal, and `/workspaces/{id}/cua`, which opens a loopback address. `close` after."""

    def __init__(self, computer: ComputerServer, identity: Identity, router: Router, endings: Endings, feed: Feed) -> None:
        self._computer = computer
        self._identity = identity
        self._router = router
        self._endings = endings
        self._feed = feed
        self._addresses = Addresses()
        self._opened: dict[str, _Open] = {}
        # Each may hold a file both ways.
        self._busy = Limited("request", _MOST_AT_ONCE)

    def routes(self) -> list[Route]:
        path = "/workspaces/{id}/cua"
        return [
            Route("GET", path, Scope.READ, self._show, "Where cua's client finds it without a token", answers={200: CuaOpened}),
            Route("POST", path, Scope.CONTROL, self._open, "Let cua's client in at a loopback address, without a token", CuaWanted, {201: CuaOpened}, acts=True, once="memory"),
            Route("DELETE", path, Scope.CONTROL, self._shut, "Let it in there no more", answers={204: "it is closed"}),
        ]

    def open_routes(self) -> list[web.RouteDef]:
        """What has a header of its own for tokens."""
        return [web.post("/cmd", self._by_token), web.get("/status", status)]

    async def close(self) -> None:
        """Close every address."""
        await asyncio.gather(*(self._close(workspace) for workspace in list(self._opened)))

    async def _by_token(self, request: web.Request) -> web.StreamResponse:
        try:
            principal = self._identity.of_secret(request.headers.get(KEY_HEADER, ""))
            workspace = self._router.enter(principal, request.headers.get(NAME_HEADER, ""), Scope.CONTROL)
            with self._busy.another(principal.user):
                return await self._answered(Call(request, principal, workspace, None))
        except PortalError as error:
            return web.json_response(error_body(error.code, error.message), status=error.status)

    async def _answered(self, call: Call) -> web.Response:
        """One line, as the client reads it."""
        return line(await self._computer.run(call, await message_of(call.request)))

    # Loopback

    async def _show(self, call: Call) -> web.Response:
        return web.json_response(self._of(call.workspace).public())

    async def _open(self, call: Call) -> web.Response:
        wanted: CuaWanted = call.body
        address = checked(wanted.address) if wanted.address is not None else None
        with audit.outcome("cua-open", call.principal, call.workspace) as told:
            if call.workspace in self._opened:
                known = self._opened[call.workspace].place
                raise Conflicting(f"{call.workspace} is open at {known[0]}:{known[1]} already")
            if len(self._opened) >= _MOST_OPEN:
                raise Conflicting(f"{_MOST_OPEN} addresses are open; close one")
            opened = await self._listening(call.principal, call.workspace, address, wanted.port)
            told["address"], told["port"] = opened.place
            opened.watch = asyncio.create_task(self._until_over(call.principal, call.workspace), name=f"cua of {call.workspace}")
        return web.json_response(opened.public(), status=201)

    async def _listening(self, principal: Principal, workspace: str, address: str | None, port: int | None) -> _Open:
        listener = self._addresses.bound(address, port)
        door = Door(self._computer, workspace, listener.getsockname(), lambda: self._program(principal, workspace))
        runner = web.AppRunner(door.application(), access_log=None, shutdown_timeout=1.0, handle_signals=False)
        opened = self._opened[workspace] = _Open(workspace, door.place, runner)
        try:
            await runner.setup()
            if self._opened.get(workspace) is not opened:
                raise Conflicting(f"{workspace} was closed meanwhile")
        except BaseException:
            listener.close()
            if self._opened.get(workspace) is opened:
                await self._close(workspace)
            raise
        opened.server.listen(listener)
        return opened

    def _program(self, opener: Principal, workspace: str) -> Principal:
        """Who comes to a loopback address: a program, also when a person opened it, with no more than its opener may now. Raises LoginNeeded, Forbidden, NoWorkspace."""
        if opener.session is not None:
            now = self._identity.of_session(opener.session)
        else:
            now = self._identity.of_id(opener.token or "")
        self._router.enter(now, workspace, Scope.CONTROL)
        return Principal(now.user, now.role, closure([Scope.CONTROL]), token=opener.token or f"cua-{workspace}")

    async def _shut(self, call: Call) -> web.Response:
        self._of(call.workspace)
        with audit.outcome("cua-close", call.principal, call.workspace):
            await self._close(call.workspace)
        return web.Response(status=204)

    def _of(self, workspace: str) -> _Open:
        opened = self._opened.get(workspace)
        if opened is None:
            raise NotThere(f"{workspace} is open at no address")
        return opened

    async def _close(self, workspace: str) -> None:
        opened = self._opened.pop(workspace, None)
        if opened is None:
            return
        if opened.watch is not None and opened.watch is not asyncio.current_task():
            opened.watch.cancel()
        self._addresses.give_back(*opened.place)
        await opened.server.close()

    async def _until_over(self, principal: Principal, workspace: str) -> None:
        """Close it with the workspace, and with the right of who asked for it."""
        async with self._endings.watch() as ended, self._feed.watch(None) as events:
            over = asyncio.create_task(until(principal.grant, ended))
            gone = asyncio.create_task(_gone(events, workspace))
            try:
                await asyncio.wait({over, gone}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                over.cancel()
                gone.cancel()
                await asyncio.gather(over, gone, return_exceptions=True)
        await self._close(workspace)


async def _gone(events: Queue, workspace: str) -> None:
    """Return when the workspace is gone, or when it could have gone unseen."""
    while (event := await events.get()) is not None:
        if event["type"] == "gone" and event.get("workspace") == workspace:
            return
