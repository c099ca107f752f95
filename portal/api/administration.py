"""What admins see and set: settings, everybody's workspaces, quotas, the audit log."""

from __future__ import annotations

from aiohttp import web

from portal import audit
from portal.errors import Malformed
from portal.feed import Feed
from portal.owners import Owners
from portal.principal import Role, Scope
from portal.quotas import Quotas
from portal.routes import Call, Route
from portal.settings import Settings, SettingsStore

_MOST_LINES = 1000


class Administration:
    """`/settings`, `/quota`, `/owners`, `/audit`."""

    def __init__(self, settings: SettingsStore, quotas: Quotas, feed: Feed, owners: Owners) -> None:
        self._settings = settings
        self._quotas = quotas
        self._feed = feed
        self._owners = owners

    def routes(self) -> list[Route]:
        page = {"limit": f"how many entries, 1 to {_MOST_LINES}", "before": "only entries older than this one's `position`"}
        return [
            Route("GET", "/settings", Scope.ADMIN, self._get, "Settings for all users", answers={200: Settings}),
            Route("PUT", "/settings", Scope.ADMIN, self._set, "Change the settings", Settings, {200: Settings}),
            Route("GET", "/quota", Scope.READ, self._quota, "Your limits and use", answers={200: "limits and use, your own and of all"}),
            Route("GET", "/owners", Scope.ADMIN, self._list, "Whose each workspace is", answers={200: "workspace to user"}),
            Route("GET", "/audit", Scope.ADMIN, self._audit, "The audit log, newest first", answers={200: "entries"}, query=page),
        ]

    async def _get(self, _: Call) -> web.Response:
        return web.json_response(self._settings.now.model_dump())

    async def _set(self, call: Call) -> web.Response:
        wanted: Settings = call.body
        await self._settings.set(wanted)
        audit.record("settings", user=call.principal.user, **wanted.model_dump())
        return web.json_response(wanted.model_dump())

    async def _quota(self, call: Call) -> web.Response:
        user, unlimited = call.principal.user, call.principal.role is Role.ADMIN
        answer = {"user": {"limits": self._quotas.limits(user, unlimited), "use": self._quotas.use(user)}}
        if unlimited:
            answer["all"] = {"limits": self._quotas.limits(None), "use": self._quotas.use(None)}
        return web.json_response(answer)

    async def _list(self, _: Call) -> web.Response:
        return web.json_response({item["id"]: self._owners.of(item["id"]) for item in self._feed.workspaces()})

    async def _audit(self, call: Call) -> web.Response:
        limit = _number(call, "limit", 100, _MOST_LINES)
        before = _number(call, "before", None, 1 << 62)
        return web.json_response(await audit.read(limit or 100, before))


def _number(call: Call, name: str, default: int | None, most: int) -> int | None:
    text = call.request.query.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:20]) <= most:
        raise Malformed(f"{name} must be a number from 1 to {most}")
    return int(text)
