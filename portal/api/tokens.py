"""API tokens: make, list, revoke."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from aiohttp import web

from engine.query import switch
from portal import audit, tokens
from portal.access import Access
from portal.bodies import Body, one_of
from portal.errors import Forbidden, Malformed
from portal.parameters import flag
from portal.principal import Scope
from portal.routes import Call, Route


class NewToken(Body):
    """`days` null: it never expires. `scopes`: of `read`, `control`, `fork`, `admin`. `form`: `e2b` looks like an API key of E2B; both are taken everywhere."""

    name: str
    scopes: Annotated[list[Annotated[str, one_of(*Scope)]], pydantic.Field(max_length=len(Scope))]
    days: float | None = tokens.DEFAULT_DAYS
    form: Literal["tct", "e2b"] = "tct"


class Tokens:
    """`/tokens`."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def routes(self) -> list[Route]:
        everybody = {"all": flag("everybody's, for admins")}
        return [
            Route("GET", "/tokens", Scope.READ, self._list, "Your API tokens", answers={200: "a list of tokens"}, query=everybody),
            Route("POST", "/tokens", Scope.READ, self._create, "Make an API token", NewToken, {201: "the token, shown this once"}, once="memory", fresh=True),
            Route("DELETE", "/tokens/{token}", Scope.READ, self._revoke, "Revoke an API token", answers={204: "revoked"}),
        ]

    async def _list(self, call: Call) -> web.Response:
        everybodys = switch(call.request, "all")
        if everybodys and not call.principal.may(Scope.ADMIN):
            raise Forbidden("everybody's tokens are shown to admins")
        return web.json_response([token.public() for token in self._access.tokens.of(None if everybodys else call.principal.user)])

    async def _create(self, call: Call) -> web.Response:
        if not call.principal.is_person:
            raise Forbidden("a token is made by a person who is logged in, not by a token")
        wanted: NewToken = call.body
        scopes = [_scope(text) for text in wanted.scopes]
        principal = call.principal
        made, secret = await self._access.change(
            lambda db: tokens.create(db, principal.user, principal.role, wanted.name, scopes, wanted.days, wanted.form == "e2b")
        )
        audit.record("token-create", user=principal.user, token=made.id, name=made.name, scopes=" ".join(sorted(made.scopes)))
        return web.json_response({**made.public(), "token": secret}, status=201)

    async def _revoke(self, call: Call) -> web.Response:
        identity = call.request.match_info["token"]
        # A token may end itself, and no other one: a stolen one must not lock its owner's programs out.
        if not call.principal.is_person and identity != call.principal.token and not call.principal.may(Scope.ADMIN):
            raise Forbidden("a token can revoke itself only")
        whose = None if call.principal.may(Scope.ADMIN) else call.principal.user
        await self._access.change(lambda db: tokens.revoke(db, identity, whose))
        audit.record("token-revoke", user=call.principal.user, token=identity)
        return web.Response(status=204)


def _scope(text: str) -> Scope:
    try:
        return Scope(text)
    except ValueError:
        raise Malformed(f"a scope is one of {', '.join(Scope)}", field="scopes") from None
