"""How a request to the API becomes a call: who asks, whether it may, for which workspace, with what body."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import pydantic
from aiohttp import web

from portal import logs
from portal.bodies import Body, parsed
from portal.errors import Forbidden, Held, Malformed, NoWorkspace, PortalError
from portal.identity import Identity
from portal.leases import Leases
from portal.lifetimes import Lifetimes
from portal.once import KEY_HEADER, Once, check_key
from portal.owners import Owners
from portal.parameters import Parameter
from portal.principal import Principal, Scope
from portal.rates import Rates
from portal.refusals import Refusals
from portal.sockets import Limited

PREFIX = "/api/v1"
_ID = re.compile(r"ws-[0-9]{1,18}")


@dataclass(frozen=True)
class Call:
    """One authorised request. `workspace` is the id in its path, one that the principal may see; `body` an instance of the route's model."""

    request: web.Request
    principal: Principal
    workspace: str
    body: Any

    @property
    def request_id(self) -> str | None:
        """The request's Idempotency-Key, apart from equal ones of others and for other things. Raises Malformed."""
        return self.identified(self.request.headers.get(KEY_HEADER))

    def identified(self, key: str | None) -> str | None:
        """The same for a key of a request among others on one connection."""
        if check_key(key) is None:
            return None
        name = f"{self.principal.user}\0{self.principal.grant}\0{self.request.method}\0{self.request.path_qs}\0{key}"
        return hashlib.sha256(name.encode()).hexdigest()


# Bytes, of requests with nothing long in them; and of those with a text of up to 1 MiB, each of whose characters may be escaped as \\u0000.
LONGEST_BODY = 64 << 10
LONGEST_TEXT_BODY = 8 << 20
# Requests of one user at a time whose bodies are longer than the former.
MOST_LONG = 16
# Calls of one token or login: a burst, then so many a second; what makes the engine draw, read or look through much counts for several. A page with
# nine tiles comes to 30 a second, a fleet of 60 agents with one token to 200: only a loop without end goes beyond.
CALLS_BURST, CALLS_PER_SECOND = 3000, 300.0
# Pictures, trees, figures and lists of files.
COSTLY = 2
# What stops or ends a workspace, or compares all of its files.
HEAVY = 10

