"""What only the stream process may ask, over private.sock: who may see which desktop, and whose session ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from typing import Annotated

import pydantic
from aiohttp import web

from portal import audit, security
from portal.bodies import Body, parsed
from portal.errors import Denied
from portal.sessions import Session, Sessions
from portal.tickets import Tickets

_LONGEST_SECRET = 1024
_PING_SECONDS = 20.0
_UCRED = struct.Struct("3i")
_REFUSED = "this desktop cannot be opened so: open it from the portal"


Workspace = Annotated[str, pydantic.Field(pattern=r"^ws-[0-9]{1,18}$")]
Secret = Annotated[str, pydantic.Field(max_length=_LONGEST_SECRET)]


class Redemption(Body):
    code: Secret
    workspace: Workspace


class Desk(Body):
    desk: Secret
    workspace: Workspace


class Private:
    """The routes of private.sock."""

    def __init__(self, sessions: Sessions, tickets: Tickets) -> None:
        self._sessions = sessions
        self._tickets = tickets
        self._sockets: set[web.WebSocketResponse] = set()

    def application(self) -> web.Application:
        app = web.Application(middlewares=[own_user_only, security.errors], client_max_size=16 * 1024)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.post("/tickets/redeem", self._redeem),
                web.post("/desks/check", self._check),
                web.get("/sessions/watch", self._watch),
            ]
        )
        app.on_shutdown.append(self._close)
        return app

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def _redeem(self, request: web.Request) -> web.Response:
        asked = await parsed(request, Redemption)
        workspace = asked.workspace
        identity = self._tickets.redeem(asked.code, workspace)
        session = self._sessions.get(identity) if identity else None
        if session is None:
            audit.record("ticket-refused", workspace=workspace)
            raise Denied(_REFUSED)
        desk = await self._sessions.new_desk(session, workspace)
        audit.record("desktop", user=session.user, session=session.id, workspace=workspace)
        return web.json_response({"desk": desk, **_grant(session, workspace)})

    async def _check(self, request: web.Request) -> web.Response:
        asked = await parsed(request, Desk)
        session = self._sessions.check_desk(asked.desk, asked.workspace)
        if session is None:
            raise Denied(_REFUSED)
        return web.json_response(_grant(session, asked.workspace))

    async def _watch(self, request: web.Request) -> web.WebSocketResponse:
        response = web.WebSocketResponse(heartbeat=_PING_SECONDS, max_msg_size=1024)
        await response.prepare(request)
        self._sockets.add(response)
        reader = asyncio.ensure_future(_drain(response))
        try:
            async with self._sessions.watch() as ended:
                await response.send_json({"type": "snapshot", "sessions": self._sessions.live()})
                while not reader.done():
                    getter = asyncio.ensure_future(ended.get())
                    await asyncio.wait({getter, reader}, return_when=asyncio.FIRST_COMPLETED)
                    if not getter.done():
                        getter.cancel()
                        break
                    item = getter.result()
                    if item is None:
                        break
                    await response.send_json({"type": "ended", "session": item[0], "reason": item[1]})
        except ConnectionError:
            pass  # the stream process has gone; it gets a snapshot when it comes back
        finally:
            reader.cancel()
            self._sockets.discard(response)
            with contextlib.suppress(ConnectionError, RuntimeError):
                await response.close()
        return response

    async def _close(self, _: web.Application) -> None:
        for response in list(self._sockets):
            with contextlib.suppress(ConnectionError, RuntimeError):
                await response.close()


@web.middleware
async def own_user_only(request: web.Request, handler: security.Handler) -> web.StreamResponse:
    """The other end must run as our own user or as root."""
    peer = request.transport.get_extra_info("socket") if request.transport else None
    if peer is None:
        raise web.HTTPForbidden
    _, uid, _ = _UCRED.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    if uid not in (0, os.geteuid()):
        audit.record("private-refused", uid=uid)
        raise web.HTTPForbidden
    return await handler(request)


def _grant(session: Session, workspace: str) -> dict[str, object]:
    return {"session": session.id, "user": session.user, "workspace": workspace, "expires": session.expires}


async def _drain(response: web.WebSocketResponse) -> None:
    """Reading answers pings and notices that the other end has gone."""
    async for _ in response:
        pass
