"""Sandboxes as E2B's API has them, which are workspaces: create, list, look at, fork, pause, connect, time to live, kill."""

from __future__ import annotations

import asyncio
import datetime
import json
import math
import os
import re
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

import pydantic
from aiohttp import hdrs, web

from engine.errors import Conflict, EngineError, Unavailable
from portal import audit, hosts
from portal.api.workspaces import Launch, Workspaces
from portal.bodies import checked
from portal.e2b.connect import RpcError
from portal.e2b.keys import Keys
from portal.e2b.metadata import Metadata
from portal.e2b.snapshots import Snapshots
from portal.errors import Conflicting, Malformed, NoWorkspace, PortalError
from portal.forks import Forks, Wanted
from portal.inside import Inside
from portal.lifetimes import Lifetimes, Rules
from portal.node import Node
from portal.once import Once
from portal.owners import Owners
from portal.parameters import number
from portal.principal import Principal, Scope
from portal.routes import Call, Router

PREFIX = "/e2b"
# What of envd is answered by processes.py and files.py, in its own words.
ENVD_VERSION = "0.5.7"
# Templates that the SDKs ask for by themselves.
_TEMPLATES = {"desktop": "webtop-xfce", "base": "workspace"}
_DEFAULT_SECONDS = 300
_MOST_SECONDS = 366 * 86400
_MOST_LISTED = 100
_FOREVER = "9999-12-31T00:00:00Z"
# Between the two readings of the processor time.
_MEASURED_SECONDS = 0.25
# What SDKs also know.
_NOT_THERE = (
    "/sandboxes/metrics", "/volumes", "/volumes/{rest:.*}", "/templates", "/templates/{rest:.*}",
    "/v2/templates", "/v3/templates", "/sandboxes/{id}/network", "/v2/sandboxes/{id}/logs", "/sandboxes/{id}/logs",
)  # fmt: skip
_ID = re.compile(r"ws-[0-9]{1,18}")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Text = Annotated[str, pydantic.Field(max_length=2000)]
Seconds = Annotated[int, pydantic.Field(ge=0, le=_MOST_SECONDS)]


class _Body(pydantic.BaseModel):
    """Fields that are not known are left alone, as E2B does: newer clients send more."""

    model_config = pydantic.ConfigDict(extra="ignore")


class _New(_Body):
    template: Annotated[str, pydantic.Field(alias="templateID", min_length=1, max_length=200)]
    timeout: Seconds = _DEFAULT_SECONDS
    metadata: Annotated[dict[Text, Text], pydantic.Field(max_length=64)] = {}
    env: Annotated[dict[str, str], pydantic.Field(alias="envVars", max_length=500)] = {}
    internet: Annotated[bool | None, pydantic.Field(alias="allow_internet_access")] = None


class _Snapshot(_Body):
    """`memory`: false asks for the files alone."""

    name: Annotated[str, pydantic.Field(max_length=200)] = ""
    memory: bool = True


class _Timed(_Body):
    timeout: Seconds | None = None
    duration: Seconds | None = None


class _Fork(_Body):
    """The engine makes eight at once; E2B's own limit is 20."""

    count: Annotated[int, pydantic.Field(ge=1, le=8)] = 1
    timeout: Seconds = _DEFAULT_SECONDS


_B = TypeVar("_B", bound=_Body)


