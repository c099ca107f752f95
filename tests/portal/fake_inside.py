"""What the fake engine says of the inside of its workspaces: servers, files, changes, memory, and a shell that repeats what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, unquote, unquote_to_bytes

from aiohttp import WSMsgType, web

from engine.errors import Conflict, NotFound
from engine.own_files import is_own

CHANGES: list[dict[str, Any]] = [
    {"change": "added", "path": "/home/user/new.txt", "encoded": "/home/user/new.txt", "kind": "file", "size": 120, "before": None},
    {"change": "changed", "path": "/home/user/notes.txt", "encoded": "/home/user/notes.txt", "kind": "file", "size": 64, "before": 60},
    {"change": "changed", "path": "/var/log/desktop/stream.log", "encoded": "/var/log/desktop/stream.log", "kind": "file", "size": 900, "before": 10},
    {"change": "changed", "path": "/home/user/.xsession-errors", "encoded": "/home/user/.xsession-errors", "kind": "file", "size": 90, "before": 10},
    {"change": "added", "path": "/tmp/selkies_web1/jsdb/a.json", "encoded": "/tmp/selkies_web1/jsdb/a.json", "kind": "file", "size": 9, "before": None},
    {"change": "deleted", "path": "/home/user/old", "encoded": "/home/user/old", "kind": "directory", "size": None, "before": 4096},
]
for change in CHANGES:
    change["own"] = is_own(str(change["path"]).encode())
# Those that somebody made.
MADE = [change for change in CHANGES if not change["own"]]
OSWORLD_RUNNER = "/usr/libexec/tclone/osworld/run.py"
DIFF = "--- a/home/user/notes.txt\n+++ b/home/user/notes.txt\n@@ -1,3 +1,3 @@\n first\n-second\n+<b>second</b>\n third\n"


class FakeInside:
    """`files`: path to content. `find` is the engine's look-up; `publish_port` changes a workspace's ports."""

    def __init__(self, find: Callable[[web.Request], dict[str, Any]], changed: Callable[..., None]) -> None:
        self._find = find
        self._changed = changed
        self.files: dict[bytes, bytes] = {b"/home/user/notes.txt": b"first\nsecond\n", b"/home/user/\xff\xfe": b"odd"}
        self.directories = {b"/", b"/home", b"/home/user", b"/home/user/Documents"}
        # Who was promoted, and the request's body.
        self.promoted: list[tuple[str, dict[str, Any]]] = []
        # Paths that a promotion does not replace without force.
        self.conflicts: set[str] = set()
        # Paths that it never takes.
        self.refused: set[str] = set()
        self.listeners = [
            {"port": 3000, "address": "127.0.0.1", "pid": 71, "command": "node", "host": None, "desktop": False},
            {"port": 8000, "address": "0.0.0.0", "pid": 72, "command": "python3", "host": None, "desktop": False},
            {"port": 8080, "address": "127.0.0.1", "pid": 12, "command": "selkies", "host": None, "desktop": True},
        ]  # fmt: skip
        self.shells: list[dict[str, Any]] = []
        self.sizes: list[list[int]] = []
        self.open_shells = 0
        # What a command without a terminal says (stream, bytes) when its input has ended, and its status (None: it never ends), in place of repeating its input.
        self.says: list[tuple[int, bytes]] | None = None
        self.exits: int | None = 0
        # The same for single commands, by their last word.
        self.replies: dict[str, tuple[list[tuple[int, bytes]], int]] = {}
        self.told = b""
        self.disk: dict[str, int | None] = {"disk_limit": None, "disk_counted": None}

    def routes(self) -> list[web.RouteDef]:
        one = "/v1/workspaces/{ref}"
        return [
            web.get(one + "/listeners", self._listeners), web.get(one + "/stats", self._stats), web.get(one + "/exec", self._exec),
            web.post(one + "/ports/{port}", self._publish), web.delete(one + "/ports/{port}", self._unpublish),
            web.get(one + "/entry", self._stat), web.get(one + "/files", self._list), web.delete(one + "/files", self._remove), web.post(one + "/directories", self._make),
            web.get(one + "/file", self._read), web.put(one + "/file", self._write),
            web.get(one + "/diff", self._diff), web.get(one + "/diff/file", self._diff_file),
            web.post(one + "/promote", self._promote),
        ]  # fmt: skip

    async def _listeners(self, request: web.Request) -> web.Response:
        ports = self._find(request)["ports"]
        return web.json_response({"listeners": [item | {"host": ports.get(str(item["port"]))} for item in self.listeners]})

    async def _stats(self, request: web.Request) -> web.Response:
        self._find(request)
        figures = {
            "cpu_seconds": 12.5, "memory_bytes": 500 << 20, "pss_bytes": 500 << 20, "unique_bytes": 412 << 20, "shared_bytes": 88 << 20,
            "partial": False, "processes": 31, "threads": 180, "disk_bytes": 30 << 20, **self.disk,
        }  # fmt: skip
        return web.json_response(figures)

    async def _publish(self, request: web.Request) -> web.Response:
        workspace, port = self._find(request), request.match_info["port"]
        host = 45000 + int(port) % 1000
        self._changed(workspace, ports=workspace["ports"] | {port: host})
        return web.json_response({"container": int(port), "host": host}, status=201)

    async def _unpublish(self, request: web.Request) -> web.Response:
        workspace, port = self._find(request), request.match_info["port"]
        if port not in workspace["ports"]:
            raise NotFound(f"{workspace['id']} does not publish port {port}")
        self._changed(workspace, ports={key: value for key, value in workspace["ports"].items() if key != port})
        return web.Response(status=204)

    # Files

    def _entry(self, path: bytes) -> dict[str, Any]:
        name = path.rpartition(b"/")[2]
        kind = "directory" if path in self.directories else "file"
        return {
            "name": name.decode(errors="replace"), "encoded": quote(name), "kind": kind, "size": len(self.files.get(path, b"")),
            "mode": 0o644, "uid": 1000, "gid": 1000, "modified": 1_700_000_000.0,
        }  # fmt: skip

    async def _stat(self, request: web.Request) -> web.Response:
        self._find(request)
        path = _path(request)
        if path not in self.directories and path not in self.files:
            raise NotFound(f"there is no {path.decode(errors='replace')} of ws-1")
        return web.json_response(self._entry(path))

    async def _list(self, request: web.Request) -> web.Response:
        self._find(request)
        path = _path(request)
        if path not in self.directories:
            raise NotFound(f"there is no {path.decode(errors='replace')}")
        inside = [other for other in [*self.directories, *self.files] if other != b"/" and (other.rpartition(b"/")[0] or b"/") == path]
        entries = [self._entry(other) for other in sorted(inside)]
        text = path.decode(errors="replace")
        return web.json_response({"path": text, "encoded": quote(path), "entries": entries, "truncated": False, "home": "/home/user"})

    async def _remove(self, request: web.Request) -> web.Response:
        self._find(request)
        path = _path(request)
        self.files.pop(path, None)
        self.directories.discard(path)
        return web.Response(status=204)

    async def _make(self, request: web.Request) -> web.Response:
        self._find(request)
        self.directories.add(_path(request))
        return web.json_response(self._entry(_path(request)), status=201)

    async def _read(self, request: web.Request) -> web.Response:
        self._find(request)
        path = _path(request)
        if path not in self.files:
            raise NotFound(f"there is no {path.decode(errors='replace')} of ws-1")
        if request.headers.get("Range") == "bytes=0-3":
            return web.Response(status=206, body=self.files[path][:4], headers={"Content-Range": f"bytes 0-3/{len(self.files[path])}"})
        return web.Response(body=self.files[path], headers={"ETag": '"tag"', "Set-Cookie": "stolen=1", "Content-Type": "text/html"})

    async def _write(self, request: web.Request) -> web.Response:
        self._find(request)
        path = _path(request)
        if path in self.files and request.query.get("overwrite") != "1":
            raise Conflict(f"{path.decode(errors='replace')} of ws-1 exists already; choose another name or ask to overwrite it")
        self.files[path] = b"".join([piece async for piece in request.content.iter_any()])
        return web.json_response(self._entry(path), status=201)

    # Changes

    async def _diff(self, request: web.Request) -> web.Response:
        self._find(request)
        base = request.query["base"]
        told = CHANGES if request.query["own"] == "1" else MADE
        done = {"base": None if base == "image" else base, "changes": len(told), "own": len(CHANGES) - len(MADE), "truncated": False}
        return web.Response(text="".join(json.dumps(line) + "\n" for line in [*told, {"done": done}]))

    async def _diff_file(self, request: web.Request) -> web.Response:
        path = _path(request)
        answer = {"path": path.decode(), "encoded": quote(path), "base": "ws-1", "binary": False, "same": False, "diff": DIFF, "before": 60, "size": 64}
        return web.json_response(answer)

    async def _promote(self, request: web.Request) -> web.Response:
        self._find(request)
        body = await request.json()
        self.promoted.append((request.match_info["ref"], body))
        against = set() if body["force"] else {path for path in body["paths"] if unquote(path) in self.conflicts}
        if against and not body["dry_run"]:
            raise Conflict(f"nothing was promoted into {body['into']}: {sorted(against)[0]}: changed there, too; ask for `force`")
        planned = {"change": "added", "kind": "file", "size": 3, "outcome": "planned" if body["dry_run"] else "done", "reason": None}
        conflict = {**planned, "outcome": "conflict", "reason": "changed there, too"}
        refused = {**planned, "outcome": "refused", "reason": "it is a fifo: only files, directories and links are promoted"}
        outcome = lambda path: refused if unquote(path) in self.refused else conflict if path in against else planned  # noqa: E731
        paths = [{"path": unquote(path), "encoded": path, **outcome(path)} for path in body["paths"]]
        return web.json_response({"workspace": request.match_info["ref"], "into": body["into"], "dry_run": body["dry_run"], "paths": paths})

    # Shell

    async def _exec(self, request: web.Request) -> web.WebSocketResponse:
        self._find(request)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.open_shells += 1
        try:
            self.shells.append(json.loads((await socket.receive()).data))
            if not self.shells[-1]["tty"]:
                await (_repeated(socket) if self.says is None else self._command(socket, self.says))
                return socket
            await socket.send_bytes(b"\x01$ ")
            line = b""
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    self.sizes.append(json.loads(message.data)["resize"])
                    continue
                line = (line + message.data[1:]).rpartition(b"\n")[2]
                if line.endswith(b"exit\r"):
                    await socket.send_json({"exit": 3})
                    break
                for _ in range(200 if line.endswith(b"flood\r") else 0):
                    await socket.send_bytes(b"\x01" + b"x" * 65536)
                if not line.endswith(b"flood\r"):
                    await socket.send_bytes(b"\x01" + message.data[1:])
        finally:
            self.open_shells -= 1
            with contextlib.suppress(ConnectionError, RuntimeError, asyncio.CancelledError):
                await socket.close()
        return socket

    async def _command(self, socket: web.WebSocketResponse, says: list[tuple[int, bytes]]) -> None:
        self.told = b""
        argv = self.shells[-1]["argv"]
        says, exits = self.replies.get(argv[-1], (says, self.exits))
        if argv[:2] == ["/bin/sh", "-c"] and argv[2].startswith("echo $$;"):
            await socket.send_bytes(b"\x0171\n")
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                break
            self.told += message.data[1:]
            if argv[-1] == OSWORLD_RUNNER:
                break  # its request is one line
        for stream, data in says:
            await socket.send_bytes(bytes([stream]) + data)
        if exits is not None:
            await socket.send_json({"exit": exits})
            return
        async for _ in socket:
            pass


async def _repeated(socket: web.WebSocketResponse) -> None:
    """A command that writes what it reads to stdout, a word to stderr, and ends with 5 when its input has ended."""
    async for message in socket:
        if message.type is WSMsgType.TEXT and json.loads(message.data).get("stdin") == "eof":
            await socket.send_bytes(b"\x02done")
            await socket.send_json({"exit": 5})
            return
        if message.type is WSMsgType.BINARY:
            await socket.send_bytes(b"\x01" + message.data[1:])


def _path(request: web.Request) -> bytes:
    return unquote_to_bytes(request.rel_url.raw_query_string.partition("path=")[2].partition("&")[0])
