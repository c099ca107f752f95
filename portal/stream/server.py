"""The data plane put together: listening, routing, health and an orderly end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from multidict import CIMultiDict

from engine.answers import SERVER
from portal import logs
from portal.hosts import portal_origin, stream_of
from portal.quiet import quiet
from portal.stream import pages
from portal.stream.certificate import Certificate
from portal.stream.control import Control
from portal.stream.desktop import Desktops
from portal.stream.errors import Denied, StreamError, WrongHost
from portal.stream.frames import GOING_AWAY, RESTART
from portal.stream.front import Front, Link, NativeError
from portal.stream.headers import request_headers, response_headers
from portal.stream.pace import Pace
from portal.stream.peers import FrontProxies
from portal.stream.ports import PublishedPorts
from portal.stream.proxy import Target, check_target, forward, upgrade, wants_upgrade
from portal.stream.registry import OpenRelay, Registry
from portal.stream.routing import Route, resolve
from portal.stream.tuning import CHUNK, socket_of, tune_viewer
from portal.stream.upstream import control_client, desktop_client
from portal.stream.workspaces import Descriptors, Engine, Workspaces

_log = logging.getLogger(__name__)
quiet(_log)

DRAIN_SECONDS = 5.0
_RELAY_DRAIN_SECONDS = 2.0
_HANDSHAKE_SECONDS = 10.0
_KEEPALIVE_SECONDS = 75.0
_HEADER_LINE = 16 * 1024
_HEADER_COUNT = 128
# Each viewer costs two descriptors; the hard limit here is 20 000.
_CONNECTIONS = 8000


@dataclass(frozen=True)
class Settings:
    """What one worker needs. `run` is the portal's run directory, `pace` is shared by all workers, `name` tells them apart; `published`:
    whether this one serves the published ports (one worker does). `library`: the native relay's; without it, or where it cannot be used, asyncio relays."""

    run: Path
    pace: Pace
    name: str = "stream"
    published: bool = True
    front_proxies: FrontProxies = field(default_factory=FrontProxies)
    library: Path | None = None


class _Server(web.Server):
    """aiohttp's connection manager, telling the registry of connections that are gone and refusing those beyond the limit."""

    def __init__(self, handler: Any, registry: Registry, lost: Callable[[RequestHandler], None]) -> None:
        super().__init__(
            handler,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=_KEEPALIVE_SECONDS,
            auto_decompress=False,
            tcp_keepalive=False,
            max_line_size=_HEADER_LINE,
            max_field_size=_HEADER_LINE,
            max_headers=_HEADER_COUNT,
            read_bufsize=CHUNK,
            logger=_log,
        )
        self._registry = registry
        self._lost = lost

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        sock = socket_of(transport)
        if sock is not None:
            tune_viewer(sock)
        if len(self._connections) > _CONNECTIONS:
            _log.error("more than %d connections; refusing one", _CONNECTIONS)
            transport.abort()

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        self._registry.drop_connection(handler)
        self._lost(handler)
        super().connection_lost(handler, exc)


