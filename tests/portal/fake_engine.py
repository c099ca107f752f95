"""An engine for tests: the documented HTTP API on a Unix socket, without containers, and misbehaving on demand.

Behaviours: `good` answers at once or after the given phases; `slow` takes `delay` seconds for everything; `never` accepts and
does not answer; `bad` answers with what is not in the API. `refuse(verb, code, message)` makes one verb fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import time
from pathlib import Path
from typing import Any

from aiohttp import web
from PIL import Image

from engine.errors import BadRequest, Conflict, EngineError, NotFound, from_wire
from tests.portal.fake_inside import FakeInside

LAUNCH_PHASES = ("network", "root file system", "container", "first command", "stream server", "first picture")
FORK_PHASES = (("preflight", 3.1), ("sync", 17.4), ("frozen", 21.9), ("captured", 61.0), ("rebuilt", 158.2), ("resumed", 301.7))
_IMAGES = [
    {
        "name": "webtop-xfce", "digest": "9f2c7a61b0d4", "created": 1.0, "size": 1_912_602_624, "entrypoint": ["/init"], "env": {},
        "workdir": "/", "desktop": {"port": 8080}, "ports": [],
    },
    {
        "name": "workspace", "digest": "41d0aa7c99e2", "created": 1.0, "size": 201_326_592, "entrypoint": ["/bin/bash"], "env": {},
        "workdir": "/", "desktop": None, "ports": [],
    },
]  # fmt: skip
# What a desktop's programs say of what they show.
TREE: dict[str, Any] = {
    "nodes": [
        {"parent": None, "role": "desktop frame", "name": "main", "states": []},
        {"parent": 0, "role": "application", "name": "mousepad", "states": []},
        {"parent": 1, "role": "frame", "name": "Untitled", "states": ["sensitive", "showing"], "box": [0, 0, 800, 600]},
        {"parent": 2, "role": "panel", "name": "", "states": ["sensitive", "showing"], "box": [0, 0, 800, 600]},
        {"parent": 3, "role": "button", "name": "Save", "states": ["showing"], "box": [0, 0, 100, 40], "actions": [["Click", "Clicks it", "<Alt>s"]]},
        {"parent": 3, "role": "text", "name": "", "text": "first\nsecond", "states": ["editable", "focused", "sensitive"], "box": [0, 40, 800, 560]},
        {"parent": 3, "role": "slider", "name": "", "states": ["sensitive"], "value": {"CurrentValue": 0.5}, "box": [0, 590, 40, 10]},
    ],
    "truncated": False,
    "silent": 0,
}


def _taken(name: str) -> Conflict:
    return Conflict(f"the name {name} is taken; choose another or remove that workspace", field="name")


class FakeEngine:
    """`async with FakeEngine(path) as engine`. `step` is the time in seconds between phases."""

    def __init__(self, socket: Path, step: float = 0.0) -> None:
        self.socket = socket
        self.step = step
        self.behaviour = "good"
        self.delay = 0.5
        self.workspaces: dict[str, dict[str, Any]] = {}
        self.images = [dict(image) for image in _IMAGES]
        self.calls: list[tuple[str, Any]] = []
        self.log_text = "init: started\ntmux: server ready\n"
        self.screens: dict[str, int] = {}
        self.screen_delay = 0.0
        self.looking = self.most_looking = 0
        self.builds: dict[str, dict[str, Any]] = {}
        self.acted: dict[str, dict[str, Any]] = {}
        self.action_fails = ""
        self.launch_fails: str | None = None
        # Actions wait for it before they are answered.
        self.holds_actions: asyncio.Event | None = None
        self.inside = FakeInside(self._find, self.changed)
        self._refusals: dict[str, EngineError] = {}
        self._numbers = itertools.count(1)
        self._hosts = itertools.count(43827)
        self._sequence = int(time.time() * 1000)
        self._watchers: set[asyncio.Queue[Any]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._runner: web.AppRunner | None = None

    def refuse(self, verb: str, code: str, message: str, blockers: list[dict[str, Any]] | None = None) -> None:
        self._refusals[verb] = from_wire(code, message, blockers)

    def allow(self, verb: str) -> None:
        self._refusals.pop(verb, None)

    # Life

    async def start(self) -> None:
        app = web.Application(middlewares=[self._misbehave], client_max_size=8 << 20)
        one = "/v1/workspaces/{ref}"
        app.add_routes(
            [
                web.get("/v1/health", self._health),
                web.post("/v1/workspaces", self._launch),
                web.get("/v1/workspaces", self._list),
                web.get(one, self._get),
                web.delete(one, self._remove),
                web.post(one + "/fork", self._fork),
                web.post(one + "/pause", self._pause), web.post(one + "/resume", self._pause),
                web.get(one + "/logs", self._logs),
                web.get(one + "/screenshot", self._screenshot),
                web.get(one + "/stream-token", self._stream_token),
                web.post(one + "/actions", self._act),
                web.post(one + "/release", self._release),
                web.get(one + "/windows", self._windows),
                web.get(one + "/accessibility", self._accessibility),
                web.get("/v1/events", self._events),
                web.get("/v1/images", self._images),
                web.post("/v1/images/{name}/build", self._build),
                *self.inside.routes(),
            ]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=0.2, handler_cancellation=True)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self.socket)).start()

    async def stop(self) -> None:
        for queue in self._watchers:
            queue.put_nowait(None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self.socket.unlink(missing_ok=True)

    async def __aenter__(self) -> FakeEngine:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @web.middleware
    async def _misbehave(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.behaviour == "never":
            await asyncio.sleep(3600)
        if self.behaviour == "slow":
            await asyncio.sleep(self.delay)
        if self.behaviour == "bad" and not request.path.endswith("/events"):
            return web.json_response({"surprise": ["<script>alert(1)</script>"]})
        try:
            return await handler(request)
        except EngineError as error:
            return web.json_response({"error": error.to_wire()}, status=error.http_status)

    def _check(self, verb: str) -> None:
        if verb in self._refusals:
            raise self._refusals[verb]

    # State

    def add(self, **values: Any) -> dict[str, Any]:
        """A workspace as if it had been launched before."""
        identity = values.get("id") or f"ws-{next(self._numbers)}"
        workspace = {
            "id": identity, "name": f"webtop-xfce-{identity[3:]}", "kind": "source", "state": "ready", "phase": "", "parent": None,
            "batch": None, "index": None, "generation": 0, "image": "webtop-xfce", "desktop": True,
            "ports": {"3000": next(self._hosts)}, "network": "open", "label": "",
            "created": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()), "memory_limit": 4 << 30, "disk_limit": None, "cpu_limit": None,
            "error": None, **values,
        }  # fmt: skip
        self.workspaces[identity] = workspace
        self.changed(workspace)
        return workspace

    def changed(self, workspace: dict[str, Any], **values: Any) -> None:
        workspace.update(values)
        self.publish("workspace", workspace["id"], dict(workspace))

    def publish(self, kind: str, workspace: str | None, data: Any) -> None:
        self._sequence += 1
        event = {"seq": self._sequence, "time": time.time(), "type": kind, "workspace": workspace, "data": data}
        for queue in self._watchers:
            queue.put_nowait(event)

    def background(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _find(self, request: web.Request) -> dict[str, Any]:
        ref = request.match_info["ref"]
        for workspace in self.workspaces.values():
            if ref in (workspace["id"], workspace["name"]):
                return workspace
        raise NotFound(f"no workspace {ref}; `tclone ls` lists them")

    # Verbs

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"ok": True, "version": "fake"})

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response(list(self.workspaces.values()))

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._find(request))

    async def _stream_token(self, request: web.Request) -> web.Response:
        workspace = self._find(request)
        if workspace["state"] != "ready":
            raise Conflict(f"the desktop of {workspace['id']} is not ready")
        return web.json_response({"port": 8080, "token": "token-of-a-desktop"})

    async def _launch(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append(("launch", body))
        self._check("launch")
        image = next((item for item in self.images if item["name"] == body["image"]), None)
        if image is None:
            raise NotFound(f"no image {body['image']}; `tclone image ls` lists them")
        if any(item["name"] == body.get("name") for item in self.workspaces.values()):
            raise _taken(body["name"])
        ports = {str(port["container"]): next(self._hosts) for port in body.get("ports", [])}
        made = self.add(image=image["name"], desktop=image["desktop"] is not None, state="starting", ports=ports, network=body.get("network", "open"), disk_limit=body.get("disk"), cpu_limit=body.get("cpus"))
        self.changed(made, name=body.get("name") or f"{image['name']}-{made['id'][3:]}")
        self.background(self._become_ready(made))
        return web.json_response(made, status=201)

    async def _become_ready(self, workspace: dict[str, Any]) -> None:
        started = time.monotonic()
        for phase in LAUNCH_PHASES if workspace["desktop"] else LAUNCH_PHASES[:4]:
            elapsed = round((time.monotonic() - started) * 1000, 1)
            data = {"operation": "launch", "phase": phase, "elapsed_ms": elapsed, "detail": ""}
            self.publish("progress", workspace["id"], data)
            await asyncio.sleep(self.step)
        if self.launch_fails:
            self.changed(workspace, state="failed", error=self.launch_fails)
        else:
            self.changed(workspace, state="ready")

    async def _remove(self, request: web.Request) -> web.Response:
        workspace = self._find(request)
        self.calls.append(("remove", workspace["id"]))
        self._check("remove")
        self.changed(workspace, state="removing")
        await asyncio.sleep(self.step)
        self.workspaces.pop(workspace["id"], None)
        self.publish("gone", workspace["id"], {"name": workspace["name"]})
        return web.Response(status=204)

    async def _fork(self, request: web.Request) -> web.Response:
        source = self._find(request)
        body = await request.json()
        self.calls.append(("fork", body))
        self._check("fork")
        if source.get("paused"):
            raise Conflict(f"{source['id']} is paused: its control group is frozen; thaw it and fork again")
        if source["state"] == "forking":
            raise Conflict(f"{source['id']} is being forked; try again when that fork has ended")
        if not 1 <= body["copies"] <= 8:
            raise BadRequest(f"copies must be from 1 to 8, not {body['copies']}")
        base = body.get("name") or f"{source['name']}-clone"
        names = [base] if body["copies"] == 1 else [f"{base}-{index}" for index in range(body["copies"])]
        for item in self.workspaces.values():
            if body.get("name") and item["name"] in names:
                raise _taken(item["name"])
        self.changed(source, state="forking")
        for phase, elapsed in FORK_PHASES:
            data = {"operation": "fork", "phase": phase, "elapsed_ms": elapsed, "detail": ""}
            self.publish("progress", source["id"], data)
            await asyncio.sleep(self.step)
        branches = []
        for index in range(body["copies"]):
            ports = {port: next(self._hosts) for port in source["ports"]}
            branch = self.add(
                name=names[index], kind="branch", parent=source["id"], batch="b-1", index=index,
                label=dict(enumerate(body.get("labels") or [])).get(index, ""),
                network=body.get("network") or source["network"],
                generation=source["generation"] + 1, image=source["image"], desktop=source["desktop"], ports=ports, disk_limit=source["disk_limit"], cpu_limit=source["cpu_limit"],
            )  # fmt: skip
            branches.append({"id": branch["id"], "name": branch["name"], "ports": ports, "error": None})
        self.changed(source, state="ready")
        figures = dict(FORK_PHASES) | {"pause": 284.2, "usable": 347.5, "first_frame": 512.9}
        result = {
            "batch": "b-1", "source": source["id"], "mode": "copy", "processes": 31, "threads": 182, "bytes_copied": 712_000_000,
            "ms": figures, "branches": branches,
        }  # fmt: skip
        self.publish("fork", source["id"], result)
        return web.json_response(result, status=201)

    async def _pause(self, request: web.Request) -> web.Response:
        workspace = self._find(request)
        self.changed(workspace, paused=request.path.endswith("/pause"))
        return web.json_response(workspace)

    async def _screenshot(self, request: web.Request) -> web.Response:
        """A picture with a hue of the workspace's own; `screens` gives one another."""
        workspace = self._find(request)
        self.calls.append(("screenshot", dict(request.query)))
        self._check("screenshot")
        self.looking += 1
        self.most_looking = max(self.most_looking, self.looking)
        await asyncio.sleep(self.screen_delay)
        self.looking -= 1
        if not workspace["desktop"] or workspace["state"] != "ready":
            raise Conflict(f"{workspace['id']} shows no picture now")
        # As the real one: never enlarged. Encoding 37 million pixels would keep everybody waiting.
        width = min(int(request.query.get("width", 1280)), 1280)
        hue = self.screens.get(workspace["id"], int(workspace["id"][3:]) * 50 % 256)
        tag = f'"{hue}-{width}"'
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers={"ETag": tag, "Screen-Size": "1280x800", "Picture-Size": "1280x800"})
        file = io.BytesIO()
        Image.new("HSV", (width, width * 10 // 16), (hue, 160, 120)).convert("RGB").save(file, request.query.get("format", "png"))
        headers = {"ETag": tag, "Screen-Size": "1280x800", "Picture-Size": f"{width}x{width * 10 // 16}"}
        return web.Response(body=file.getvalue(), content_type=f"image/{request.query.get('format', 'png')}", headers=headers)

    async def _act(self, request: web.Request) -> web.Response:
        """Notes what was asked for; the same request id gets the same answer. `action_fails` names the first that does not succeed."""
        body = await request.json()
        body["ref"] = self._find(request)["id"]
        if body["request_id"] not in self.acted:
            self.calls.append(("act", body))
            self._check("act")
            if self.holds_actions is not None:
                await self.holds_actions.wait()
            self.acted[body["request_id"]] = self._results(body["actions"])
        return web.json_response(self.acted[body["request_id"]])

    def _results(self, actions: list[dict[str, Any]]) -> dict[str, Any]:
        results: list[dict[str, Any]] = []
        for action in actions:
            failed = bool(results) and not results[-1]["ok"]
            more: dict[str, Any] = {"text": "copied"} if action["action"] == "get_clipboard" else {}
            if failed:
                more = {"skipped": True}
            elif action["action"] == self.action_fails:
                failed, more = True, {"error": {"code": "not_found", "message": "no window 7"}}
            results.append({"action": action["action"], "ok": not failed, **more})
        return {"results": results, "screen": [1280, 800], "cursor": [3, 4]}

    async def _release(self, request: web.Request) -> web.Response:
        self.calls.append(("release", self._find(request)["id"]))
        return web.Response(status=204)

    async def _windows(self, request: web.Request) -> web.Response:
        self._find(request)
        return web.json_response({"windows": [{"id": 7, "title": "Terminal", "active": True}]})

    async def _accessibility(self, request: web.Request) -> web.Response:
        self._find(request)
        self.calls.append(("accessibility", dict(request.query)))
        return web.json_response(TREE)

    async def _logs(self, request: web.Request) -> web.Response:
        self._find(request)
        return web.Response(text=self.log_text)

    # Images

    async def _images(self, _: web.Request) -> web.Response:
        return web.json_response(self.images)

    async def _build(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        self.calls.append(("build", name))
        self._check("build")
        answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await answer.prepare(request)
        started = time.monotonic()
        for phase, detail in (("fetch", "212 packages"), ("unpack", "libgtk-3-0"), ("wheels", "selkies"), ("configure", ""), ("pack", "")):
            line = {"phase": phase, "detail": detail, "elapsed_ms": round((time.monotonic() - started) * 1000, 1)}
            self.building(name, **line)
            await answer.write(json.dumps(line).encode() + b"\n")
            await asyncio.sleep(self.step)
        image = next(dict(item) for item in _IMAGES if item["name"] == name)
        self.images.append(image)
        self.building(name, done=True)
        await answer.write(json.dumps({"done": image}).encode() + b"\n")
        return answer

    def building(self, name: str, **state: Any) -> None:
        """Tell how far a build is, whoever asked for it."""
        self.builds[name] = {"image": name, "phase": "", "detail": "", "elapsed_ms": None, "done": False, "error": None, **state}
        self.publish("build", None, self.builds[name])
        if self.builds[name]["done"] or self.builds[name]["error"]:
            del self.builds[name]

    # Events

    async def _events(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if self.behaviour == "bad":
            await socket.send_str('{"type": "snapshot", "seq": 1, "workspaces": [{"id": 7}]}')
            await asyncio.sleep(3600)
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            await socket.send_json({"type": "snapshot", "seq": self._sequence, "workspaces": list(self.workspaces.values()), "builds": list(self.builds.values())})
            while (event := await queue.get()) is not None:
                await socket.send_json(event)
        except ConnectionError:
            pass
        finally:
            self._watchers.discard(queue)
            with contextlib.suppress(ConnectionError, RuntimeError):
                await socket.close()
        return socket
