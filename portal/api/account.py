"""What belongs to the one who asks: its name and rights, its password and its sessions. Its second factor is in portal.api.factor."""

from __future__ import annotations

from aiohttp import web

from portal import accounts, audit, security
from portal.access import Access
from portal.bodies import Body
from portal.errors import Conflicting, Forbidden, NotThere
from portal.passwords import Passwords
from portal.principal import Scope
from portal.routes import Call, Route
from portal.second_factors import SecondFactors
from portal.sessions import Session
from portal.settings import SettingsStore
from portal.tickets import Tickets


class NewPassword(Body):
    password: str
    new_password: str


class Shown(Body):
    """`code`: of the second factor, asked for (403 `second_factor`) when there is one."""

    password: str
    code: str | None = None


class Account:
    """`/me`, `/sessions`."""

    def __init__(self, access: Access, passwords: Passwords, second_factors: SecondFactors, settings: SettingsStore, tickets: Tickets) -> None:
        self._access = access
        self._passwords = passwords
        self._factors = second_factors
        self._settings = settings
        self._tickets = tickets

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/me", Scope.READ, self._me, "Who you are and what you may do", answers={200: "user, role, scopes"}, enrols=True),
            Route("POST", "/me/confirm", Scope.READ, self._confirm, "Show again who you are", Shown, {204: "done; for ten minutes it is not asked for again"}, enrols=True),
            Route("POST", "/me/password", Scope.READ, self._password, "Change your password", NewPassword, {204: "done; your other sessions have ended"}),
            Route("GET", "/sessions", Scope.READ, self._list, "Your sessions", answers={200: "a list of sessions"}),
            Route("DELETE", "/sessions", Scope.READ, self._end_others, "End all your sessions but this one", answers={204: "ended"}, fresh=True),
            Route("DELETE", "/sessions/{session}", Scope.READ, self._end, "End one of your sessions", answers={204: "ended"}, fresh=True),
        ]

    async def _me(self, call: Call) -> web.Response:
        principal = call.principal
        account = self._access.users.enabled(principal.user)
        factor = await self._factors.find(principal.user)
        answer = {
            "user": principal.user, "role": principal.role, "scopes": sorted(principal.scopes), "external": account is not None and account.external,
            "token": principal.token, "second_factor": factor.public() if factor is not None else None, "second_factor_required": self._settings.now.second_factor,
        }  # fmt: skip
        return web.json_response(answer)

    async def _confirm(self, call: Call) -> web.Response:
        wanted: Shown = call.body
        session, address = own_session(call), security.address_of(call.request)
        account = self._access.users.enabled(session.user)
        if account is not None and account.external:
            raise Conflicting("your identity provider lets you in; log in there again")
        await self._passwords.check(session.user, wanted.password, address)
        await self._factors.check(session.user, wanted.code, address)
        await self._access.sessions.show(session)
        audit.record("confirm", user=session.user, address=address, session=session.id)
        return web.Response(status=204)

    async def _password(self, call: Call) -> web.Response:
        wanted: NewPassword = call.body
        session = own_session(call)
        account = self._access.users.enabled(session.user)
        if account is not None and account.external:
            raise Conflicting("your password is your identity provider's; change it there")
        if await self._factors.find(session.user) is not None:
            # The old password is half of what lets this user in.
            call.principal.require_fresh()
        await self._passwords.check(session.user, wanted.password, security.address_of(call.request))
        accounts.check_new_password(session.user, wanted.new_password)
        fresh = await self._passwords.hashed(wanted.new_password)
        await self._access.change(lambda db: accounts.set_password(db, session.user, fresh, None, keep=session.id))
        audit.record("password", user=session.user, by=session.user)
        return web.Response(status=204)

    async def _list(self, call: Call) -> web.Response:
        current = call.principal.session.id if call.principal.session else None
        own = self._access.sessions.of(call.principal.user)
        return web.json_response([{**session.public(), "current": session.id == current} for session in own])

    async def _end_others(self, call: Call) -> web.Response:
        session = own_session(call)
        for other in self._access.sessions.of(session.user):
            if other.id != session.id:
                await self._revoke(other, call)
        return web.Response(status=204)

    async def _end(self, call: Call) -> web.Response:
        own_session(call)
        wanted = self._access.sessions.get(call.request.match_info["session"])
        if wanted is None or wanted.user != call.principal.user:
            raise NotThere("you have no such session")
        await self._revoke(wanted, call)
        return web.Response(status=204)

    async def _revoke(self, session: Session, call: Call) -> None:
        self._tickets.forget(session.id)
        await self._access.sessions.end(session, "revoked")
        audit.record("session-revoke", user=call.principal.user, session=session.id)


def own_session(call: Call) -> Session:
    """What decides about logins is for a person, not for a program's token. Raises Forbidden."""
    if call.principal.session is None:
        raise Forbidden("this is for a person who is logged in, not for a token")
    return call.principal.session
