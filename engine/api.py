"""The engine's HTTP API: routes, checks of what comes in, errors as the table in docs/reference/engine-api.md has them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import WSCloseCode, web

from engine import __version__, doctor, findings, logs, readiness
from engine.answers import ended_lines, left_alone, say_server
from engine.api_changes import ChangeRoutes
from engine.api_desktop import DesktopRoutes
from engine.api_exec import serve_exec
from engine.api_files import FileRoutes
from engine.api_ports import PortRoutes
from engine.api_promotion import PromotionRoutes
from engine.api_screen import ScreenService
from engine.config import DEFAULT_MEMORY
from engine.errors import BadRequest, Conflict, EngineError, Internal
from engine.events import Watcher
from engine.fork import Forker, ForkOptions
from engine.identity import Identity
from engine.image_service import ImageService
from engine.manager import Launch, Manager
from engine.stats import Stats
from engine.threads import in_thread
from engine.workspace import (
    DEFAULT_PIDS,
    MAX_COPIES,
    MAX_PIDS,
    MIN_DISK,
    MIN_MEMORY,
    MIN_SHM,
    State,
    check_argv,
    check_env,
    check_cpus,
    check_integer,
    check_labels,
    check_name,
    check_network,
    check_ports,
)

log = logging.getLogger(__name__)

# A clipboard of 1 MiB, each of whose characters is escaped.
_BODY_LIMIT = 8 << 20
_REQUEST_ID_LIMIT = 128
_PING_SECONDS = 30.0
_LONGEST_TAIL = 100_000
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def error_body(error: EngineError) -> dict[str, Any]:
    return {"error": error.to_wire()}


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn exceptions into the documented answers."""
    try:
        return await handler(request)
    except EngineError as error:
        return web.json_response(error_body(error), status=error.http_status)
    except web.HTTPException as answer:
        if answer.status < 400:
            raise
        code = "not_found" if answer.status == 404 else "bad_request"
        message = f"{request.method} {request.path}: {answer.reason}"
        return web.json_response({"error": {"code": code, "message": message}}, status=answer.status)
    except asyncio.CancelledError:
        raise
    except Exception as failure:  # noqa: BLE001 - a defect must be told to the caller and logged, and must not end the engine
        if (answer_to_nobody := left_alone(request, failure)) is not None:
            return answer_to_nobody
        log.exception("%s %s failed", request.method, request.path)
        error = Internal(f"{request.method} {request.path} failed; the engine's log has more")
        return web.json_response(error_body(error), status=500)


