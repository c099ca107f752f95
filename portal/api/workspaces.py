"""Workspaces: list, launch, fork, discard, logs and the ticket to a desktop."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic
from aiohttp import hdrs, web

from engine.config import DEFAULT_MEMORY
from portal import audit, hosts, tracing
from portal.bodies import Body
from portal.errors import Forbidden
from portal.feed import Feed
from portal.node import Node, opens
from portal.owners import Owners
from portal.parameters import number, whole
from portal.principal import Role, Scope
from portal.quotas import Quotas
from portal.routes import Call, Route
from portal.tickets import Tickets

_LONGEST_TAIL = 2000

Port = Annotated[int, pydantic.Field(ge=1, le=65535)]
Name = Annotated[str, pydantic.Field(max_length=200)]


Network = Literal["open", "none"]


class Launch(Body):
    """`memory` and `disk` (how much it may write; null: no limit) are in bytes; `network` is what it may reach."""

    image: Annotated[str, pydantic.Field(min_length=1, max_length=200)]
    name: Name | None = None
    ports: Annotated[list[Port], pydantic.Field(max_length=64)] = []
    memory: int | None = None
    disk: int | None = None
    network: Network = "open"


Label = Annotated[str, pydantic.Field(max_length=80)]


class Fork(Body):
    """`network` is what the copies may reach (default: what the source may), `labels` say what each is for."""

    copies: Annotated[int, pydantic.Field(ge=1, le=8)] = 1
    name: Name | None = None
    tcp_close: bool = False
    network: Network | None = None
    labels: Annotated[list[Label], pydantic.Field(max_length=8)] | None = None


class Workspaces:
    """`/workspaces`."""

    def __init__(self, node: Node, feed: Feed, owners: Owners, tickets: Tickets, quotas: Quotas) -> None:
        self._quotas = quotas
        self._node = node
        self._feed = feed
        self._owners = owners
        self._tickets = tickets

    def routes(self) -> list[Route]:
        one = "/workspaces/{id}"
        tail = {"tail": whole("how many lines", 1, _LONGEST_TAIL)}
        return [
            Route("GET", "/workspaces", Scope.READ, self._list, "All workspaces that you see", answers={200: "a list of workspaces"}),
            Route("POST", "/workspaces", Scope.FORK, self._launch, "Launch a workspace", Launch, {201: "the workspace, starting"}),
            Route("GET", one, Scope.READ, self._get, "One workspace", answers={200: "the workspace"}),
            Route("DELETE", one, Scope.FORK, self._remove, "Discard a workspace", answers={204: "all of it is gone"}, acts=True),
            Route("POST", one + "/fork", Scope.FORK, self._fork, "Fork a running workspace", Fork, {201: "the fork result"}),
            Route("GET", one + "/logs", Scope.READ, self._logs, "Its console output", answers={200: "text"}, query=tail, content=("text/plain",)),
            Route("POST", one + "/ticket", Scope.READ, self._ticket, "A one-time code that opens its desktop", answers={200: "action and code"}),
        ]

    async def _list(self, call: Call) -> web.Response:
        listed = await self._node.workspaces()
        return web.json_response([item for item in listed if self._owners.sees(call.principal, item["id"])])

    async def _get(self, call: Call) -> web.Response:
        return web.json_response(await self._node.workspace(call.workspace))

    async def _launch(self, call: Call) -> web.Response:
        wanted: Launch = call.body
        user, unlimited = call.principal.user, call.principal.role is Role.ADMIN
        with self._quotas.reserve(user, 1, wanted.memory or DEFAULT_MEMORY, unlimited):
            made = await self._node.launch(wanted.image, wanted.name or None, sorted(set(wanted.ports)), wanted.memory, wanted.network, wanted.disk)
            await self._owners.claim(made["id"], user)
        # The engine told of it before there was an owner to show it to.
        self._feed.show(made["id"])
        audit.record("launch", user=call.principal.user, workspace=made["id"], image=wanted.image, network=wanted.network)
        return web.json_response(made, status=201)

    async def _remove(self, call: Call) -> web.Response:
        await self._node.remove(call.workspace)
        audit.record("discard", user=call.principal.user, workspace=call.workspace)
        return web.Response(status=204)

    async def _fork(self, call: Call) -> web.Response:
        wanted: Fork = call.body
        source = await self._node.workspace(call.workspace)
        owner, unlimited = self._owners.of(call.workspace), call.principal.role is Role.ADMIN
        with self._quotas.reserve(owner, wanted.copies, source["memory_limit"], unlimited), tracing.fork(call.workspace) as measured:
            result = await self._node.fork(call.workspace, wanted.copies, wanted.name or None, wanted.tcp_close, wanted.network, wanted.labels)
            measured(result["ms"])
        made = [branch.get("id") for branch in result["branches"]]
        audit.record("fork", user=call.principal.user, workspace=call.workspace, branches=made)
        return web.json_response(result, status=201)

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