Handler = Callable[[Call], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Route:
    """One method of one path below the prefix. `{id}` in the path is a workspace; `summary` is its line in the OpenAPI document.

    `answers`: status to what it carries, a pydantic model or a sentence. `content`: the media types of what it carries. `takes`: the media
    type of a body that is not JSON. `acts`: it changes what runs inside the workspace, so a program is refused while a person has control (423).
    `once`: carried out once for each Idempotency-Key; its answer is kept in `memory`, or `kept` beyond a restart of the portal.
    `longest`: bytes that a body in memory may have (413). `fresh`: a browser's user must have shown who it is a short time ago (403 `confirm`).
    `enrols`: also for a user who has yet to set up the second factor that everybody has to have. `cost`: how many calls it counts for (429).
    """

    method: str
    path: str
    scope: Scope
    handler: Handler
    summary: str
    body: type[Body] | None = None
    answers: dict[int, type[pydantic.BaseModel] | str] | None = None
    query: dict[str, Parameter] | None = None
    content: tuple[str, ...] = ("application/json",)
    takes: str = ""
    acts: bool = False
    once: Literal["", "memory", "kept"] = ""
    longest: int = LONGEST_BODY
    fresh: bool = False
    enrols: bool = False
    cost: int = 1


@dataclass(frozen=True)
class SocketRoute:
    """A WebSocket below the prefix, for the OpenAPI document: its first message is a hello, by which it is let in."""

    path: str
    scope: Scope
    summary: str


class Router:
    """Makes aiohttp's routes of ours."""

    def __init__(self, identity: Identity, owners: Owners, leases: Leases, lifetimes: Lifetimes, once: Once) -> None:
        self._once = once
        self._long = Limited("long request", MOST_LONG)
        self._calls = Rates(CALLS_BURST, CALLS_PER_SECOND, what="calls")
        self._refusals = Refusals()
        self._identity = identity
        self._owners = owners
        self._leases = leases
        self._lifetimes = lifetimes

    def bind(self, routes: Sequence[Route]) -> list[web.RouteDef]:
        """Every route behind the checks that its declaration asks for."""
        return [web.route(route.method, PREFIX + route.path, self._guarded(route)) for route in routes]

    def _guarded(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def serve(request: web.Request) -> web.StreamResponse:
            principal = self._identity.of(request, enrolling=route.enrols)
            workspace = self.admit(request, principal, route.scope, cost=route.cost)
            if route.fresh:
                principal.require_fresh()
            # aiohttp's own limit holds for what is read before it is known who asks.
            request = request.clone(client_max_size=route.longest)
            with self._held_in_memory(route, request, principal):
                body = await parsed(request, route.body) if route.body is not None else None
                call = Call(request, principal, workspace, body)
                name = call.request_id if route.once else None
                if name is None:
                    return await self._handled(route, call)
                # Before the lease is asked: what was done before a person took control is not told as refused.
                return await self._once.answer(name, await request.read(), lambda: self._handled(route, call), keep=route.once == "kept")

        return serve

    def _held_in_memory(self, route: Route, request: web.Request, principal: Principal) -> AbstractContextManager[None]:
        """Around a request whose body may be long: a user has only so many. Raises TooMany."""
        length = request.content_length
        if route.longest <= LONGEST_BODY or not request.body_exists or (length is not None and length <= LONGEST_BODY):
            return nullcontext()
        return self._long.another(principal.user)

    async def _handled(self, route: Route, call: Call) -> web.StreamResponse:
        if route.acts:
            self.act(call.principal, call.workspace, f"{route.method} {route.path}")
        try:
            return await route.handler(call)
        except Forbidden as error:
            self._refused(call.principal, call.workspace, error)
            raise

    def admit(self, request: web.Request, principal: Principal, scope: Scope, acts: bool = False, cost: int = 1) -> str:
        """The workspace in the request's path, empty where it has none. `acts` and `cost`: as in Route. Raises Forbidden, Malformed, NoWorkspace, Held, TooMany."""
        return self.enter(principal, request.match_info.get("id"), scope, request.path if acts else "", cost)

    def enter(self, principal: Principal, identity: str | None, scope: Scope, acts: str = "", cost: int = 1) -> str:
        """The same for a workspace that is named elsewhere than in the path; None: none is. `acts`: what is asked for, when it changes something inside."""
        self._calls.take(principal.grant, cost)
        if not principal.may(scope):
            error = Forbidden(f"this needs the scope {scope}; {_held(principal)}")
            self._refused(principal, identity if identity and _ID.fullmatch(identity) else "", error)
            raise error
        workspace = self._workspace(identity, principal) if identity is not None else ""
        if acts:
            self.act(principal, workspace, acts)
        return workspace

    def act(self, principal: Principal, workspace: str, asked: str) -> None:
        """Before each thing that is done to a workspace over a connection that stays open, too. A refusal is on record, with what was asked. Raises Held."""
        try:
            self.may_act(principal, workspace)
        except Held as error:
            self._refused(principal, workspace, error, asked)
            raise

    def may_act(self, principal: Principal, workspace: str) -> None:
        """The same for what has a record of its own. Raises Held."""
        self._leases.check(principal, workspace)
        self._lifetimes.touch(workspace)

    def _workspace(self, identity: str, principal: Principal) -> str:
        if not _ID.fullmatch(identity):
            raise Malformed("a workspace's id looks like ws-3")
        # Others' workspaces answer as absent ones do: their ids tell nothing.
        if not self._owners.sees(principal, identity):
            error = NoWorkspace(f"no workspace {identity}")
            if self._owners.of(identity) is not None:
                self._refused(principal, identity, error)
            raise error
        logs.note(workspace=identity)
        return identity

    def _refused(self, principal: Principal, workspace: str, error: PortalError, asked: str = "") -> None:
        """On record once, however many hands an error goes through."""
        if not error.on_record:
            error.on_record = True
            self._refusals.record(principal, workspace, error, asked)


def _held(principal: Principal) -> str:
    held = ", ".join(sorted(principal.scopes))
    return f"this token has {held}" if principal.token else f"{principal.user} has {held}"
