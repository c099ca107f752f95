"""What only the stream process may ask, over private.sock: who may see which desktop, and whose right to it has ended. The command line says
there that it has changed who gets in.

`session` in what goes over this socket is the public id of a login or of a share link: the stream process treats both alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from typing import Annotated

import pydantic
from aiohttp import WSMsgType, web

from engine.answers import ended_lines, say_server
from engine.waiting import stopped
from portal import audit, security
from portal.bodies import Body, parsed
from portal.errors import Denied
from portal.access import Access
from portal.owners import Owners
from portal.principal import Principal
from portal.sessions import Session
from portal.shares import NOBODY, Share
from portal.tickets import Tickets
from portal.viewers import Viewers

_LONGEST_SECRET = 1024
_LONGEST_REPORT = 4 << 20
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

    def __init__(self, access: Access, owners: Owners, tickets: Tickets, viewers: Viewers) -> None:
        self._access = access
        self._users = access.users
        self._owners = owners
        self._sessions = access.sessions
        self._shares = access.shares
        self._endings = access.endings
        self._tickets = tickets
        self._viewers = viewers
        self._sockets: set[web.WebSocketResponse] = set()

    def application(self) -> web.Application:
        app = web.Application(middlewares=[ended_lines, own_user_only, security.errors], client_max_size=16 * 1024)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.post("/tickets/redeem", self._redeem),
                web.post("/desks/check", self._check),
                web.get("/sessions/watch", self._watch),
                web.post("/changed", self._changed),
            ]
        )
        app.on_response_prepare.append(say_server)
        app.on_shutdown.append(self._close)
        return app

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def _changed(self, _: web.Request) -> web.Response:
        await self._access.catch_up()
        return web.Response(status=204)

    async def _redeem(self, request: web.Request) -> web.Response:
        asked = await parsed(request, Redemption)
        workspace = asked.workspace
        identity = self._tickets.redeem(asked.code, workspace) or ""
        right = self._sessions.get(identity) or self._shares.get(identity)
        if right is None or not self._sees(right, workspace):
            audit.record("ticket-refused", workspace=workspace)
            raise Denied(_REFUSED)
        desk = await (self._sessions.new_desk(right, workspace) if isinstance(right, Session) else self._shares.new_desk(right))
        who = {"user": right.user} if isinstance(right, Session) else {"user": NOBODY, "shared_by": right.user}
        audit.record("desktop", **who, session=right.id, workspace=workspace)
        return web.json_response({"desk": desk, **_grant(right, workspace)})

    async def _check(self, request: web.Request) -> web.Response:
        asked = await parsed(request, Desk)
        right = self._sessions.check_desk(asked.desk, asked.workspace) or self._shares.check_desk(asked.desk, asked.workspace)
        if right is None or not self._sees(right, asked.workspace):
            raise Denied(_REFUSED)
        return web.json_response(_grant(right, asked.workspace))

    def _sees(self, right: Session | Share, workspace: str) -> bool:
        """Whether whoever has, or gave, this right may see the workspace now: its role may have become less."""
        account = self._users.enabled(right.user)
        return account is not None and self._owners.sees(Principal(account.user, account.role, frozenset()), workspace)

    async def _watch(self, request: web.Request) -> web.WebSocketResponse:
        response = web.WebSocketResponse(heartbeat=_PING_SECONDS, max_msg_size=_LONGEST_REPORT)
        await response.prepare(request)
        self._sockets.add(response)
        reader = asyncio.ensure_future(self._reports(response))
        try:
            async with self._endings.watch() as ended:
                await response.send_json({"type": "snapshot", "sessions": [*self._sessions.live(), *self._shares.live()]})
                while not reader.done():
                    getter = asyncio.ensure_future(ended.get())
                    try:
                        await asyncio.wait({getter, reader}, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        getter.cancel()
                    if not getter.done():
                        break
                    item = getter.result()
                    if item is None:
                        break
                    await response.send_json({"type": "ended", "session": item[0], "reason": item[1]})
        except ConnectionError:
            pass  # the stream process has gone; it gets a snapshot when it comes back
        finally:
            await stopped(reader)
            self._sockets.discard(response)
            self._viewers.forget(response)
            with contextlib.suppress(ConnectionError, RuntimeError):
                await response.close()
        return response

    async def _reports(self, response: web.WebSocketResponse) -> None:
        """What this worker has open, each time that changes. Reading also answers pings and notices that the other end has gone."""
        async for message in response:
            if message.type is WSMsgType.TEXT:
                self._viewers.report(response, json.loads(message.data)["open"])

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


def _grant(right: Session | Share, workspace: str) -> dict[str, object]:
    role = "viewer" if isinstance(right, Share) else "controller"
    return {"session": right.id, "user": right.user, "workspace": workspace, "expires": right.expires, "role": role}
