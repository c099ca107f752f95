"""The second factor of whoever asks: set up, removed, and its recovery codes made anew."""

from __future__ import annotations

import io
from typing import Annotated
from xml.etree import ElementTree

import pydantic
from aiohttp import hdrs, web

from portal import audit, factors, hosts
from portal.access import Access
from portal.bodies import Body
from portal.errors import Conflicting
from portal.principal import Scope
from portal.routes import Call, Route
from portal.second_factors import SecondFactors
from portal.sessions import Session
from portal.api.account import own_session

# Modules of white around the picture, as readers need it.
_QUIET = 4


class Proof(Body):
    """`code`: what the app shows now."""

    code: Annotated[str, pydantic.Field(max_length=64)]


class Factor:
    """`/me/factor`."""

    def __init__(self, access: Access, second_factors: SecondFactors) -> None:
        self._access = access
        self._factors = second_factors

    def routes(self) -> list[Route]:
        one = "/me/factor"
        codes = "recovery codes, shown this once"
        return [
            Route("POST", one, Scope.READ, self._begin, "Begin to set up a second factor", answers={201: "the secret for an app"}, fresh=True, enrols=True),
            Route("PUT", one, Scope.READ, self._prove, "Set the second factor up that was begun", Proof, {200: codes}, fresh=True, enrols=True),
            Route("DELETE", one, Scope.READ, self._remove, "Remove your second factor", answers={204: "removed"}, fresh=True),
            Route("POST", one + "/recovery", Scope.READ, self._recovery, "Make new recovery codes", answers={200: codes}, fresh=True),
        ]

    async def _begin(self, call: Call) -> web.Response:
        session = self._local_session(call)
        if await self._factors.find(session.user) is not None:
            raise Conflicting("you have a second factor already; remove it first")
        secret = self._factors.begin(session)
        issuer = f"TClone ({hosts.split(call.request.headers.get(hdrs.HOST, ''))[0]})"
        address = factors.address_for_apps(secret, session.user, issuer)
        return web.json_response({"secret": secret, "address": address, "picture": picture(address)}, status=201)

    async def _prove(self, call: Call) -> web.Response:
        session = self._local_session(call)
        codes = await self._access.change(self._factors.proved(session, call.body.code))
        audit.record("factor-add", user=session.user)
        return web.json_response({"recovery_codes": codes})

    async def _remove(self, call: Call) -> web.Response:
        session = own_session(call)
        await self._access.change(lambda db: factors.remove(db, session.user))
        audit.record("factor-remove", user=session.user, by=session.user)
        return web.Response(status=204)

    async def _recovery(self, call: Call) -> web.Response:
        session = own_session(call)
        codes = await self._access.change(lambda db: factors.new_recovery_codes(db, session.user))
        audit.record("recovery-codes", user=session.user)
        return web.json_response({"recovery_codes": codes})

    def _local_session(self, call: Call) -> Session:
        """Raises Forbidden for a token, Conflicting for a user of an identity provider."""
        session = own_session(call)
        account = self._access.users.enabled(session.user)
        if account is not None and account.external:
            raise Conflicting("your identity provider lets you in; set a second factor up there")
        return session


def picture(address: str) -> dict[str, object]:
    """An address as a QR code: `path` is an SVG path of lines one unit wide, in a square of `size` units."""
    # Loaded by the first who sets a factor up, not by every start.
    import segno

    code = segno.make(address, error="m", micro=False)
    out = io.BytesIO()
    code.save(out, kind="svg", border=_QUIET, xmldecl=False, svgns=False, svgclass=None, lineclass=None)
    path = ElementTree.fromstring(out.getvalue()).find("path")
    assert path is not None, "segno draws one path"
    return {"path": path.attrib["d"], "size": code.symbol_size(border=_QUIET)[0]}
