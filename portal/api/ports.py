"""Servers of a workspace: what listens inside, publishing and unpublishing it, and what the workspace uses."""

from __future__ import annotations

from aiohttp import web

from portal import audit
from portal.inside import Inside
from portal.parameters import number
from portal.principal import Scope
from portal.routes import COSTLY, Call, Route


class Ports:
    """`/workspaces/{id}/listeners`, `/ports/{port}`, `/stats`."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside

    def routes(self) -> list[Route]:
        one = "/workspaces/{id}"
        return [
            Route("GET", one + "/listeners", Scope.READ, self._listeners, "Servers that listen inside", answers={200: "listeners"}, cost=COSTLY),
            Route("POST", one + "/ports/{port}", Scope.CONTROL, self._publish, "Publish a port", answers={201: "container and host port"}, once="kept"),
            Route("DELETE", one + "/ports/{port}", Scope.CONTROL, self._unpublish, "Stop publishing a port", answers={204: "it is closed"}),
            Route("GET", one + "/stats", Scope.READ, self._stats, "Memory, disk, processor time", answers={200: "the figures"}, cost=COSTLY),
        ]

    async def _listeners(self, call: Call) -> web.Response:
        return web.json_response({"listeners": await self._inside.listeners(call.workspace)})

    async def _publish(self, call: Call) -> web.Response:
        port = _port(call)
        with audit.outcome("publish", call.principal, call.workspace, port=port) as told:
            made = await self._inside.publish(call.workspace, port)
            told["host"] = made.get("host")
        return web.json_response(made, status=201)

    async def _unpublish(self, call: Call) -> web.Response:
        port = _port(call)
        with audit.outcome("unpublish", call.principal, call.workspace, port=port):
            await self._inside.unpublish(call.workspace, port)
        return web.Response(status=204)

    async def _stats(self, call: Call) -> web.Response:
        return web.json_response(await self._inside.stats(call.workspace))


def _port(call: Call) -> int:
    return number(call.request.match_info["port"], "the port", 1, 65535)
