"""Share links: make, list, revoke, and open one."""

from __future__ import annotations

from typing import Annotated

import pydantic
from aiohttp import hdrs, web

from portal import audit, hosts, security, shares
from portal.access import Access
from portal.attempts import Attempts
from portal.bodies import Body, parsed
from portal.errors import NotThere, TooMany
from portal.node import Node, opens
from portal.principal import Scope
from portal.routes import PREFIX, Call, Route
from portal.tickets import Tickets
from portal.viewers import Viewers

# Links opened from one address in a minute. Guessing 256 bits is hopeless anyway; this bounds the work.
_OPENINGS = 60


class NewShare(Body):
    """`hours`: for how long it works."""

    label: Annotated[str, pydantic.Field(max_length=shares.LONGEST_LABEL)] = ""
    hours: Annotated[float, pydantic.Field(gt=0, le=shares.MOST_HOURS, strict=False)] = shares.DEFAULT_HOURS


class Opening(Body):
    """`secret` is what stands behind the `#` of the link."""

    secret: str


class Shares:
    """`/workspaces/{id}/shares`, `/share`."""

    def __init__(self, access: Access, node: Node, tickets: Tickets, viewers: Viewers) -> None:
        self._shares = access.shares
        self._users = access.users
        self._node = node
        self._tickets = tickets
        self._viewers = viewers
        self._openings = Attempts(limit=_OPENINGS)

    def open_routes(self) -> list[web.RouteDef]:
        """What needs no login."""
        return [web.post(f"{PREFIX}/share", self._open)]

    def routes(self) -> list[Route]:
        many = "/workspaces/{id}/shares"
        return [
            Route("GET", many, Scope.READ, self._list, "A workspace's share links and their viewers", answers={200: "a list of links, without their secrets"}),
            Route("POST", many, Scope.CONTROL, self._create, "Make a link for watching", NewShare, {201: "the link, shown this once"}, once="memory"),
            Route("DELETE", many + "/{share}", Scope.CONTROL, self._revoke, "Revoke a link", answers={204: "its viewers are out"}),
        ]

    async def _list(self, call: Call) -> web.Response:
        return web.json_response([share.public(self._viewers.by(share.id)) for share in self._shares.of(call.workspace)])

    async def _create(self, call: Call) -> web.Response:
        wanted: NewShare = call.body
        opens(await self._node.workspace(call.workspace))
        share, secret = await self._shares.create(call.principal.user, call.workspace, wanted.label.strip(), wanted.hours)
        audit.record("share", user=call.principal.user, token=call.principal.token, workspace=call.workspace, share=share.id)
        link = f"{hosts.portal_origin(call.request.headers.get(hdrs.HOST, ''))}/share#{secret}"
        return web.json_response({**share.public(0), "link": link}, status=201)

    async def _revoke(self, call: Call) -> web.Response:
        identity = call.request.match_info["share"]
        self._tickets.forget(identity)
        await self._shares.revoke(call.workspace, identity)
        audit.record("share-revoke", user=call.principal.user, token=call.principal.token, workspace=call.workspace, share=identity)
        return web.Response(status=204)

    async def _open(self, request: web.Request) -> web.Response:
        """A one-time code for the desktop, as a login's page gets one."""
        asked: Opening = await parsed(request, Opening)
        address = security.address_of(request)
        wait = self._openings.take(address, "")
        if wait:
            raise TooMany(f"too many links opened; try again in {wait:.0f} s", retry_after=wait)
        share = self._shares.find(asked.secret)
        if share is None:
            audit.record("share-refused", address=address)
            raise NotThere("this link has expired or was revoked")
        workspace = await self._node.workspace(share.workspace)
        opens(workspace)
        origin = hosts.desktop_origin(share.workspace, request.headers.get(hdrs.HOST, ""))
        # Whoever opened it has shown no name; the link's maker is told as what it is.
        audit.record("share-opened", user=shares.NOBODY, shared_by=share.user, address=address, workspace=share.workspace, share=share.id)
        answer = {"action": f"{origin}/__tclone/enter", "code": self._tickets.issue(share.id, share.workspace)}
        return web.json_response({**answer, "name": workspace["name"], "label": share.label, "expires": share.expires})