class Sandboxes:
    """E2B's API below `/e2b`."""

    def __init__(
        self, node: Node, owners: Owners, lifetimes: Lifetimes, workspaces: Workspaces, forks: Forks, router: Router, once: Once, keys: Keys,
        metadata: Metadata, inside: Inside, snapshots: Snapshots,
    ) -> None:  # fmt: skip
        self._node = node
        self._inside = inside
        self._owners = owners
        self._lifetimes = lifetimes
        self._workspaces = workspaces
        self._forks = forks
        self._router = router
        self._once = once
        self._keys = keys
        self._metadata = metadata
        self._snapshots = snapshots

    def routes(self) -> list[web.RouteDef]:
        one = PREFIX + "/sandboxes/{id}"
        table: list[tuple[str, str, Handler]] = [
            ("POST", PREFIX + "/sandboxes", self._create), ("POST", PREFIX + "/v2/sandboxes", self._create),
            ("GET", PREFIX + "/sandboxes", self._list), ("GET", PREFIX + "/v2/sandboxes", self._list),
            ("GET", one, self._get), ("DELETE", one, self._kill), ("POST", one + "/timeout", self._set_timeout), ("POST", one + "/refreshes", self._set_timeout),
            ("POST", one + "/pause", self._pause), ("POST", one + "/resume", self._connect), ("POST", one + "/connect", self._connect),
            ("POST", PREFIX + "/v2/sandboxes/{id}/connect", self._connect), ("POST", one + "/fork", self._fork), ("GET", one + "/metrics", self._metrics),
            ("POST", one + "/snapshots", self._take_snapshot), ("GET", PREFIX + "/snapshots", self._list_snapshots), ("DELETE", PREFIX + "/templates/{id}", self._remove_snapshot),
            *((method, PREFIX + path, _not_there) for method in ("GET", "POST", "DELETE") for path in _NOT_THERE),
        ]  # fmt: skip
        return [web.route(method, path, _answered(handler)) for method, path, handler in table]

    async def _create(self, request: web.Request) -> web.StreamResponse:
        principal = self._keys.of_api(request)
        self._router.enter(principal, None, Scope.FORK)
        wanted, call = await _body(request, _New), Call(request, principal, "", None)
        name = call.request_id
        if name is None:
            return await self._created(request, call, wanted)
        # Its answer has a key in it, which is not for the database.
        return await self._once.answer(name, await request.read(), lambda: self._created(request, call, wanted), keep=False)

    async def _created(self, request: web.Request, call: Call, wanted: _New) -> web.Response:
        if self._snapshots.is_one(wanted.template) and self._owners.sees(call.principal, wanted.template):
            return await self._restored(request, call.principal, wanted)
        image = _TEMPLATES.get(wanted.template, wanted.template)
        env = dict(wanted.env)
        # A desktop has one display, and its programs know it.
        env.pop("DISPLAY", None)
        launch = checked({"image": image, "timeout": max(1, wanted.timeout), "wait": True, "network": "none" if wanted.internet is False else "open"}, Launch)
        made = await self._workspaces.launch(call.principal, launch, call.request_id, env)
        if made["state"] != "ready":
            await self._node.remove(made["id"])
            raise Conflicting(f"{made['id']} did not become ready: {made['error'] or made['state']}")
        await self._metadata.put(made["id"], wanted.metadata)
        return web.json_response(self._sandbox(request, call.principal, made), status=201)

    async def _restored(self, request: web.Request, principal: Principal, wanted: _New) -> web.Response:
        """A sandbox from a snapshot."""
        snapshot = wanted.template
        self._router.enter(principal, snapshot, Scope.FORK, request.path)
        if wanted.env.keys() - {"DISPLAY"}:
            raise Malformed("envs cannot be given with a snapshot: its programs run already, with the variables that they began with")
        made = await self._snapshots.start(principal, snapshot, wanted.timeout, "none" if wanted.internet is False else None)
        await self._metadata.put(made["id"], {**self._metadata.of(snapshot), **wanted.metadata})
        return web.json_response(self._sandbox(request, principal, made), status=201)

    async def _take_snapshot(self, request: web.Request) -> web.Response:
        principal, workspace = self._one(request, Scope.FORK)
        wanted = await _body(request, _Snapshot)
        if not wanted.memory:
            raise Malformed("a snapshot here has its programs in it: leave the mode out, or say full")
        made = await self._snapshots.take(principal, workspace, wanted.name)
        return web.json_response(self._snapshots.shown(made), status=201)

    async def _list_snapshots(self, request: web.Request) -> web.Response:
        principal = self._keys.of_api(request)
        self._router.enter(principal, None, Scope.READ)
        found = await self._snapshots.seen_by(principal, request.query.get("sandboxID"), request.query.get("name"))
        shown, headers = _page(request, found)
        return web.json_response([self._snapshots.shown(item["id"]) for item in shown], headers=headers)

    async def _remove_snapshot(self, request: web.Request) -> web.Response:
        if not _ID.fullmatch(request.match_info["id"]):
            return await _not_there(request)
        principal, snapshot = self._one(request, Scope.FORK, acts=True, snapshot=True)
        await self._snapshots.remove(principal, snapshot)
        return web.Response(status=204)

    async def _list(self, request: web.Request) -> web.Response:
        principal = self._keys.of_api(request)
        self._router.enter(principal, None, Scope.READ)
        states = {word for text in request.query.getall("state", []) for word in text.split(",")} or {"running", "paused"}
        metadata = dict(parse_qsl(request.query.get("metadata", "")))
        found = [
            item for item in await self._node.workspaces()
            if self._owners.sees(principal, item["id"]) and item["state"] in ("ready", "forking") and _state(item) in states
            and metadata.items() <= self._metadata.of(item["id"]).items() and not self._snapshots.is_one(item["id"])
        ]  # fmt: skip
        shown, headers = _page(request, found)
        return web.json_response([self._detail(item) for item in shown], headers=headers)

    async def _get(self, request: web.Request) -> web.Response:
        principal, workspace = self._one(request, Scope.READ)
        item = await self._node.workspace(workspace)
        return web.json_response({**self._sandbox(request, principal, item), **self._detail(item)})

    async def _kill(self, request: web.Request) -> web.Response:
        principal, workspace = self._one(request, Scope.FORK, acts=True)
        with audit.outcome("discard", principal, workspace):
            await self._node.remove(workspace)
        return web.Response(status=204)

    async def _set_timeout(self, request: web.Request) -> web.Response:
        principal, workspace = self._one(request, Scope.FORK)
        wanted = await _body(request, _Timed)
        seconds = wanted.timeout if wanted.timeout is not None else wanted.duration
        if seconds is None:
            raise Malformed("timeout is missing")
        await self._node.workspace(workspace)
        await self._rule(principal, workspace, float(seconds))
        return web.Response(status=204)

    async def _pause(self, request: web.Request) -> web.Response:
        principal, workspace = self._one(request, Scope.FORK, acts=True)
        if (await self._node.workspace(workspace))["paused"]:
            raise Conflicting(f"{workspace} is paused already")
        with audit.outcome("pause", principal, workspace):
            try:
                await self._node.pause(workspace)
            except Conflict as error:
                # 409 would be read as "paused already".
                raise Unavailable(error.message) from None
        # It waits for whoever connects again, for as long as that takes.
        await self._rule(principal, workspace, None)
        return web.Response(status=204)

    async def _connect(self, request: web.Request) -> web.Response:
        principal, workspace = self._one(request, Scope.CONTROL)
        wanted = await _body(request, _Timed)
        seconds = float(_DEFAULT_SECONDS if wanted.timeout is None else wanted.timeout)
        item = await self._node.workspace(workspace)
        resumed = item["paused"]
        if resumed:
            self._router.enter(principal, workspace, Scope.FORK, "connect")
            with audit.outcome("resume", principal, workspace):
                item = await self._node.resume(workspace)
        life = self._lifetimes.of(workspace)
        ends = life.ends_at if life is not None else None
        # A running one only ever gains time, from whoever may give it; one that never ends stays so.
        if resumed or (ends is not None and ends < time.time() + seconds and principal.may(Scope.FORK)):
            await self._rule(principal, workspace, seconds)
        return web.json_response(self._sandbox(request, principal, item), status=201 if resumed else 200)

    async def _fork(self, request: web.Request) -> web.Response:
        principal, workspace = self._one(request, Scope.FORK)
        wanted = await _body(request, _Fork)
        result = await self._forks.fork(principal, workspace, Wanted(count=wanted.count, timeout=max(1.0, wanted.timeout), partial=True))
        answer: list[dict[str, Any]] = []
        for child in result["results"]:
            made = child.get("workspace")
            if made is not None:
                await self._metadata.appeared(made)
                answer.append({"sandbox": self._sandbox(request, principal, made)})
            else:
                answer.append({"error": {"code": 429 if child["error"]["code"] == "limit" else 500, "message": child["error"]["message"]}})
        return web.json_response(answer, status=201)

    async def _metrics(self, request: web.Request) -> web.Response:
        """One measurement, of now: none are kept."""
        _, workspace = self._one(request, Scope.READ)
        began, first = time.monotonic(), await self._inside.stats(workspace)
        await asyncio.sleep(_MEASURED_SECONDS)
        item, last = await self._node.workspace(workspace), await self._inside.stats(workspace)
        used = (float(last["cpu_seconds"]) - float(first["cpu_seconds"])) / (time.monotonic() - began)
        measured = {
            "timestamp": _time(time.time()), "timestampUnix": int(time.time()), "cpuCount": _processors(item), "cpuUsedPct": round(100 * max(0.0, used), 2),
            "memUsed": int(last["memory_bytes"]), "memTotal": item["memory_limit"] or 0, "memCache": 0, "diskUsed": int(last["disk_bytes"] or 0),
            "diskTotal": item["disk_limit"] or 0,
        }  # fmt: skip
        return web.json_response([measured])

    # Inside

    async def _rule(self, principal: Principal, workspace: str, seconds: float | None) -> None:
        """It ends after so many seconds from now; None: never."""
        with audit.outcome("lifetime", principal, workspace, idle=None, lifetime=seconds):
            await self._lifetimes.rule(workspace, Rules(None, seconds))

    def _one(self, request: web.Request, scope: Scope, acts: bool = False, snapshot: bool = False) -> tuple[Principal, str]:
        """Who asks, and for which sandbox, or for which snapshot. Raises LoginNeeded, NoWorkspace, Forbidden, Held."""
        principal = self._keys.of_api(request)
        identity = request.match_info["id"]
        if not _ID.fullmatch(identity) or self._snapshots.is_one(identity) != snapshot:
            raise NoWorkspace(f"{'snapshot' if snapshot else 'sandbox'} {identity[:60]} was not found")
        return principal, self._router.enter(principal, identity, scope, request.path if acts else "")

    def _sandbox(self, request: web.Request, principal: Principal, item: dict[str, Any]) -> dict[str, Any]:
        """What a client needs to reach it, its own key included."""
        port = hosts.split(request.headers.get(hdrs.HOST, ""))[1]
        return {
            "sandboxID": item["id"], "templateID": item["image"], "clientID": "tclone", "envdVersion": ENVD_VERSION, "alias": item["name"],
            "domain": hosts.served() + port, "envdAccessToken": self._keys.issue(principal, item["id"]),
        }  # fmt: skip

    def _detail(self, item: dict[str, Any]) -> dict[str, Any]:
        life = self._lifetimes.of(item["id"])
        ends = life.ends_at if life is not None else None
        return {
            "sandboxID": item["id"], "templateID": item["image"], "clientID": "tclone", "envdVersion": ENVD_VERSION, "alias": item["name"],
            "startedAt": str(item["created"]), "endAt": _FOREVER if ends is None else _time(ends), "state": _state(item), "cpuCount": _processors(item),
            "memoryMB": (item["memory_limit"] or 0) >> 20, "diskSizeMB": (item["disk_limit"] or 0) >> 20, "metadata": self._metadata.of(item["id"]),
        }  # fmt: skip


