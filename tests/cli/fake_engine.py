"""A fake engine on a Unix socket, by behaviour: it keeps workspaces in memory and can be told to fail, to hang, or to lie."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from aiohttp import WSMsgType, web


class FakeEngine:
    """Serves the documented API. `requests` holds the bodies it got; `errors` maps `METHOD path` to (status, code, message)."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.workspaces: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.errors: dict[str, tuple[int, str, str]] = {}
        self.failed_branch: int | None = None
        self.kept: list[dict[str, Any]] = []
        self.image_steps: list[dict[str, Any]] = []
        self.osworld_port = 45221
        self._next = 0
        self._watchers: set[web.WebSocketResponse] = set()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(middlewares=[self._misbehave])
        one = "/v1/workspaces/{ref}"
        app.add_routes(
            [
                web.get("/v1/health", self._health),
                web.get("/v1/doctor", self._doctor),
                web.post("/v1/workspaces/{ref}/ports/{port}", self._publish),
                web.delete("/v1/workspaces/{ref}/ports/{port}", self._unpublish),
                web.post(one + "/osworld", self._open_osworld),
                web.post(one + "/{verb:pause|resume}", self._pause),
                web.delete(one + "/osworld", self._close_osworld),
                web.post("/v1/workspaces", self._launch),
                web.get("/v1/workspaces", self._list),
                web.get(one, self._get),
                web.delete(one, self._remove),
                web.post(one + "/fork", self._fork),
                web.post(one + "/promote", self._promote),
                web.get(one + "/exec", self._exec),
                web.get(one + "/logs", self._logs),
                web.get(one + "/stats", self._stats),
                web.get(one + "/file", self._read),
                web.put(one + "/file", self._write),
                web.get("/v1/events", self._events),
                web.get("/v1/events/kept", self._kept),
                web.get(one + "/screenshot", self._screenshot),
                web.post(one + "/actions", self._act),
                web.get("/v1/images", self._images),
                web.post("/v1/images/import", self._image_steps),
                web.post("/v1/images/{name}/build", self._image_steps),
                web.delete("/v1/images/{ref}", self._image_remove),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1, handler_cancellation=True)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self.socket)).start()

    async def stop(self) -> None:
        assert self._runner is not None
        for watcher in list(self._watchers):
            await watcher.close()
        await self._runner.cleanup()

    def add(self, name: str, **extra: Any) -> dict[str, Any]:
        """A ready workspace."""
        self._next += 1
        made = {
            "id": f"ws-{self._next}",
            "name": name,
            "kind": "source",
            "state": "ready",
            "phase": None,
            "parent": None,
            "batch": None,
            "index": None,
            "generation": 0,
            "image": "workspace",
            "desktop": False,
            "ports": {},
            "network": "open",
            "label": "",
            "osworld": None,
            "paused": False,
            "created": 1_700_000_000,
            "memory_limit": None,
            "error": None,
            **extra,
        }
        self.workspaces[made["id"]] = made
        return made

    @web.middleware
    async def _misbehave(self, request: web.Request, handler: Any) -> web.StreamResponse:
        body = json.loads(await request.text()) if request.can_read_body and request.method != "PUT" else None
        self.requests.append((request.method, request.path_qs, body))
        wrong = self.errors.get(f"{request.method} {request.path}")
        if wrong is not None:
            return _error(*wrong)
        return await handler(request)

    def _find(self, request: web.Request) -> dict[str, Any]:
        ref = request.match_info["ref"]
        for workspace in self.workspaces.values():
            if ref in (workspace["id"], workspace["name"]):
                return workspace
        body = json.dumps({"error": {"code": "not_found", "message": f"no workspace {ref}; `tclone ls` lists them"}})
        raise web.HTTPNotFound(text=body, content_type="application/json")

    async def _read(self, request: web.Request) -> web.Response:
        self._find(request)
        path = request.query["path"]
        if path.endswith("/"):
            return _error(409, "conflict", f"{path} of ws-1 is a directory; only regular files can be read")
        if path not in self.files:
            return _error(404, "not_found", f"there is no {path} of ws-1")
        return web.Response(body=self.files[path], content_type="application/octet-stream")

    async def _write(self, request: web.Request) -> web.Response:
        self._find(request)
        path = request.query["path"]
        if path in self.files and request.query["overwrite"] != "1":
            return _error(409, "conflict", f"{path} of ws-1 exists already; choose another name or ask to overwrite it")
        self.files[path] = await request.read()
        return web.json_response({"name": path}, status=201)

    async def _promote(self, request: web.Request) -> web.Response:
        found, body = self._find(request), await request.json()
        if not body["force"] and "/taken" in body["paths"]:
            return _error(409, "conflict", f"nothing was promoted into {body['into']}: /taken: changed, too; ask for `force` to replace it all the same")
        outcome = "planned" if body["dry_run"] else "done"
        paths = [{"path": unquote(path), "encoded": path, "change": "changed", "kind": "file", "size": 3, "outcome": outcome, "reason": None} for path in body["paths"] if path != "/same"]
        for one in paths:
            if one["path"] == "/full":
                one |= {"outcome": "failed", "reason": "no space left"}
        return web.json_response({"workspace": found["id"], "into": body["into"], "dry_run": body["dry_run"], "paths": paths})

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response({"ok": True, "version": "0.0-fake"})

    async def _doctor(self, _: web.Request) -> web.Response:
        return web.json_response({"checks": [{"name": "btrfs", "ok": False, "detail": "no module", "remedy": "modprobe btrfs"}]})

    async def _launch(self, request: web.Request) -> web.Response:
        body = await request.json()
        for phase in ("root", "network"):
            await self._tell({"type": "progress", "data": {"operation": "launch", "phase": phase, "elapsed_ms": 12.0, "detail": None}})
        ports = {str(port["container"]): port["host"] or 40000 for port in body.get("ports", [])}
        state = "ready" if request.query.get("wait") == "ready" else "starting"
        made = self.add(body.get("name") or f"ws-{self._next + 1}", image=body["image"], ports=ports, state=state)
        return web.json_response(made, status=201)

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response(list(self.workspaces.values()))

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._find(request))

    async def _remove(self, request: web.Request) -> web.Response:
        del self.workspaces[self._find(request)["id"]]
        return web.Response(status=204)

    async def _publish(self, request: web.Request) -> web.Response:
        port = request.match_info["port"]
        host = self._find(request)["ports"].setdefault(port, 45000)
        return web.json_response({"container": int(port), "host": host}, status=201)

    async def _unpublish(self, request: web.Request) -> web.Response:
        del self._find(request)["ports"][request.match_info["port"]]
        return web.Response(status=204)

    async def _open_osworld(self, request: web.Request) -> web.Response:
        found = self._find(request)
        found["osworld"], found["ports"]["9222"] = self.osworld_port, 45222
        return web.json_response(found, status=201)

    async def _close_osworld(self, request: web.Request) -> web.Response:
        found = self._find(request)
        found["osworld"] = None
        found["ports"].pop("9222", None)
        return web.Response(status=204)

    async def _pause(self, request: web.Request) -> web.Response:
        found = self._find(request)
        found["paused"] = request.match_info["verb"] == "pause"
        return web.json_response(found)

    async def _fork(self, request: web.Request) -> web.Response:
        source, body = self._find(request), await request.json()
        if source["paused"]:
            return _error(409, "conflict", f"{source['id']} is paused")
        base = body.get("name") or f"{source['name']}-clone"
        copies = body.get("copies", 1)
        branches = []
        for index in range(copies):
            name = base if copies == 1 else f"{base}-{index}"
            if index == self.failed_branch:
                branches.append({"id": "", "name": name, "ports": {}, "error": "memory limit hit mid-copy"})
                continue
            label = (body.get("labels") or [""])[0]
            made = self.add(name, kind="branch", parent=source["id"], generation=source["generation"] + 1, desktop=source["desktop"], label=label)
            branches.append({"id": made["id"], "name": name, "ports": {"3000": 41000 + index}, "error": None})
        result = {
            "batch": "b-1",
            "source": source["id"],
            "mode": "copy",
            "processes": 3,
            "threads": 4,
            "bytes_copied": 1 << 20,
            "ms": {"preflight": 0.4, "sync": 1.0, "pause": 3.5, "usable": 5.5},
            "branches": branches,
        }
        return web.json_response(result, status=201)

    async def _exec(self, request: web.Request) -> web.WebSocketResponse:
        """Knows the commands `exit N`, `cat`, `flood BYTES`, `both`, `size` and `hang`."""
        self._find(request)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        first = json.loads((await socket.receive()).data)
        self.requests.append(("EXEC", request.path, first))
        match first["argv"]:
            case ["exit", status]:
                await socket.send_json({"exit": int(status)})
            case ["cat"]:
                await self._cat(socket)
            case ["flood", count]:
                chunk = b"\1" + b"x" * 65536
                for _ in range(int(count) // 65536):
                    await socket.send_bytes(chunk)
                await socket.send_json({"exit": 0})
            case ["both"]:
                await socket.send_bytes(b"\1to stdout\n")
                await socket.send_bytes(b"\2to stderr\n")
                await socket.send_json({"exit": 3})
            case ["size"]:
                message = json.loads((await socket.receive()).data)
                await socket.send_bytes(b"\1" + json.dumps(message).encode() + b"\n")
                await socket.send_json({"exit": 0})
            case ["hang"]:
                await asyncio.sleep(1)
                await socket.close()  # the engine went away: no exit status
            case other:
                await socket.send_json({"error": {"code": "not_found", "message": f"no command {other[0]}"}})
        await socket.close()
        return socket

    async def _cat(self, socket: web.WebSocketResponse) -> None:
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                await socket.send_bytes(b"\1" + message.data[1:])
            elif json.loads(message.data).get("stdin") == "eof":
                await socket.send_json({"exit": 0})
                return

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        self._find(request)
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(f"last {request.query['tail']}\n".encode())
        if request.query.get("follow") == "1":
            for number in range(3):
                await answer.write(f"line {number}\n".encode())
        await answer.write_eof()
        return answer

    async def _stats(self, request: web.Request) -> web.Response:
        self._find(request)
        return web.json_response(
            {"cpu_seconds": 1.25, "memory_bytes": 3 << 20, "pss_bytes": 2 << 20, "processes": 3, "threads": 5, "disk_bytes": 4096}
        )

    async def _events(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_json({"type": "snapshot", "seq": 0, "workspaces": list(self.workspaces.values())})
        self._watchers.add(socket)
        try:
            async for _ in socket:
                pass
        finally:
            self._watchers.discard(socket)
        return socket

    async def _kept(self, _: web.Request) -> web.Response:
        return web.json_response({"seq": 0, "events": self.kept})

    async def _screenshot(self, request: web.Request) -> web.Response:
        self._find(request)
        headers = {"ETag": '"1"', "Screen-Size": "1280x800", "Picture-Size": "1280x800"}
        return web.Response(body=b"\x89PNG picture", content_type="image/png", headers=headers)

    async def _act(self, request: web.Request) -> web.Response:
        """`type` of the text `fail` does not succeed."""
        self._find(request)
        results = []
        for action in (await request.json())["actions"]:
            fails = action.get("text") == "fail"
            more = {"error": {"code": "conflict", "message": "a person took control"}} if fails else {}
            results.append({"action": action["action"], "ok": not fails, **more})
        return web.json_response({"results": results, "screen": [1280, 800], "cursor": [0, 0]})

    async def _tell(self, event: dict[str, Any]) -> None:
        # The watcher of a command that has just started may still be connecting.
        await asyncio.sleep(0.05)
        for watcher in self._watchers:
            await watcher.send_json({"seq": 1, "time": 0, **event})

    async def _images(self, _: web.Request) -> web.Response:
        return web.json_response(
            [{"name": "workspace", "digest": "ab" * 32, "created": 1_700_000_000, "size": 200 << 20, "desktop": None, "ports": []}]
        )

    async def _image_steps(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await answer.prepare(request)
        for step in self.image_steps:
            await answer.write(json.dumps(step).encode() + b"\n")
        await answer.write_eof()
        return answer

    async def _image_remove(self, request: web.Request) -> web.Response:
        if request.match_info["ref"] != "workspace":
            return _error(404, "not_found", f"no image {request.match_info['ref']}; `tclone image ls` lists them")
        return web.Response(status=204)


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"error": {"code": code, "message": message}}, status=status)