class Api:
    """The routes of one engine."""

    def __init__(self, manager: Manager, forker: Forker, images: ImageService, users: set[int]) -> None:
        """`users`: the uids that may connect, whatever became of the socket file's mode."""
        self._manager = manager
        self._forker = forker
        self._images = images
        self._screens = ScreenService(manager)
        self._users = users
        self._usage = Stats(manager.cgroups)
        self._files = FileRoutes(manager)
        self._changes = ChangeRoutes(manager, self._files)
        self._promotions = PromotionRoutes(manager, self._files, _json_body)
        self._ports = PortRoutes(manager)
        self._desktops = DesktopRoutes(manager, self._once, _json_body)
        self._under_way: dict[str, tuple[str, str, asyncio.Future[Any]]] = {}
        self._sockets: set[web.WebSocketResponse] = set()

    def application(self) -> web.Application:
        app = web.Application(middlewares=[ended_lines, _errors, self._peers], client_max_size=_BODY_LIMIT)
        one = "/v1/workspaces/{ref}"
        app.add_routes(
            [
                web.get("/v1/health", self._health),
                web.get("/v1/doctor", self._doctor),
                web.post("/v1/workspaces", self._launch),
                web.get("/v1/workspaces", self._list),
                web.get(one, self._get),
                web.delete(one, self._remove),
                web.post(one + "/fork", self._fork),
                web.post(one + "/pause", self._pause),
                web.post(one + "/resume", self._pause),
                web.get(one + "/exec", self._exec),
                web.get(one + "/logs", self._logs),
                web.get(one + "/doctor", self._examine),
                web.get(one + "/stats", self._stats),
                web.get(one + "/stream-token", self._stream_token),
                web.get(one + "/screenshot", self._screens.screenshot),
                web.get(one + "/idle", self._screens.idle),
                web.get("/v1/events", self._events),
                web.get("/v1/events/kept", self._kept_events),
                web.get("/v1/images", self._images.list),
                web.post("/v1/images/import", self._images.import_),
                web.post("/v1/images/{name}/build", self._images.build),
                web.delete("/v1/images/{ref}", self._images.remove),
                *self._files.routes(),
                *self._changes.routes(),
                *self._promotions.routes(),
                *self._ports.routes(),
                *self._desktops.routes(),
            ]
        )
        app.on_response_prepare.append(say_server)
        app.on_shutdown.append(self._close_sockets)
        app.on_cleanup.append(self._close_files)
        return app

    @web.middleware
    async def _peers(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = request.transport.get_extra_info("socket") if request.transport else None
        if connection is None:
            raise web.HTTPForbidden(reason="not a local connection")
        _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in self._users:
            raise web.HTTPForbidden(reason=f"user {uid} may not use the engine")
        return await handler(request)

    async def _close_sockets(self, _: web.Application) -> None:
        await self._screens.close()
        for watcher in list(self._sockets):
            with contextlib.suppress(Exception):
                await watcher.close(code=WSCloseCode.GOING_AWAY, message=b"the engine stops")

    async def _close_files(self, _: web.Application) -> None:
        await self._manager.desktops.close()
        self._files.close()

    # Workspaces

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"ok": True, "version": __version__})

    async def _doctor(self, _: web.Request) -> web.Response:
        checks = await asyncio.to_thread(doctor.run_checks, self._manager.config)
        return web.json_response({"checks": [check.to_json() for check in checks]})

    async def _launch(self, request: web.Request) -> web.Response:
        body = await _json_body(request)
        _only(body, "request_id", "image", "name", "ports", "env", "memory", "shm", "pids", "disk", "cpus", "network", "command", "osworld")
        if request.query.get("wait", "ready") != "ready":
            raise BadRequest("wait can only be `ready`")
        launch = _launch_of(body)

        async def work() -> dict[str, Any]:
            return (await self._manager.launch(launch)).public()

        answer = await self._once(body, "launch", work)
        self._forker.stages.refill()
        if "wait" in request.query:
            await self._manager.wait_ready(self._manager.find(answer["id"]))
        current = self._manager.workspaces.get(answer["id"])
        return web.json_response(current.public() if current else answer, status=201)

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response([workspace.public() for workspace in self._manager.list()])

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._manager.find(request.match_info["ref"]).public())

    async def _remove(self, request: web.Request) -> web.Response:
        await asyncio.shield(self._manager.background(self._manager.remove(request.match_info["ref"])))
        return web.Response(status=204)

    async def _fork(self, request: web.Request) -> web.Response:
        body = await _json_body(request)
        _only(body, "request_id", "copies", "name", "tcp_close", "ghost_limit", "hostname", "new_machine_id", "network", "labels")
        ref = request.match_info["ref"]
        options = _fork_options(body)
        body["ref"] = ref
        answer = await self._once(body, "fork", lambda: self._forker.fork(ref, options))
        return web.json_response(answer, status=201)

    async def _pause(self, request: web.Request) -> web.Response:
        work = self._manager.pause(request.match_info["ref"], still=request.path.endswith("/pause"))
        return web.json_response((await asyncio.shield(self._manager.background(work))).public())

    async def _once(self, body: dict[str, Any], operation: str, work: Callable[[], Awaitable[Any]], begun: Any = None) -> Any:
        """Carry an operation out once for each request id: a repetition gets the first one's answer, even after a restart.

        The operation goes on when its caller goes away. Its failure is not kept: the same id may try again. `begun`: what a repetition
        gets when the engine ended in the midst of it; None when it may then be done again.
        """
        request_id = body.pop("request_id", None)
        if request_id is None:
            return await asyncio.shield(self._manager.background(work()))
        if not isinstance(request_id, str) or not 1 <= len(request_id) <= _REQUEST_ID_LIMIT:
            raise BadRequest(f"request_id must be a string of 1 to {_REQUEST_ID_LIMIT} characters")
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        under_way = self._under_way.get(request_id)
        if under_way is None:
            task = self._manager.background(self._remembered(request_id, operation, digest, work, begun))
            self._under_way[request_id] = (operation, digest, task)
            task.add_done_callback(lambda _: self._under_way.pop(request_id, None))
        else:
            first, first_digest, task = under_way
            _same_request(request_id, (first, first_digest), (operation, digest))
        return await asyncio.shield(task)

    async def _remembered(self, request_id: str, operation: str, digest: str, work: Callable[[], Awaitable[Any]], begun: Any) -> Any:
        kept = await self._manager.database.answer_of(request_id)
        if kept is not None:
            _same_request(request_id, kept[:2], (operation, digest))
            return kept[2]
        if begun is not None:
            await self._manager.database.save_answer(request_id, operation, digest, begun)
        try:
            answer = await work()
        except EngineError:
            if begun is not None:
                await self._manager.database.forget_answer(request_id)
            raise
        await self._manager.database.save_answer(request_id, operation, digest, answer)
        return answer

    # Inside a workspace

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        workspace = self._manager.find(request.match_info["ref"])
        # No heartbeat: who reads the command's output slowly answers no pings, and a Unix socket tells of a dead peer by itself.
        channel = web.WebSocketResponse(max_msg_size=_BODY_LIMIT)
        await channel.prepare(request)
        with self._known(channel):
            await serve_exec(channel, self._manager.executor, workspace)
        return channel

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        workspace = self._manager.find(request.match_info["ref"])
        tail = _number(request, "tail", 200, 0, _LONGEST_TAIL)
        follow = _number(request, "follow", 0, 0, 1)
        answer = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"})
        await answer.prepare(request)
        upper = self._manager.storage.layer(workspace.id) / "upper"
        async for chunk in logs.read(upper, tail, bool(follow), lambda: workspace.state not in (State.REMOVING, State.GONE)):
            await answer.write(chunk)
        await answer.write_eof()
        return answer

    async def _examine(self, request: web.Request) -> web.Response:
        workspace = self._manager.find(request.match_info["ref"])
        return web.json_response(await findings.examine(self._manager, workspace))

    async def _stats(self, request: web.Request) -> web.Response:
        workspace = self._manager.find(request.match_info["ref"])
        upper = self._manager.storage.layer(workspace.id) / "upper"
        self._usage.forget(self._manager.workspaces.keys())
        used = await self._usage.of(workspace.id, upper)
        counted = await in_thread(lambda: self._manager.storage.counted(workspace.id)) if workspace.disk_limit is not None else None
        return web.json_response({**used, "disk_limit": workspace.disk_limit, "disk_counted": counted})

    async def _stream_token(self, request: web.Request) -> web.Response:
        workspace = self._manager.find(request.match_info["ref"])
        if not workspace.desktop:
            raise Conflict(f"{workspace.id} has no desktop: its image {workspace.image} is headless")
        role = request.query.get("role", "controller")
        if role not in ("controller", "viewer"):
            raise BadRequest("role is controller or viewer")
        token = await self._manager.stream_tokens.current(workspace)
        answer = {"port": workspace.stream_port, "token": token if role == "controller" else readiness.viewer_token(token)}
        return web.json_response(answer, headers={"Cache-Control": "no-store"})

    # Events

    async def _events(self, request: web.Request) -> web.StreamResponse:
        since = request.query.get("since")
        if since is not None and not (since.isdecimal() and len(since) < 19):
            raise BadRequest("since must be the number of an event")
        channel = web.WebSocketResponse(heartbeat=_PING_SECONDS, max_msg_size=4096)
        await channel.prepare(request)
        events = self._manager.events
        watcher = events.watch(None if since is None else int(since))
        # Reading answers pings and notices that the watcher has gone.
        reader = asyncio.ensure_future(_drain(channel))
        sender = asyncio.ensure_future(_send_events(channel, watcher))
        try:
            with self._known(channel):
                await asyncio.wait({sender, reader}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            events.unwatch(watcher)
            reader.cancel()
            sender.cancel()
            await asyncio.gather(reader, sender, return_exceptions=True)
        return channel

    async def _kept_events(self, _: web.Request) -> web.Response:
        events = self._manager.events
        return web.json_response({"seq": events.sequence, "events": events.kept()})

    @contextlib.contextmanager
    def _known(self, channel: web.WebSocketResponse):
        self._sockets.add(channel)
        try:
            yield
        finally:
            self._sockets.discard(channel)


async def _send_events(channel: web.WebSocketResponse, watcher: Watcher) -> None:
    while (event := await watcher.queue.get()) is not None:
        await channel.send_json(event)
    await channel.close(code=WSCloseCode.TRY_AGAIN_LATER, message=b"too slow, or the engine stops")


async def _drain(channel: web.WebSocketResponse) -> None:
    async for _ in channel:
        pass


async def _json_body(request: web.Request) -> dict[str, Any]:
    """The body as an object; an empty body is an empty one."""
    data = await request.read()
    if not data.strip():
        return {}
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


def _only(body: dict[str, Any], *known: str) -> None:
    unknown = sorted(set(body) - set(known))
    if unknown:
        raise BadRequest(f"unknown field {unknown[0][:80]!r}; known are {', '.join(known)}")


def _launch_of(body: dict[str, Any]) -> Launch:
    image = body.get("image")
    if not isinstance(image, str) or not 1 <= len(image) <= 256:
        raise BadRequest("image must name an image; `tclone image ls` lists them", field="image")
    network = check_network(body.get("network", "open"))
    disk, cpus = body.get("disk"), body.get("cpus")
    if not isinstance(body.get("osworld", False), bool):
        raise BadRequest("osworld must be true or false", field="osworld")
    memory, pids, shm, name = body.get("memory"), body.get("pids"), body.get("shm"), body.get("name")
    return Launch(
        image=image,
        name=None if name is None else check_name(name),
        ports=check_ports(body.get("ports")),
        env=check_env(body.get("env")),
        memory=DEFAULT_MEMORY if memory is None else check_integer(memory, "memory (bytes)", MIN_MEMORY, 1 << 50, "memory"),
        pids=DEFAULT_PIDS if pids is None else check_integer(pids, "pids", 8, MAX_PIDS, "pids"),
        network=network,
        disk=None if disk is None else check_integer(disk, "disk (bytes)", MIN_DISK, 1 << 50, "disk"),
        cpus=None if cpus is None else check_cpus(cpus),
        shm=None if shm is None else check_integer(shm, "shm (bytes)", MIN_SHM, 1 << 50, "shm"),
        command=None if body.get("command") is None else check_argv(body["command"], "command"),
        osworld=body.get("osworld", False),
    )


def _fork_options(body: dict[str, Any]) -> ForkOptions:
    name, ghost, hostname = body.get("name"), body.get("ghost_limit"), body.get("hostname")
    for switch in ("tcp_close", "new_machine_id"):
        if not isinstance(body.get(switch, False), bool):
            raise BadRequest(f"{switch} must be true or false", field=switch)
    copies = check_integer(body.get("copies", 1), "copies", 1, MAX_COPIES, "copies")
    network = body.get("network")
    return ForkOptions(
        copies=copies,
        network=None if network is None else check_network(network),
        labels=check_labels(body.get("labels"), copies),
        name=None if name is None else check_name(name),
        tcp_close=body.get("tcp_close", False),
        ghost_limit=None if ghost is None else check_integer(ghost, "ghost_limit (bytes)", 0, 1 << 50, "ghost_limit"),
        identity=Identity(None if hostname is None else check_name(hostname, "hostname"), body.get("new_machine_id", False)),
    )


def _same_request(request_id: str, first: tuple[str, str], second: tuple[str, str]) -> None:
    if first != second:
        raise Conflict(f"request_id {request_id!r} was used for another request; use a new one")


def _number(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not text.isdecimal() or len(text) > 12:
        raise BadRequest(f"{name} must be a whole number")
    return check_integer(int(text), name, low, high)
