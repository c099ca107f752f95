"""Logging in and out."""

from __future__ import annotations

import time

from aiohttp import hdrs, web

from portal import accounts, audit, security
from portal.access import Access
from portal.bodies import Body, parsed
from portal.database import Database
from portal.errors import NewPasswordNeeded, WrongPassword
from portal.passwords import Passwords
from portal.principal import Scope
from portal.routes import PREFIX, Call, Route
from portal.sessions import Session
from portal.tickets import Tickets

_LONGEST_USER = 64


class Credentials(Body):
    """`new_password`: asked for (403 `new_password`) when `password` is one that somebody else made."""

    user: str
    password: str
    new_password: str | None = None


class Logins:
    """`/login`, `/logout`."""

    def __init__(self, database: Database, access: Access, passwords: Passwords, tickets: Tickets) -> None:
        self._database = database
        self._access = access
        self._passwords = passwords
        self._tickets = tickets

    def open_routes(self) -> list[web.RouteDef]:
        """What needs no login."""
        return [web.post(f"{PREFIX}/login", self._login)]

    def routes(self) -> list[Route]:
        return [Route("POST", "/logout", Scope.READ, self._logout, "End this session", answers={204: "ended"})]

    async def _login(self, request: web.Request) -> web.Response:
        body: Credentials = await parsed(request, Credentials)
        user = body.user[: _LONGEST_USER + 1]
        address = security.address_of(request)
        await self._passwords.check(user, body.password, address)
        await self._replace_one_time(user, body, address)
        return await self.enter(request, user)

    async def enter(self, request: web.Request, user: str) -> web.Response:
        """A new session for a user who has shown who it is; an earlier one of the same browser ends."""
        address = security.address_of(request)
        earlier = security.session_by_cookie(request)
        if earlier is not None:
            await self._end(earlier)
        made = await self._access.sessions.create(user, address, request.headers.get(hdrs.USER_AGENT, ""))
        audit.record("login", user=user, address=address, session=made.session.id)
        response = web.json_response({"key": made.key, "user": user})
        security.set_cookie(response, made.cookie)
        return response

    async def _replace_one_time(self, user: str, body: Credentials, address: str) -> None:
        """A password that somebody else made is good for choosing one's own, once and for some days."""
        account = await self._database.run(lambda db: accounts.find(db, user))
        if account is None or account.one_time is None:
            return
        if time.time() >= account.one_time:
            audit.record("login-refused", user=user, address=address)
            raise WrongPassword("user or password is wrong")
        if body.new_password is None:
            raise NewPasswordNeeded("this password was made for you; choose one of your own")
        accounts.check_new_password(user, body.new_password)
        fresh = await self._passwords.hashed(body.new_password)
        await self._access.change(lambda db: accounts.set_password(db, user, fresh, None))
        audit.record("password", user=user, by=user)

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
        await self._access.sessions.end(session, "logout")
