"""The routes of a workspace's servers: what listens inside, and publishing it while it runs."""

from __future__ import annotations

import asyncio
import json

from aiohttp import web

from engine import listeners
from engine.errors import BadRequest, Conflict
from engine.manager import Manager
from engine.network import PortRequest
from engine.workspace import CHROMIUM, OSWORLD_PORTS, State, Workspace, check_integer


class PortRoutes:
    """`GET …/listeners`, `POST|DELETE …/ports/{port}`, `POST|DELETE …/osworld`."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    def routes(self) -> list[web.RouteDef]:
        one = "/v1/workspaces/{ref}"
        return [
            web.get(one + "/listeners", self._list),
            web.post(one + "/ports/{port}", self._publish),
            web.delete(one + "/ports/{port}", self._unpublish),
            web.post(one + "/osworld", self._open_osworld),
            web.delete(one + "/osworld", self._close_osworld),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        workspace = self._manager.find(request.match_info["ref"])
        if not workspace.alive:
            raise Conflict(f"{workspace.id} is not running; it is {workspace.state.value}")
        found = await self._manager.network.tcp_listeners(workspace.id)
        described = await asyncio.to_thread(listeners.describe, workspace, found, self._manager.cgroups)
        return web.json_response({"listeners": described})

    async def _publish(self, request: web.Request) -> web.Response:
        workspace, container = self._target(request)
        host = await _host(request)
        if container == workspace.stream_port:
            raise Conflict(f"port {container} of {workspace.id} is its desktop's stream, which the portal serves; publish another")
        # Done to its end also when the caller goes away: a port that is open is on record.
        opened = await asyncio.shield(self._manager.background(self._published(workspace, container, host)))
        return web.json_response({"container": container, "host": opened}, status=201)

    async def _unpublish(self, request: web.Request) -> web.Response:
        workspace, container = self._target(request)
        await asyncio.shield(self._manager.background(self._unpublished(workspace, container)))
        return web.Response(status=204)

    async def _open_osworld(self, request: web.Request) -> web.Response:
        workspace = self._present(request)
        if not workspace.desktop:
            raise Conflict(f"osworld needs a desktop, and image {workspace.image} of {workspace.id} is headless")
        if workspace.osworld is None and str(CHROMIUM) in workspace.ports:
            raise Conflict(f"port {CHROMIUM} of {workspace.id} is open to the network; unpublish it first, since a debugging port has no login")
        await asyncio.shield(self._manager.background(self._with_osworld(workspace)))
        return web.json_response(workspace.public(), status=201)

    async def _close_osworld(self, request: web.Request) -> web.Response:
        workspace = self._present(request)
        await asyncio.shield(self._manager.background(self._without_osworld(workspace)))
        return web.Response(status=204)

    def _present(self, request: web.Request) -> Workspace:
        workspace = self._manager.find(request.match_info["ref"])
        if workspace.state in (State.REMOVING, State.GONE):
            raise Conflict(f"{workspace.id} is being removed")
        return workspace

    async def _with_osworld(self, workspace: Workspace) -> None:
        for container in sorted(OSWORLD_PORTS):
            await self._manager.network.publish_one(workspace.id, PortRequest(container, local=True))
        await self._recorded(workspace)

    async def _without_osworld(self, workspace: Workspace) -> None:
        for container in OSWORLD_PORTS & self._manager.network.ports(workspace.id).keys():
            await self._manager.network.unpublish(workspace.id, container)
        await self._recorded(workspace)

    def _target(self, request: web.Request) -> tuple[Workspace, int]:
        workspace = self._present(request)
        text = request.match_info["port"]
        if not text.isascii() or not text.isdecimal() or len(text) > 5:
            raise BadRequest("the port must be a number from 1 to 65535")
        return workspace, check_integer(int(text), "the port", 1, 65535)

    async def _published(self, workspace: Workspace, container: int, host: int | None) -> int:
        opened = await self._manager.network.publish_one(workspace.id, PortRequest(container, host, container in workspace.local_ports()))
        await self._recorded(workspace)
        return opened

    async def _unpublished(self, workspace: Workspace, container: int) -> None:
        await self._manager.network.unpublish(workspace.id, container)
        await self._recorded(workspace)

    async def _recorded(self, workspace: Workspace) -> None:
        """Bring the record in line with what is published. Nothing runs between the two lines, so the later of two calls is right."""
        workspace.take_ports(self._manager.network.ports(workspace.id))
        if workspace.id in self._manager.workspaces:
            await self._manager.changed(workspace)


async def _host(request: web.Request) -> int | None:
    """The host port asked for; None for a free one. Raises BadRequest."""
    data = await request.read()
    if not data.strip():
        return None
    try:
        body = json.loads(data)
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict) or set(body) - {"host"}:
        raise BadRequest("the body must be an object with nothing but `host`")
    host = body.get("host")
    return None if host is None else check_integer(host, "host", 1, 65535)
