"""Workspaces: list, launch, fork, discard, logs and the ticket to a desktop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Annotated, Any, Literal

import pydantic
from aiohttp import hdrs, web

from engine.config import DEFAULT_MEMORY
from engine.workspace import MAX_CPUS, MIN_CPUS
from portal import audit, hosts
from portal.bodies import Body
from portal.errors import Forbidden
from portal.feed import Feed
from portal.forks import Forks, Wanted
from portal.lifetimes import Lifetimes, Rules
from portal.node import Node, opens
from portal.owners import Owners
from portal.parameters import number, whole
from portal.principal import Principal, Role, Scope
from portal.quotas import Limits, Quotas
from portal.routes import HEAVY, Call, Route
from portal.tickets import Tickets

log = logging.getLogger(__name__)

_LONGEST_TAIL = 2000
# Within which a fork that cannot be has been refused: quotas and states need no more than a look.
_BEGUN_SECONDS = 0.1
_READY_SECONDS = 200.0

Port = Annotated[int, pydantic.Field(ge=1, le=65535)]
Name = Annotated[str, pydantic.Field(max_length=200)]


Network = Literal["open", "none"]


Lifetime = Annotated[float, pydantic.Field(ge=1, le=366 * 86400, strict=False)]


class Launch(Body):
    """`memory` and `disk` (how much it may write) are in bytes; `cpus`: how many processors' time it gets at most; `network` is what it may reach.
    `disk` null: no limit, but 10 GiB where a quota for disk holds; `cpus` null: no limit, but 2 where a quota for processors holds.
    `osworld`: with a server for OSWorld's clients, on the host's loopback without a login.
    `timeout`: seconds after which it is discarded, `persistent`: never. `wait`: answer when it is ready."""

    image: Annotated[str, pydantic.Field(min_length=1, max_length=200)]
    name: Name | None = None
    ports: Annotated[list[Port], pydantic.Field(max_length=64)] = []
    memory: int | None = None
    disk: int | None = None
    cpus: Annotated[float, pydantic.Field(ge=MIN_CPUS, le=MAX_CPUS)] | None = None
    network: Network = "open"
    osworld: bool = False
    timeout: Lifetime | None = None
    persistent: bool = False
    wait: bool = False

    @pydantic.model_validator(mode="after")
    def _agree(self) -> Launch:
        _check_time(self.timeout, self.persistent)
        return self


Label = Annotated[str, pydantic.Field(max_length=80)]


class Fork(Body):
    """`network` is what the copies may reach (default: what the source may), `labels` say what each is for; `count` is another word for `copies`.

    `timeout`: seconds after which each copy is discarded, `persistent`: never; without either as the source. `wait` false: answer (202) when
    the fork has begun; what came of it is told by the events. `partial`: as many as there is room for.
    """

    copies: Annotated[int, pydantic.Field(ge=1, le=8)] = 1
    count: Annotated[int, pydantic.Field(ge=1, le=8)] | None = None
    name: Name | None = None
    tcp_close: bool = False
    network: Network | None = None
    labels: Annotated[list[Label], pydantic.Field(max_length=8)] | None = None
    timeout: Lifetime | None = None
    persistent: bool = False
    wait: bool = True
    partial: bool = False

    @pydantic.model_validator(mode="after")
    def _agree(self) -> Fork:
        if self.count is not None and "copies" in self.model_fields_set and self.copies != self.count:
            raise ValueError("count and copies are the same thing; give one of them")
        _check_time(self.timeout, self.persistent)
        return self

    def wanted(self) -> Wanted:
        return Wanted(
            count=self.copies if self.count is None else self.count, name=self.name or None, tcp_close=self.tcp_close, network=self.network,
            labels=self.labels or [], timeout=self.timeout, persistent=self.persistent, partial=self.partial,
        )  # fmt: skip


def _check_time(timeout: float | None, persistent: bool) -> None:
    if timeout is not None and persistent:
        raise ValueError("timeout and persistent exclude each other")


class Workspaces:
    """`/workspaces`."""

    def __init__(self, node: Node, feed: Feed, owners: Owners, tickets: Tickets, quotas: Quotas, forks: Forks, lifetimes: Lifetimes) -> None:
        self._quotas = quotas
        self._node = node
        self._feed = feed
        self._owners = owners
        self._tickets = tickets
        self._forks = forks
        self._lifetimes = lifetimes
        self._forking: set[asyncio.Task[dict[str, Any]]] = set()

    async def close(self) -> None:
        """Wait for forks that nobody waits for."""
        await asyncio.gather(*self._forking, return_exceptions=True)

    def routes(self) -> list[Route]:
        one = "/workspaces/{id}"
        tail = {"tail": whole("how many lines", 1, _LONGEST_TAIL)}
        return [
            Route("GET", "/workspaces", Scope.READ, self._list, "All workspaces that you see", answers={200: "a list of workspaces"}),
            Route("POST", "/workspaces", Scope.FORK, self._launch, "Launch a workspace", Launch, {201: "the workspace, starting; ready with `wait`"}, once="kept"),
            Route("GET", one, Scope.READ, self._get, "One workspace", answers={200: "the workspace"}),
            Route("DELETE", one, Scope.FORK, self._remove, "Discard a workspace", answers={204: "all of it is gone"}, acts=True, once="kept", cost=HEAVY),
            Route("POST", one + "/fork", Scope.FORK, self._fork, "Fork a running workspace", Fork,
                  {201: "the fork result, with `results`: for each child its workspace or why there is none", 202: "it has begun"}, once="kept"),
            Route("POST", one + "/pause", Scope.FORK, self._pause, "Let its programs stand still", answers={200: "the workspace"}, acts=True, cost=HEAVY),
            Route("POST", one + "/resume", Scope.FORK, self._resume, "Let its programs go on", answers={200: "the workspace"}, acts=True, cost=HEAVY),
            Route("GET", one + "/logs", Scope.READ, self._logs, "Its console output", answers={200: "text"}, query=tail, content=("text/plain",)),
            Route("POST", one + "/ticket", Scope.READ, self._ticket, "A one-time code that opens its desktop", answers={200: "action and code"}),
        ]  # fmt: skip

    async def _list(self, call: Call) -> web.Response:
        listed = await self._node.workspaces()
        return web.json_response([item for item in listed if self._owners.sees(call.principal, item["id"])])

    async def _get(self, call: Call) -> web.Response:
        return web.json_response(await self._node.workspace(call.workspace))

    async def _launch(self, call: Call) -> web.Response:
        return web.json_response(await self.launch(call.principal, call.body, call.request_id), status=201)

    async def launch(self, principal: Principal, wanted: Launch, request_id: str | None = None, env: dict[str, str] | None = None) -> dict[str, Any]:
        """The workspace that was made; `env` is what its programs find in their environment. Raises OverQuota, TooMany, EngineError."""
        user, unlimited = principal.user, principal.role is Role.ADMIN
        if wanted.osworld and not principal.may(Scope.CONTROL):
            # Whoever is on the host drives it, whoever launched it included.
            raise Forbidden(f"osworld needs the scope {Scope.CONTROL}, too")
        with audit.outcome("launch", principal, None, image=wanted.image, network=wanted.network) as told:
            self._forks.pace(principal, 1)
            each = self._quotas.granted(user, Limits(wanted.memory or DEFAULT_MEMORY, wanted.disk, wanted.cpus), unlimited)
            with self._quotas.reserve(user, 1, each, unlimited, asks=user):
                made = await self._node.launch(
                    wanted.image, wanted.name or None, sorted(set(wanted.ports)), wanted.memory, wanted.network, each.disk, env,
                    request_id=request_id, osworld=wanted.osworld, cpus=each.cpus,
                )  # fmt: skip
                told["workspace"] = made["id"]
                await self._owners.claim(made["id"], user)
            if wanted.persistent or wanted.timeout is not None:
                await self._lifetimes.rule(made["id"], Rules(None, wanted.timeout))
            # The engine told of it before there was an owner to show it to.
            self._feed.show(made["id"])
        return await self._ready(made["id"]) if wanted.wait else made

    async def _ready(self, identity: str) -> dict[str, Any]:
        """The workspace, when its start has come to its end: `ready`, or `failed` with its `error`."""
        async with self._feed.watch(None) as events:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_READY_SECONDS):
                    while (known := self._feed.workspace(identity)) is not None and known["state"] in ("created", "starting"):
                        if await events.get() is None:
                            break
        return await self._node.workspace(identity)

    async def _remove(self, call: Call) -> web.Response:
        with audit.outcome("discard", call.principal, call.workspace):
            await self._node.remove(call.workspace)
        return web.Response(status=204)

    async def _fork(self, call: Call) -> web.Response:
        wanted: Fork = call.body
        if wanted.wait:
            result = await self._forks.fork(call.principal, call.workspace, wanted.wanted(), call.request_id)
            return web.json_response(result, status=201)
        task = asyncio.create_task(self._forks.fork(call.principal, call.workspace, wanted.wanted(), call.request_id), name="fork")
        self._forking.add(task)
        task.add_done_callback(self._forked)
        # What is refused is refused at once: told here, not by an event that nobody may read.
        await asyncio.wait({task}, timeout=_BEGUN_SECONDS)
        if task.done() and task.exception() is not None:
            task.result()
        return web.json_response({"source": call.workspace, "begun": True}, status=202)

    def _forked(self, task: asyncio.Task[dict[str, Any]]) -> None:
        self._forking.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.info("a fork that nobody waited for: %s", task.exception())

    async def _pause(self, call: Call) -> web.Response:
        with audit.outcome("pause", call.principal, call.workspace):
            return web.json_response(await self._node.pause(call.workspace))

    async def _resume(self, call: Call) -> web.Response:
        with audit.outcome("resume", call.principal, call.workspace):
            return web.json_response(await self._node.resume(call.workspace))

    async def _logs(self, call: Call) -> web.Response:
        tail = number(call.request.query.get("tail", "200"), "tail", 1, _LONGEST_TAIL)
        return web.Response(text=await self._node.logs(call.workspace, tail))

    async def _ticket(self, call: Call) -> web.Response:
        session = call.principal.session
        if session is None:
            raise Forbidden("a desktop is opened by a login, not by a token")
        identity = call.workspace
        workspace = await self._node.workspace(identity)
        opens(workspace)
        origin = hosts.desktop_origin(identity, call.request.headers.get(hdrs.HOST, ""))
        return web.json_response({"action": f"{origin}/__tclone/enter", "code": self._tickets.issue(session.id, identity)})
