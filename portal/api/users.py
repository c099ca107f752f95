"""Users, as an admin manages them."""

from __future__ import annotations

import sqlite3
import time
from typing import Annotated

import pydantic
from aiohttp import web

from portal import accounts, audit, factors
from portal.access import Access
from portal.accounts import Account
from portal.bodies import Body, one_of
from portal.errors import Malformed, NotThere
from portal.passwords import Passwords
from portal.principal import Role, Scope
from portal.quotas import Quotas
from portal.routes import Call, Route
from portal.settings import Bytes, Count, Cpus


class NewUser(Body):
    """`role` is `user` or `admin`."""

    user: Annotated[str, pydantic.Field(json_schema_extra={"pattern": accounts.NAME_PATTERN})]
    role: Annotated[str, one_of(*Role)] = Role.USER


class Quota(Body):
    """Limits of one user; null: what the settings have for every user. `memory` and `disk` are in bytes, `cpus` processors. Without `disk` or `cpus` that limit stays as it is."""

    workspaces: Count | None
    memory: Bytes | None
    disk: Bytes | None = None
    cpus: Cpus | None = None


class Changes(Body):
    """What is to change; the rest stays."""

    role: Annotated[str, one_of(*Role)] | None = None
    disabled: bool | None = None
    quota: Quota | None = None


class Users:
    """`/users`."""

    def __init__(self, access: Access, passwords: Passwords, quotas: Quotas) -> None:
        self._access = access
        self._quotas = quotas
        self._passwords = passwords

    def routes(self) -> list[Route]:
        one = "/users/{user}"
        once = "its one-time password, shown this once"
        return [
            Route("GET", "/users", Scope.ADMIN, self._list, "All users, with limits and use", answers={200: "a list of users"}),
            Route("POST", "/users", Scope.ADMIN, self._add, "Add a user", NewUser, {201: once}, fresh=True),
            Route("PATCH", one, Scope.ADMIN, self._change, "Change a user's role or quota, disable or enable it", Changes, {200: "the user"}, fresh=True),
            Route("POST", one + "/password", Scope.ADMIN, self._reset, "Give a user a new one-time password", answers={200: once}, fresh=True),
            Route("DELETE", one + "/factor", Scope.ADMIN, self._remove_factor, "Remove the second factor of a user who lost it", answers={204: "removed"}, fresh=True),
            Route("DELETE", one, Scope.ADMIN, self._remove, "Remove a user", answers={204: "gone; its workspaces are the admins'"}, fresh=True),
        ]

    async def _list(self, _: Call) -> web.Response:
        return web.json_response([self._shown(account) for account in self._access.users.every()])

    def _shown(self, account: Account) -> dict[str, object]:
        limits = self._quotas.limits(account.user, unlimited=account.role is Role.ADMIN)
        return {**account.public(), "limits": limits, "use": self._quotas.use(account.user)}

    async def _add(self, call: Call) -> web.Response:
        wanted: NewUser = call.body
        role = _role(wanted.role)
        accounts.check_name(wanted.user)
        password, stored, until = await self._one_time()
        await self._access.change(lambda db: accounts.add(db, wanted.user, role, stored, until))
        audit.record("user-add", user=call.principal.user, name=wanted.user, role=role)
        return web.json_response({"user": wanted.user, "role": role, "password": password, "one_time_until": until}, status=201)

    async def _change(self, call: Call) -> web.Response:
        user, wanted = call.request.match_info["user"], call.body
        role = None if wanted.role is None else _role(wanted.role)

        def work(db: sqlite3.Connection) -> None:
            if role is not None:
                accounts.set_role(db, user, role)
            if wanted.disabled is not None:
                accounts.set_disabled(db, user, wanted.disabled)
            if wanted.quota is not None:
                accounts.set_quota(db, user, wanted.quota.model_dump(exclude_unset=True))

        await self._access.change(work)
        quota = wanted.quota.model_dump(exclude_unset=True) if wanted.quota is not None else None
        audit.record("user-change", user=call.principal.user, name=user, role=role, disabled=wanted.disabled, quota=quota)
        account = self._access.users.find(user)
        if account is None:
            raise NotThere(f"no user {user[:64]}")
        return web.json_response(self._shown(account))

    async def _reset(self, call: Call) -> web.Response:
        user = call.request.match_info["user"]
        password, stored, until = await self._one_time()
        await self._access.change(lambda db: accounts.set_password(db, user, stored, until))
        audit.record("password", user=user, by=call.principal.user)
        return web.json_response({"user": user, "password": password, "one_time_until": until})

    async def _remove(self, call: Call) -> web.Response:
        user = call.request.match_info["user"]
        await self._access.change(lambda db: accounts.remove(db, user))
        audit.record("user-remove", user=call.principal.user, name=user)
        return web.Response(status=204)

    async def _remove_factor(self, call: Call) -> web.Response:
        user = call.request.match_info["user"]
        await self._access.change(lambda db: factors.remove(db, user))
        audit.record("factor-remove", user=user, by=call.principal.user)
        return web.Response(status=204)

    async def _one_time(self) -> tuple[str, str, float]:
        password = accounts.generate_password()
        return password, await self._passwords.hashed(password), time.time() + accounts.ONE_TIME_SECONDS


def _role(text: str) -> Role:
    try:
        return Role(text)
    except ValueError:
        raise Malformed(f"a role is one of {', '.join(Role)}", field="role") from None
