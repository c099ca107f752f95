"""Where cua's client finds a computer: by a token at the portal, or, for clients that can send none, at a loopback address that was asked for."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
from typing import Annotated, Any

import pydantic
from aiohttp import WSMsgType, web

from portal import audit
from portal.bodies import Body
from portal.cua.computer_server import LARGEST, VERSION, ComputerServer
from portal.endings import Endings, until
from portal.errors import Conflicting, Malformed, NotThere, PortalError, error_body
from portal.feed import Feed, Queue
from portal.identity import Identity
from portal.loopback import Loopback
from portal.principal import Principal, Scope, closure
from portal.routes import Call, Route, Router
from portal.sockets import Limited

# The client's own, which nothing can change.
PORT = 8000
KEY_HEADER, NAME_HEADER = "X-API-Key", "X-Container-Name"
_MOST_BYTES = LARGEST * 4 // 3 + 4096
_MOST_OPEN = 32
_MOST_AT_ONCE = 32


class CuaWanted(Body):
    """`address`: of the host's loopback, each for one workspace."""

    address: Annotated[str, pydantic.Field(max_length=15)] = "127.0.0.1"


class CuaOpened(pydantic.BaseModel):
    """Where cua's client finds a workspace without a token."""

    workspace: str
    address: str
    port: int


class _Open:
    """One address that answers for one workspace, in the name of who asked for it."""

    def __init__(self, workspace: str, address: str, runner: web.AppRunner) -> None:
        self.workspace = workspace
        self.address = address
        self.server = Loopback(runner, lambda: None)
        self.watch: asyncio.Task[None] | None = None

    def public(self) -> dict[str, Any]:
        return CuaOpened(workspace=self.workspace, address=self.address, port=PORT).model_dump()


class Cua:
    """`/cmd` and `/status` of the portal, and `/workspaces/{id}/cua`, which opens a loopback address. `close` after."""

    def __init__(self, computer: ComputerServer, identity: Identity, router: Router, endings: Endings, feed: Feed, port: int = PORT) -> None:
        self._computer = computer
        self._identity = identity
        self._router = router
        self._endings = endings
        self._feed = feed
        self._port = port
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
        return [web.post("/cmd", self._by_token), web.get("/status", _status)]

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
        try:
            message = json.loads(await _body(call.request))
        except (ValueError, RecursionError):
            message = None
        except Malformed as error:
            return _line({"success": False, "error": error.message})
        return _line(await self._computer.run(call, message))

    # Loopback

    async def _show(self, call: Call) -> web.Response:
        return web.json_response(self._of(call.workspace).public())

    async def _open(self, call: Call) -> web.Response:
        wanted: CuaWanted = call.body
        address = _loopback(wanted.address)
        with audit.outcome("cua-open", call.principal, call.workspace, address=address):
            if call.workspace in self._opened:
                raise Conflicting(f"{call.workspace} is open at {self._opened[call.workspace].address} already")
            if len(self._opened) >= _MOST_OPEN:
                raise Conflicting(f"{_MOST_OPEN} addresses are open; close one")
            opened = await self._listening(call.principal, call.workspace, address)
            opened.watch = asyncio.create_task(self._until_over(call.principal, call.workspace), name=f"cua of {call.workspace}")
        return web.json_response(opened.public(), status=201)

    async def _listening(self, principal: Principal, workspace: str, address: str) -> _Open:
        app = web.Application(client_max_size=_MOST_BYTES)
        hosts = {f"{address}:{self._port}", f"localhost:{self._port}"}

        def call(request: web.Request) -> Call:
            return Call(_own(request, hosts), self._program(principal, workspace), workspace, None)

        async def cmd(request: web.Request) -> web.StreamResponse:
            try:
                return await self._answered(call(request))
            except PortalError as error:
                return web.json_response(error_body(error.code, error.message), status=error.status)

        async def channel(request: web.Request) -> web.StreamResponse:
            talk = web.WebSocketResponse(heartbeat=20.0, max_msg_size=_MOST_BYTES)
            _own(request, hosts)
            await talk.prepare(request)
            async for message in talk:
                if message.type is WSMsgType.TEXT:
                    try:
                        answer = await self._computer.run(call(request), _parsed(message.data))
                    except PortalError as error:
                        answer = {"success": False, "error": error.message, "code": error.code}
                    await talk.send_json(answer)
            return talk

        app.add_routes([web.post("/cmd", cmd), web.get("/ws", channel), web.get("/status", _status)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handle_signals=False)
        opened = self._opened[workspace] = _Open(workspace, address, runner)
        try:
            await runner.setup()
            if self._opened.get(workspace) is not opened:
                raise Conflicting(f"{workspace} was closed meanwhile")
            opened.server.listen(socket.create_server((address, self._port)))
        except OSError as error:
            del self._opened[workspace]
            await opened.server.close()
            raise Conflicting(f"{address}:{self._port} cannot be had: {error.strerror or error}; give another address of 127.0.0.0/8") from None
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


async def _status(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok", "os_type": "linux", "features": [], "version": VERSION})


async def _body(request: web.Request) -> bytes:
    """The whole body. Raises Malformed when it is too large."""
    kept = bytearray()
    async for piece in request.content.iter_any():
        kept += piece
        if len(kept) > _MOST_BYTES:
            raise Malformed(f"a message has at most {_MOST_BYTES} bytes")
    return bytes(kept)


def _line(answer: dict[str, Any]) -> web.Response:
    return web.Response(text=f"data: {json.dumps(answer)}\n\n", content_type="text/plain")


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _own(request: web.Request, hosts: set[str]) -> web.Request:
    """A page in a browser of this machine must not drive the desktop: it would tell of its origin, or of another host's name."""
    if "Origin" in request.headers or request.headers.get("Host", "") not in hosts:
        raise web.HTTPForbidden(text="not for web pages")
    if request.method == "POST" and request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="application/json")
    return request


def _loopback(text: str) -> str:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        raise Malformed("address must be one of 127.0.0.0/8") from None
    if not address.is_loopback:
        raise Malformed("address must be one of 127.0.0.0/8: who comes there shows no token")
    return str(address)