class StreamServer:
    """One worker. `start()`, `listen()`, and `stop()` once."""

    def __init__(self, settings: Settings, engine: Engine, descriptors: Callable[[Callable[[], None]], Descriptors]) -> None:
        """`descriptors` makes the client of the descriptor socket from what to call when the engine is lost."""
        self._settings = settings
        self._engine = engine
        self._descriptors = descriptors(lambda: self.ports.engine_lost())
        self._started = time.time()
        self._servers: list[asyncio.Server] = []
        self._front: Front | None = None
        self._draining = False
        self.registry = Registry(lambda opened: self.control.report(opened))
        self.ports = PublishedPorts(self._descriptors)
        self.workspaces = Workspaces(engine, self._workspaces_changed, self._workspace_gone)
        self.control = Control(
            settings.run / "private.sock",
            lambda session, reason: self.registry.end_session(session, reason),
            lambda sessions: self.registry.keep_sessions(sessions),
        )

    async def start(self) -> None:
        """Connect to control and engine (both may still be down) and open the health socket."""
        self._control_client = control_client(self._settings.run / "control.sock")
        self._desktop_client = desktop_client(self._descriptors)
        self.desktops = Desktops(
            self._desktop_client, self.control, self._engine, self.workspaces, self.registry, self._settings.pace, self._link
        )
        self._http = _Server(self._handle, self.registry, self._lost)
        self.registry.start()
        await self.control.start()
        self.workspaces.start()
        if self._settings.published:
            self.ports.start()
        await self._open_health()

    def _link(self, protocol: object) -> Link | None:
        return self._front.link(protocol) if self._front is not None else None

    def _lost(self, protocol: RequestHandler) -> None:
        if self._front is not None:
            self._front.forget(protocol)

    async def listen(self, sockets: list[socket.socket], certificate: Certificate | None) -> None:
        """Serve on listening sockets. Without `certificate` plain HTTP: for measuring what TLS costs."""
        if self._settings.library is not None:
            try:
                self._front = Front(self._settings.library, _CONNECTIONS, self._http, _HANDSHAKE_SECONDS)
            except NativeError as error:
                _log.warning("asyncio relays, which takes more processor time: %s", error)
        if self._front is not None:
            self._front.listen(sockets, certificate)
            return
        tls = certificate.context if certificate is not None else None
        loop = asyncio.get_running_loop()
        patience = {"ssl_handshake_timeout": _HANDSHAKE_SECONDS, "ssl_shutdown_timeout": 1.0} if tls is not None else {}
        for sock in sockets:
            server = await loop.create_server(
                self._http,
                sock=sock,
                ssl=tls,
                backlog=512,
                **patience,
            )
            self._servers.append(server)

    async def stop(self) -> None:
        """Drain: no new connections, a Close frame for each viewer, the rest dropped; within DRAIN_SECONDS."""
        self._draining = True
        for server in self._servers:
            server.close()
        if self._front is not None:
            self._front.stop_listening()
        self._http.pre_shutdown()
        await self.ports.stop()
        await self.registry.drain(RESTART, "the portal restarts", _RELAY_DRAIN_SECONDS)
        await self._http.shutdown(timeout=DRAIN_SECONDS - _RELAY_DRAIN_SECONDS - 1.5)
        if self._front is not None:
            await self._front.close()
        await self.workspaces.stop()
        await self.control.stop()
        await self.registry.stop()
        await self._control_client.close()
        await self._desktop_client.close()
        await self._descriptors.close()
        await self._health.shutdown(timeout=0.1)
        self._health_server.close()
        self._health_path.unlink(missing_ok=True)

    def health(self) -> dict[str, Any]:
        """What `/healthz` answers."""
        return {
            "ok": not self._draining,
            "pid": os.getpid(),
            "uptime_seconds": round(time.time() - self._started, 1),
            "control": self.control.watching,
            "engine": self.workspaces.connected,
            "workspaces": len(self.workspaces),
            "http_connections": len(self._http.connections),
            **self.registry.counts(),
            **self.ports.counts(),
            "traffic": self.registry.traffic(),
        }

    async def _open_health(self) -> None:
        async def answer(request: web.BaseRequest) -> web.Response:
            if request.path != "/healthz":
                return web.Response(status=404)
            return web.Response(text=json.dumps(self.health()), content_type="application/json", status=503 if self._draining else 200)

        self._health = web.Server(answer, access_log=None)
        self._health_path = self._settings.run / f"{self._settings.name}.sock"
        self._health_path.unlink(missing_ok=True)
        self._health_server = await asyncio.get_running_loop().create_unix_server(self._health, str(self._health_path))
        self._health_path.chmod(0o600)

    def _workspaces_changed(self, present: dict[str, dict[str, Any]]) -> None:
        # Relays of a workspace that was lost while the engine was away are found here, whichever way it went.
        for workspace in self.registry.workspaces() - present.keys():
            self._workspace_gone(workspace)
        self.registry.forget_traffic(present)
        self.ports.want(present)

    def _workspace_gone(self, workspace: str) -> None:
        self.registry.end_workspace(workspace, GOING_AWAY, "the workspace was discarded")

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        identity = logs.new_id()
        answer = logs.Answer()
        with logs.following(identity, request.method, answer):
            response = await self._answer(request, identity)
            if not response.prepared:
                response.headers["Server"] = SERVER
            answer.status = response.status
            return response

    async def _answer(self, request: web.BaseRequest, identity: str) -> web.StreamResponse:
        route: Route | None = None
        try:
            hosts = request.headers.getall("Host", ())
            route = resolve(hosts[0]) if len(hosts) == 1 else None
            streamed = stream_of(hosts[0]) if len(hosts) == 1 else None
            if streamed is not None:
                # What is there is a page that asks who comes.
                return web.Response(status=302, headers={"Location": f"{portal_origin(hosts[0])}/w/{streamed}"})
            if route is None:
                raise WrongHost("this server has no such host")
            address = self._settings.front_proxies.address(self._peer(request), request.headers)
            logs.note(route=route.kind)
            if route.kind == "desktop":
                logs.note(workspace=route.workspace)
                return await self.desktops.serve(request, route, address)
            return await self._to_control(request, route, address, identity)
        except StreamError as exc:
            response = pages.error_response(request, exc)
            if isinstance(exc, WrongHost):
                response.force_close()
            return response

    def _peer(self, request: web.BaseRequest) -> str:
        """The address that the connection came from."""
        link = self._link(request.protocol)
        if link is not None:
            return link.peer
        name = request.transport.get_extra_info("peername") if request.transport is not None else None
        return str(name[0]) if name else ""

    async def _to_control(self, request: web.BaseRequest, route: Route, peer: str, identity: str) -> web.StreamResponse:
        check_target(request)
        own = pages.own_file(request.raw_path)
        if own is not None and request.method == "GET":
            return own
        headers = request_headers(CIMultiDict(request.headers), request.host, peer, desktop=False)
        headers[logs.ID_HEADER] = identity
        target = Target(self._control_client, "http://control", headers, response_headers, link=self._link(request.protocol))
        if not wants_upgrade(request):
            return await forward(request, target)
        origin = request.headers.get("Origin")
        by_token = origin is None and request.headers.get("Authorization", "").startswith("Bearer ")
        if origin != route.origin and not by_token:
            raise Denied(f"a websocket is opened from pages of {route.origin} only")
        return await upgrade(request, target, lambda relay: self.registry.add(OpenRelay(relay)))
