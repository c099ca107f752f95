"""Who drives a workspace, and how long it lives."""

from __future__ import annotations

from aiohttp import web

from portal import audit
from portal.bodies import Body
from portal.leases import Leases
from portal.lifetimes import Lifetimes, Rules
from portal.principal import Scope
from portal.routes import Call, Route
from portal.settings import Seconds


class Take(Body):
    """`force` takes it from another person."""

    force: bool = False


class Wanted(Body):
    """Seconds from 60 on; null means never."""

    idle_seconds: Seconds | None
    lifetime_seconds: Seconds | None


class Control:
    """`/workspaces/{id}/lease`, `/keepalive`, `/lifetime`."""

    def __init__(self, leases: Leases, lifetimes: Lifetimes) -> None:
        self._leases = leases
        self._lifetimes = lifetimes

    def routes(self) -> list[Route]:
        one = "/workspaces/{id}"
        lease, life = one + "/lease", one + "/lifetime"
        return [
            Route("GET", lease, Scope.READ, self._lease, "Who has control", answers={200: "the hold, or null"}),
            Route("POST", lease, Scope.CONTROL, self._take, "Take control, or keep it", Take, {200: "the hold"}),
            Route("DELETE", lease, Scope.CONTROL, self._hand_back, "Hand control back", answers={204: "nobody has it"}),
            Route("GET", life, Scope.READ, self._life, "How long it lives", answers={200: "rules and deadlines"}),
            Route("PUT", life, Scope.FORK, self._rule, "Change how long it lives", Wanted, {200: "rules and deadlines"}),
            Route("POST", one + "/keepalive", Scope.CONTROL, self._keep, "Count its time anew", answers={200: "rules and deadlines"}),
        ]

    async def _lease(self, call: Call) -> web.Response:
        lease = self._leases.of(call.workspace)
        return web.json_response(lease.public() if lease else None)

    async def _take(self, call: Call) -> web.Response:
        wanted: Take = call.body
        lease = await self._leases.take(call.principal, call.workspace, wanted.force)
        return web.json_response(lease.public())

    async def _hand_back(self, call: Call) -> web.Response:
        await self._leases.hand_back(call.principal, call.workspace)
        return web.Response(status=204)

    async def _life(self, call: Call) -> web.Response:
        life = self._lifetimes.of(call.workspace)
        return web.json_response(life.public() if life else None)

    async def _rule(self, call: Call) -> web.Response:
        wanted: Wanted = call.body
        life = await self._lifetimes.rule(call.workspace, Rules(wanted.idle_seconds, wanted.lifetime_seconds))
        audit.record("lifetime", user=call.principal.user, token=call.principal.token, workspace=call.workspace, idle=wanted.idle_seconds, lifetime=wanted.lifetime_seconds)
        return web.json_response(life.public())

    async def _keep(self, call: Call) -> web.Response:
        life = await self._lifetimes.keep(call.workspace)
        audit.record("kept-alive", user=call.principal.user, token=call.principal.token, workspace=call.workspace)
        return web.json_response(life.public() if life else None)
