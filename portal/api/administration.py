"""What admins see and set: settings, everybody's workspaces, quotas, the audit log."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from aiohttp import hdrs, web

from portal import audit, audit_log, workers
from portal.audit_log import Entry, Wanted
from portal.errors import Malformed
from portal.feed import Feed
from portal.owners import Owners
from portal.parameters import Parameter, number, whole
from portal.principal import Role, Scope
from portal.quotas import Quotas
from portal.routes import COSTLY, HEAVY, Call, Route
from portal.settings import Settings, SettingsStore
from portal.viewers import Viewers

_MOST_LINES = 1000
# Entries that are read and sent together when the log is saved.
_CHUNK = 500
_FILTERS = ("user", "workspace", "event")
_WORD = re.compile(r"[!-~]{1,100}")
_LAST = 1 << 62
_SIGNS = {"type": "string", "pattern": f"^{_WORD.pattern}$"}


class Administration:
    """`/settings`, `/quota`, `/owners`, `/overview`, `/audit`. `run` is the portal's run directory, `log` the audit log's file."""

    def __init__(self, settings: SettingsStore, quotas: Quotas, feed: Feed, owners: Owners, viewers: Viewers, run: Path, log: Path) -> None:
        self._settings = settings
        self._quotas = quotas
        self._feed = feed
        self._owners = owners
        self._viewers = viewers
        self._run = run
        self._log = log

    def routes(self) -> list[Route]:
        chosen = {
            "user": Parameter("only what this user did", _SIGNS),
            "workspace": Parameter("only what was done to this workspace", _SIGNS),
            "event": Parameter("only this kind", _SIGNS),
        }
        page = {"limit": whole("how many entries", 1, _MOST_LINES), "before": whole("only entries older than this `position`", 1, _LAST), **chosen}
        figures = "workspace to `owner`, `viewers` and `traffic` (bytes)"
        return [
            Route("GET", "/settings", Scope.ADMIN, self._get, "Settings for all users", answers={200: Settings}),
            Route("PUT", "/settings", Scope.ADMIN, self._set, "Change the settings", Settings, {200: Settings}, fresh=True),
            Route("GET", "/quota", Scope.READ, self._quota, "Your limits and use", answers={200: "limits and use, your own and of all"}),
            Route("GET", "/owners", Scope.ADMIN, self._list, "Whose each workspace is", answers={200: "workspace to user"}),
            Route("GET", "/overview", Scope.ADMIN, self._overview, "Everybody's workspaces: whose, how many look on", answers={200: figures}),
            Route("GET", "/audit", Scope.ADMIN, self._audit, "The audit log, newest first", answers={200: "entries"}, query=page, cost=COSTLY),
            Route("GET", "/audit/export", Scope.ADMIN, self._export, "The audit log as NDJSON", answers={200: "entries"}, query=chosen, content=("application/x-ndjson",), cost=HEAVY),
        ]

    async def _get(self, _: Call) -> web.Response:
        return web.json_response(self._settings.now.model_dump())

    async def _set(self, call: Call) -> web.Response:
        wanted: Settings = call.body
        if "second_factor" not in wanted.model_fields_set:
            # A program that does not know of it must not take it from everybody.
            wanted = wanted.model_copy(update={"second_factor": self._settings.now.second_factor})
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

    async def _overview(self, _: Call) -> web.Response:
        traffic, viewers = await workers.traffic(self._run), self._viewers.counts()
        known = [item["id"] for item in self._feed.workspaces()]
        answer = {one: {"owner": self._owners.of(one), "viewers": viewers[one], "traffic": traffic[one]} for one in known}
        return web.json_response(answer)

    async def _audit(self, call: Call) -> web.Response:
        asked = call.request.query
        limit = number(asked.get("limit", "100"), "limit", 1, _MOST_LINES)
        before = number(asked["before"], "before", 1, _LAST) if "before" in asked else None
        return web.json_response(await audit.read(limit, before, _wanted(call)))

    async def _export(self, call: Call) -> web.StreamResponse:
        await audit.written()
        entries = audit_log.entries(self._log, None, _wanted(call))
        headers = {hdrs.CONTENT_TYPE: "application/x-ndjson", hdrs.CONTENT_DISPOSITION: 'attachment; filename="audit.jsonl"'}
        # What went out is written down itself, before the first of it goes.
        audit.record("audit-export", user=call.principal.user)
        answer = web.StreamResponse(headers=headers)
        await answer.prepare(call.request)
        while chunk := await asyncio.to_thread(_lines, entries):
            await answer.write(chunk)
        await answer.write_eof()
        return answer


def _lines(entries: Iterator[Entry]) -> bytes:
    """The next few as they are in the file, b"" at the end."""
    return b"".join(json.dumps({key: entry[key] for key in entry if key != "position"}).encode() + b"\n" for entry in islice(entries, _CHUNK))


def _wanted(call: Call) -> Wanted:
    found = {name: call.request.query[name] for name in _FILTERS if name in call.request.query}
    for name, value in found.items():
        if not _WORD.fullmatch(value):
            raise Malformed(f"{name} must be 1 to 100 letters, digits or signs, without blanks")
    return Wanted(**found)
