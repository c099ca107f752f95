"""`/workspaces/{id}/control`: a WebSocket for programs that act and look often. docs/reference/control-socket.md has its messages."""

from __future__ import annotations

import contextlib
from collections import Counter

from aiohttp import WSCloseCode, web

from engine.errors import EngineError
from portal.api.actions import Actions
from portal.channel import Channel
from portal.endings import Endings
from portal.errors import LoginNeeded, PortalError, TooMany, error_body
from portal.feed import Feed
from portal.identity import Identity
from portal.leases import Leases
from portal.live import hello_of
from portal.node import Node
from portal.principal import Scope
from portal.routes import PREFIX, Call, Router

_PING_SECONDS = 20.0
# Room for a clipboard's text however it is escaped.
_LONGEST_MESSAGE = 8 << 20
_MOST_OPEN = 16


class Channels:
    """Those that are open. The rules of the REST API hold for each action: scope, lease, rate, audit."""

    def __init__(self, actions: Actions, node: Node, feed: Feed, leases: Leases, endings: Endings, identity: Identity, router: Router) -> None:
        self._actions = actions
        self._node = node
        self._feed = feed
        self._leases = leases
        self._endings = endings
        self._identity = identity
        self._router = router
        self._open: Counter[str] = Counter()
        self._sockets: set[web.WebSocketResponse] = set()

    def routes(self) -> list[web.RouteDef]:
        return [web.get(PREFIX + "/workspaces/{id}/control", self._serve)]

    async def close(self) -> None:
        for socket in list(self._sockets):
            with contextlib.suppress(ConnectionError, RuntimeError):
                await socket.close(code=WSCloseCode.SERVICE_RESTART, message=b"the portal restarts")

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(heartbeat=_PING_SECONDS, max_msg_size=_LONGEST_MESSAGE, compress=False)
        await socket.prepare(request)
        self._sockets.add(socket)
        try:
            hello = await hello_of(socket)
            if hello is None:
                await socket.close(code=WSCloseCode.POLICY_VIOLATION, message=b"the first message must be a hello")
                return socket
            try:
                principal = self._identity.of_socket(request, hello.get("key"))
                identity = self._router.admit(request, principal, Scope.READ)
                await self._channel(socket, Call(request, principal, identity, None))
            except LoginNeeded:
                await socket.send_json({"type": "ended"})
                await socket.close()
            except (EngineError, PortalError) as error:
                more = error.more if isinstance(error, PortalError) else {}
                await socket.send_json({"type": "error", **error_body(error.code, error.message, **more)})
                await socket.close()
        except ConnectionError:
            pass  # the program has gone
        finally:
            self._sockets.discard(socket)
        return socket

    async def _channel(self, socket: web.WebSocketResponse, call: Call) -> None:
        workspace = call.workspace
        await self._node.workspace(workspace)
        if self._open[workspace] >= _MOST_OPEN:
            raise TooMany(f"{_MOST_OPEN} control sockets of {workspace} are open; close one")
        self._open[workspace] += 1
        try:
            async with self._endings.watch() as ended, self._feed.watch(None) as events:
                lease = self._leases.of(workspace)
                await socket.send_json({"type": "ready", "workspace": workspace, "lease": lease.public() if lease else None})
                await Channel(socket, call, self._actions, self._node).serve(ended, events)
        finally:
            self._open[workspace] -= 1
            if not self._open[workspace]:
                del self._open[workspace]
