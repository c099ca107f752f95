"""One place of the loopback, where cua's client drives one workspace without a token."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiohttp import WSMsgType, web

from portal.cua.computer_server import LARGEST, VERSION, ComputerServer
from portal.errors import Malformed, PortalError, error_body
from portal.lost import Lost
from portal.pressed import Pressed
from portal.principal import Principal
from portal.routes import Call

_MOST_BYTES = LARGEST * 4 // 3 + 4096
# Answers that nobody got; a command's may have 8 MiB. The client has one request under way.
_MOST_LOST = 4


class Door:
    """`principal` tells who comes, or raises PortalError when nobody may any more. `place`: address and port."""

    def __init__(self, computer: ComputerServer, workspace: str, place: tuple[str, int], principal: Callable[[], Principal]) -> None:
        self.place = place
        self._computer = computer
        self._workspace = workspace
        self._principal = principal
        self._hosts = {f"{place[0]}:{place[1]}", f"localhost:{place[1]}"}
        # The client sends again by the WebSocket what `/cmd` did not answer, and after that up to three times.
        self._lost: Lost[dict[str, Any]] = Lost(_MOST_LOST)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=_MOST_BYTES)
        app.add_routes([web.post("/cmd", self._cmd), web.get("/ws", self._channel), web.get("/status", status)])
        app.on_shutdown.append(self._close)
        return app

    async def _close(self, _: web.Application) -> None:
        await self._lost.close()

    async def _cmd(self, request: web.Request) -> web.StreamResponse:
        self._own(request)
        try:
            message = await message_of(request)
            async with self._answer(self._call(request), message) as answer:
                response = line(answer)
                await response.prepare(request)
                await response.write_eof()
            return response
        except PortalError as error:
            return web.json_response(error_body(error.code, error.message), status=error.status)

    async def _channel(self, request: web.Request) -> web.StreamResponse:
        self._own(request)
        talk = web.WebSocketResponse(heartbeat=20.0, max_msg_size=_MOST_BYTES)
        await talk.prepare(request)
        pressed, call = Pressed(), None
        try:
            async for message in talk:
                if message.type is not WSMsgType.TEXT:
                    continue
                try:
                    call = self._call(request)
                    async with self._answer(call, _parsed(message.data), pressed) as answer:
                        await talk.send_json(answer)
                except PortalError as error:
                    await talk.send_json({"success": False, "error": error.message, "code": error.code})
        finally:
            if call is not None:
                await self._computer.let_go(call, pressed)
        return talk

    @contextlib.asynccontextmanager
    async def _answer(self, call: Call, message: object, pressed: Pressed | None = None) -> AsyncIterator[dict[str, Any]]:
        """The answer to a message, to be sent in the block."""
        if not self._computer.changes(message):
            yield await self._computer.run(call, message)
            return
        asked = json.dumps(message, sort_keys=True).encode()
        async with self._lost.answer(call.request, asked, lambda: self._computer.run(call, message, pressed)) as answer:
            yield answer

    def _call(self, request: web.Request) -> Call:
        """Raises PortalError."""
        return Call(request, self._principal(), self._workspace, None)

    def _own(self, request: web.Request) -> None:
        """A page in a browser of this machine must not drive the desktop: it would tell of its origin, or of another host's name."""
        if "Origin" in request.headers or request.headers.get("Host", "") not in self._hosts:
            raise web.HTTPForbidden(text="not for web pages")
        if request.method == "POST" and request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType(text="application/json")


async def status(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok", "os_type": "linux", "features": [], "version": VERSION})


async def message_of(request: web.Request) -> object:
    """What the whole body says; None when that is no JSON. Raises Malformed when it is too large."""
    kept = bytearray()
    async for piece in request.content.iter_any():
        kept += piece
        if len(kept) > _MOST_BYTES:
            raise Malformed(f"a message has at most {_MOST_BYTES} bytes")
    return _parsed(kept)


def line(answer: dict[str, Any]) -> web.Response:
    """An answer as the client reads it."""
    return web.Response(text=f"data: {json.dumps(answer)}\n\n", content_type="text/plain")


def _parsed(text: str | bytearray) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
