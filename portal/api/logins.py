"""Logging in and out."""

from __future__ import annotations

import asyncio

from aiohttp import web

from portal import accounts, audit, security
from portal.attempts import Attempts
from portal.bodies import Body, parsed
from portal.database import Database
from portal.errors import TooMany, WrongPassword
from portal.principal import Scope
from portal.routes import PREFIX, Call, Route
from portal.sessions import Session, Sessions
from portal.tickets import Tickets

# argon2 takes 64 MiB and a core for each check: a flood of logins must not take the machine.
_HASHES_AT_ONCE = 2
_LONGEST_USER = 64


class Credentials(Body):
    user: str
    password: str


class Logins:
    """`/login`, `/logout`."""

    def __init__(self, database: Database, sessions: Sessions, tickets: Tickets) -> None:
        self._database = database
        self._sessions = sessions
        self._tickets = tickets
        self._attempts = Attempts()
        self._hashing = asyncio.Semaphore(_HASHES_AT_ONCE)

    def open_routes(self) -> list[web.RouteDef]:
        """What needs no login."""
        return [web.post(f"{PREFIX}/login", self._login)]

    def routes(self) -> list[Route]:
        return [Route("POST", "/logout", Scope.READ, self._logout, "End this session", answers={204: "ended"})]

    async def _login(self, request: web.Request) -> web.Response:
        body: Credentials = await parsed(request, Credentials)
        user = body.user[: _LONGEST_USER + 1]
        address = security.address_of(request)
        wait = self._attempts.take(address, user)
        if wait:
            audit.record("login-limited", user=user, address=address)
            raise TooMany(f"too many attempts; try again in {wait:.0f} s", retry_after=wait)
        stored = await self._database.run(lambda db: accounts.stored_hash(db, user))
        async with self._hashing:
            good = await asyncio.to_thread(accounts.verify, stored, body.password)
        if not good:
            audit.record("login-refused", user=user, address=address)
            raise WrongPassword("user or password is wrong")
        self._attempts.clear(address, user)
        earlier = security.session_by_cookie(request)
        if earlier is not None:
            await self._end(earlier)
        made = await self._sessions.create(user)
        audit.record("login", user=user, address=address, session=made.session.id)
        response = web.json_response({"key": made.key})
        security.set_cookie(response, made.cookie)
        return response

    async def _logout(self, call: Call) -> web.Response:
        session = call.principal.session
        response = web.Response(status=204)
        if session is None:
            return response
        await self._end(session)
        audit.record("logout", user=session.user, session=session.id)
        security.delete_cookie(response)
        # The page's key and whatever else this origin kept in the browser.
        response.headers["Clear-Site-Data"] = '"storage"'
        return response

    async def _end(self, session: Session) -> None:
        self._tickets.forget(session.id)
        await self._sessions.end(session, "logout")
