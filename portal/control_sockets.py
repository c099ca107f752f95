"""`/workspaces/{id}/control`: the WebSockets of programs that act and look often, and who may open one. docs/reference/control-socket.md has the messages."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from portal.api.actions import Actions
from portal.control_session import ControlSession
from portal.endings import Endings
from portal.feed import Feed
from portal.identity import Identity
from portal.leases import Leases
from portal.node import Node
from portal.principal import Scope
from portal.routes import LONGEST_TEXT_BODY, PREFIX, Call, Router, SocketRoute
from portal.sockets import Limited, Sockets


class ControlSockets:
    """Those that are open. The rules of the REST API hold for each action: scope, lease, rate, audit."""

    def __init__(self, actions: Actions, node: Node, feed: Feed, leases: Leases, endings: Endings, identity: Identity, router: Router) -> None:
        self._actions = actions
        self._node = node
        self._feed = feed
        self._leases = leases
        self._endings = endings
        self._identity = identity
        self._router = router
        self._open = Limited("control socket")
        # Pictures are compressed already.
        self._sockets = Sockets(LONGEST_TEXT_BODY, compress=False)

    def route(self) -> SocketRoute:
        return SocketRoute("/workspaces/{id}/control", Scope.READ, "Actions and pictures with little delay, as a WebSocket")

    def routes(self) -> list[web.RouteDef]:
        return [web.get(PREFIX + self.route().path, self._sockets.handler(self._greeted))]

    async def close(self) -> None:
        await self._sockets.close()

    async def _greeted(self, request: web.Request, socket: web.WebSocketResponse, hello: dict[str, Any]) -> None:
        principal = self._identity.of_socket(request, hello.get("key"))
        identity = self._router.admit(request, principal, Scope.READ)
        await self._session(socket, Call(request, principal, identity, None))

    async def _session(self, socket: web.WebSocketResponse, call: Call) -> None:
        workspace = call.workspace
        await self._node.workspace(workspace)
        with self._open.another(workspace):
            async with self._endings.watch() as ended, self._feed.watch(None) as events:
                lease = self._leases.of(workspace)
                await socket.send_json({"type": "ready", "workspace": workspace, "lease": lease.public() if lease else None})
                await ControlSession(socket, call, self._actions, self._node).serve(ended, events)
