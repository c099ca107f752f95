"""`/ws`: the one WebSocket of each page, which carries every change."""

from __future__ import annotations

from typing import Any

from aiohttp import WSCloseCode, web

from portal.endings import Queue as Endings
from portal.endings import until
from portal.errors import TooMany
from portal.feed import Event, Feed, Queue
from portal.identity import Identity
from portal.leases import Leases
from portal.owners import Owners
from portal.presence import Presence
from portal.principal import Principal
from portal.sessions import Session, Sessions
from portal.sockets import Limited, Sockets, object_in, side_by_side

_LONGEST_MESSAGE = 4096
# Of one user, programs that listen here included.
_MOST_PAGES = 256


class Live:
    """The pages that are connected."""

    def __init__(self, feed: Feed, sessions: Sessions, identity: Identity, owners: Owners, leases: Leases, presence: Presence) -> None:
        self._leases = leases
        self._presence = presence
        self._feed = feed
        self._sessions = sessions
        self._identity = identity
        self._owners = owners
        self._sockets = Sockets(_LONGEST_MESSAGE)
        self._open = Limited("page", _MOST_PAGES)

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/ws", self._sockets.handler(self._greeted))]

    async def close(self) -> None:
        await self._sockets.close()

    async def _greeted(self, request: web.Request, socket: web.WebSocketResponse, hello: dict[str, Any]) -> None:
        principal = self._identity.of_socket(request, hello.get("key"))
        since = hello.get("since")
        try:
            with self._open.another(principal.user):
                await self._shown(socket, principal, since if isinstance(since, int) else None)
        except TooMany as error:
            await socket.close(code=WSCloseCode.TRY_AGAIN_LATER, message=error.message.encode())

    async def _shown(self, socket: web.WebSocketResponse, principal: Principal, since: int | None) -> None:
        present = principal.session.id if principal.session is not None else None
        if present is not None:
            self._presence.came(present)
        try:
            async with self._sessions.endings.watch() as ended, self._feed.watch(since) as events:
                await self._relay(socket, principal, ended, events)
        finally:
            if present is not None:
                self._presence.left(present)

    async def _relay(self, socket: web.WebSocketResponse, principal: Principal, ended: Endings, events: Queue) -> None:
        """Carry events until the page goes away or its right ends."""
        view = View(self._owners, principal)
        async with side_by_side(until(principal.grant, ended), _send(socket, events, view), self._receive(socket, principal.session)) as (right, *_):
            if right.done() and right.result() and not socket.closed:
                await socket.send_json({"type": "ended"})
        await socket.close(code=WSCloseCode.TRY_AGAIN_LATER)

    async def _receive(self, socket: web.WebSocketResponse, session: Session | None) -> None:
        async for message in socket:
            if session is not None and object_in(message).get("type") == "active":
                await self._sessions.touch(session)
                await self._leases.touch(session.id)


class View:
    """What of the feed one principal is told."""

    def __init__(self, owners: Owners, principal: Principal) -> None:
        self._owners = owners
        self._principal = principal
        # Workspaces that were shown: their end is told, too, when they have no owner any more.
        self._shown: set[str] = set()

    def of(self, event: Event) -> Event | None:
        """The event, what is left of it, or None."""
        if event["type"] == "snapshot":
            workspaces = [item for item in event["workspaces"] if self._sees(item["id"], item)]
            self._shown = {item["id"] for item in workspaces}
            operations = {identity: phases for identity, phases in event["operations"].items() if identity in self._shown}
            facts = {kind: {identity: fact for identity, fact in known.items() if identity in self._shown} for kind, known in event["facts"].items()}
            return {**event, "workspaces": workspaces, "operations": operations, "facts": facts}
        identity = event.get("workspace")
        if identity is None:
            return event
        if event["type"] == "gone":
            known = identity in self._shown
            self._shown.discard(identity)
            return event if known else None
        if not self._sees(identity, event.get("data")):
            return None
        self._shown.add(identity)
        return event

    def _sees(self, identity: str, workspace: Any) -> bool:
        """A branch that has just appeared may not have its parent's owner yet."""
        parent = workspace.get("parent") if isinstance(workspace, dict) else None
        return self._owners.sees(self._principal, identity) or (isinstance(parent, str) and self._owners.sees(self._principal, parent))


async def _send(socket: web.WebSocketResponse, events: Queue, view: View) -> None:
    while (event := await events.get()) is not None:
        shown = view.of(event)
        if shown is not None:
            await socket.send_json(shown)
