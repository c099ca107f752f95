"""The browser's way through a login by an identity provider.

`/login/oidc` sends it there and gives it a cookie; the provider sends it to `/login/oidc/callback`, where the answer has to fit that cookie; then the
login page of this very browser exchanges the cookie for a session, as a login with a password gives one. Nothing of ours is in an address.
With `?again` the person has to show the provider who it is even when it is logged in there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from aiohttp import hdrs, web

from portal import accounts, audit, hosts, security
from portal.access import Access
from portal.api.logins import Logins
from portal.attempts import Attempts
from portal.database import digest
from portal.errors import LoginNeeded, PortalError, TooMany
from portal.oidc import Asked, Person, Provider
from portal.routes import PREFIX
from portal.sessions import new_secret

COOKIE = "__Host-tclone-oidc"
START, CALLBACK = "/login/oidc", "/login/oidc/callback"
_LIFE_SECONDS = 600.0
_MOST_UNDER_WAY = 1000
_STARTS = 20
_LONGEST = 4096


@dataclass
class _Way:
    """One browser's login under way."""

    asked: Asked
    begun: float
    again: bool = False
    person: Person | None = None


class Oidc:
    """Does nothing but answer 404 when no provider is set."""

    def __init__(self, provider: Provider | None, access: Access, logins: Logins) -> None:
        self._provider = provider
        self._access = access
        self._logins = logins
        self._starts = Attempts(limit=_STARTS)
        self._under_way: dict[str, _Way] = {}  # by the cookie's hash, oldest first

    def open_routes(self) -> list[web.RouteDef]:
        """What needs no login."""
        return [web.get(START, self._start), web.get(CALLBACK, self._callback), web.post(f"{PREFIX}/login/oidc", self._enter)]

    async def _start(self, request: web.Request) -> web.Response:
        if self._provider is None:
            raise web.HTTPNotFound
        wait = self._starts.take(security.address_of(request), "")
        if wait:
            raise TooMany(f"too many logins begun; try again in {wait:.0f} s", retry_after=wait)
        again = "again" in request.query
        redirect = hosts.portal_origin(request.headers.get(hdrs.HOST, "")) + CALLBACK
        try:
            address, asked = await self._provider.begin(redirect, again)
        except PortalError as error:
            return self._failed(request, error)
        self._sweep()
        cookie = new_secret()
        self._under_way[digest(cookie)] = _Way(asked, time.monotonic(), again)
        response = web.Response(status=303, headers={"Location": address})
        # Lax: the browser has to send it when the provider sends it back here.
        response.set_cookie(COOKIE, cookie, path="/", secure=True, httponly=True, samesite="Lax", max_age=int(_LIFE_SECONDS))
        return response

    async def _callback(self, request: web.Request) -> web.Response:
        if self._provider is None:
            raise web.HTTPNotFound
        way = self._way(request)
        state, code = request.query.get("state", ""), request.query.get("code", "")
        # Whoever lured this browser here with an answer of another login has not its cookie.
        if way is None or way.person is not None or state != way.asked.state or not 0 < len(code) <= _LONGEST:
            return self._failed(request, LoginNeeded("this login was not begun in this browser, or took too long"))
        try:
            way.person = await self._provider.finish(code, way.asked)
        except PortalError as error:
            self._forget(request)
            return self._failed(request, error)
        return web.Response(status=303, headers={"Location": "/login#provider"})

    async def _enter(self, request: web.Request) -> web.Response:
        """Called by the login page, so with this origin: the session and its key."""
        way = self._way(request)
        if way is None or way.person is None:
            raise LoginNeeded("log in first")
        self._forget(request)
        person = way.person
        try:
            await self._access.change(lambda db: accounts.let_in(db, person.user, person.subject, person.role))
        except PortalError as error:
            audit.record("login-refused", user=person.user, address=security.address_of(request), reason=error.message)
            raise
        response = await self._logins.enter(request, person.user, _shown(way, person))
        response.del_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="Lax")
        return response

    def _failed(self, request: web.Request, error: PortalError) -> web.Response:
        """An error page, which says why."""
        audit.record("login-refused", address=security.address_of(request), reason=error.message)
        raise error

    def _way(self, request: web.Request) -> _Way | None:
        way = self._under_way.get(self._key(request))
        return way if way is not None and time.monotonic() - way.begun < _LIFE_SECONDS else None

    def _forget(self, request: web.Request) -> None:
        self._under_way.pop(self._key(request), None)

    def _key(self, request: web.Request) -> str:
        return digest(request.cookies.get(COOKIE, "")[:_LONGEST])

    def _sweep(self) -> None:
        now = time.monotonic()
        for key in [key for key, way in self._under_way.items() if now - way.begun >= _LIFE_SECONDS]:
            del self._under_way[key]
        while len(self._under_way) >= _MOST_UNDER_WAY:
            del self._under_way[next(iter(self._under_way))]


def _shown(way: _Way, person: Person) -> float | None:
    """When this person showed who it is, as far as is known; None: just now.

    A provider that knows its browser lets it in without a question: that shows nothing. Of one that was told to ask and does not say when it did, it is
    taken that it did so.
    """
    if person.shown is not None:
        return person.shown
    return None if way.again else 0.0