def _page(request: web.Request, found: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Those of the page that is asked for, by age, and the header that names the next one. Raises Malformed."""
    limit = number(request.query.get("limit", str(_MOST_LISTED)), "limit", 1, _MOST_LISTED)
    after = number(request.query.get("nextToken") or "0", "nextToken", 0, 10**18)
    left = sorted((item for item in found if _number(item) > after), key=_number)
    return left[:limit], {"X-Next-Token": str(_number(left[limit - 1]))} if len(left) > limit else {}


def _processors(item: dict[str, Any]) -> int:
    """How many it may use, as a whole number."""
    return math.ceil(item["cpu_limit"]) if item["cpu_limit"] else os.cpu_count() or 1


async def _not_there(request: web.Request) -> web.StreamResponse:
    # Not 404, which SDKs take for a sandbox that is gone.
    raise RpcError("unimplemented", f"{request.path.removeprefix(PREFIX)} is not there: docs/reference/e2b.md says what is", 501)


async def _body(request: web.Request, model: type[_B]) -> _B:
    try:
        value = json.loads(await request.read() or b"{}")
        return model.model_validate(value)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise Malformed(f"{'.'.join(str(part) for part in first['loc'])[:60]}: {first['msg'][:200]}") from None
    except (ValueError, RecursionError):
        raise Malformed("the body is not JSON") from None


def _answered(handler: Handler) -> Handler:
    """Errors as E2B's API has them."""

    async def serve(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except (PortalError, EngineError) as error:
            status = error.status if isinstance(error, PortalError) else error.http_status
            after = error.retry_after if isinstance(error, PortalError) else None
            # The same request again would only be refused again: the client's own three tries are for servers that are away.
            headers = {"Should-Retry": "true" if status == 503 else "false"} | ({"Retry-After": str(int(after + 0.999))} if after else {})
            return web.json_response({"code": status, "message": error.message}, status=status, headers=headers)

    return serve


def _state(item: dict[str, Any]) -> str:
    return "paused" if item["paused"] else "running"


def _number(item: dict[str, Any]) -> int:
    return int(item["id"].partition("-")[2])


def _time(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
