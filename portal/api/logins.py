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
from portal.second_factors import SecondFactors
from portal.sessions import Session
from portal.tickets import Tickets

_LONGEST_USER = 64


class Credentials(Body):
    """`new_password`: asked for (403 `new_password`) when `password` is one that somebody else made. `code`: of the second factor, asked for
    (403 `second_factor`) when the user has one."""

    user: str
    password: str
    new_password: str | None = None
    code: str | None = None


class Logins:
    """`/login`, `/logout`."""

    def __init__(self, database: Database, access: Access, passwords: Passwords, second_factors: SecondFactors, tickets: Tickets) -> None:
        self._database = database
        self._access = access
        self._passwords = passwords
        self._factors = second_factors
        self._tickets = tickets

    def open_routes(self) -> list[web.RouteDef]:
        """What needs no login."""
        return [web.post(f"{PREFIX}/login", self._login)]

    def routes(self) -> list[Route]:
        return [Route("POST", "/logout", Scope.READ, self._logout, "End this session", answers={204: "ended"}, enrols=True)]

    async def _login(self, request: web.Request) -> web.Response:
        body: Credentials = await parsed(request, Credentials)
        user = body.user[: _LONGEST_USER + 1]
        address = security.address_of(request)
        await self._passwords.check(user, body.password, address)
        one_time = await self._is_one_time(user, body, address)
        # Last of what may be refused: a code counts once.
        await self._factors.check(user, body.code, address)
        if one_time:
            await self._replace_one_time(user, body)
        return await self.enter(request, user)

    async def enter(self, request: web.Request, user: str, shown: float | None = None) -> web.Response:
        """A new session for a user who has shown who it is, at the time `shown` (Unix seconds) or just now; an earlier one of the same browser ends."""
        address = security.address_of(request)
        earlier = security.session_by_cookie(request)
        if earlier is not None:
            await self._end(earlier)
        made = await self._access.sessions.create(user, address, request.headers.get(hdrs.USER_AGENT, ""), shown)
        audit.record("login", user=user, address=address, session=made.session.id)
        response = web.json_response({"key": made.key, "user": user})
        security.set_cookie(response, made.cookie)
        return response

    async def _is_one_time(self, user: str, body: Credentials, address: str) -> bool:
        """Whether the password is one that somebody else made, good for choosing one's own, once and for some days.

        Raises WrongPassword when it is too old, NewPasswordNeeded, and Malformed for a new one that is no good.
        """
        account = await self._database.run(lambda db: accounts.find(db, user))
        if account is None or account.one_time is None:
            return False
        if time.time() >= account.one_time:
            audit.record("login-refused", user=user, address=address)
            raise WrongPassword("user or password is wrong")
        if body.new_password is None:
            raise NewPasswordNeeded("this password was made for you; choose one of your own")
        accounts.check_new_password(user, body.new_password)
        return True

    async def _replace_one_time(self, user: str, body: Credentials) -> None:
        assert body.new_password is not None, "it was checked"
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
