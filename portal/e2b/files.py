"""envd's files: the file system service, and whole files by `/files`. By the engine, which holds every walk inside the sandbox's root."""

from __future__ import annotations

import asyncio
import datetime
import posixpath
import re
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import unquote_to_bytes

from aiohttp import BodyPartReader, hdrs, web

from engine.errors import Conflict, EngineError, NotFound
from engine.waiting import stopped
from portal import audit, pieces
from portal.e2b.connect import RpcError, Stream, message_of, refusal
from portal.e2b.keys import Keys
from portal.e2b.processes import user_of
from portal.e2b.sandboxes import PREFIX
from portal.e2b.watches import Watches
from portal.endings import Endings, until
from portal.errors import LoginNeeded, Malformed, NoWorkspace, PortalError
from portal.inside import Inside
from portal.node import Node
from portal.principal import Principal, Scope
from portal.routes import Router
from portal.sockets import side_by_side

_SERVICE = PREFIX + "/filesystem.Filesystem/"
_MOST_LISTED = 10_000
_MOST_FILES = 64
# Between two signs of life on a stream of events.
_QUIET_SECONDS = 20.0
_FILENAME = re.compile(r'; filename="((?:[^"\\]|\\.)*)"')
_BYTES = "application/octet-stream"
_TYPES = {"file": ("FILE_TYPE_FILE", stat.S_IFREG), "directory": ("FILE_TYPE_DIRECTORY", stat.S_IFDIR), "link": ("FILE_TYPE_SYMLINK", stat.S_IFLNK)}

Method = Callable[[Principal, str, dict[str, Any], str], Awaitable[dict[str, Any]]]


class FileService:
    """`/filesystem.Filesystem/…`, `/files` and `/health`."""

    def __init__(self, inside: Inside, node: Node, keys: Keys, router: Router, watches: Watches, endings: Endings) -> None:
        self._inside = inside
        self._node = node
        self._keys = keys
        self._router = router
        self._watches = watches
        self._endings = endings

    def routes(self) -> list[web.RouteDef]:
        methods: dict[str, tuple[Method, bool]] = {
            "Stat": (self._stat, False), "ListDir": (self._list, False), "MakeDir": (self._make, True), "Move": (self._move, True), "Remove": (self._remove, True),
            "CreateWatcher": (self._create_watcher, False), "GetWatcherEvents": (self._watched, False), "RemoveWatcher": (self._remove_watcher, False),
        }  # fmt: skip
        routes = [web.post(_SERVICE + name, self._called(method, acts)) for name, (method, acts) in methods.items()]
        routes.append(web.post(_SERVICE + "WatchDir", self._watch))
        return [*routes, web.get(PREFIX + "/files", self._read), web.post(PREFIX + "/files", self._write), web.get(PREFIX + "/health", self._health)]

    def _called(self, method: Method, acts: bool) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def serve(request: web.Request) -> web.StreamResponse:
            try:
                principal, workspace = self._enter(request, acts)
                return web.json_response(await method(principal, workspace, await message_of(request), user_of(request)))
            except (PortalError, EngineError) as error:
                return refusal(error)

        return serve

    def _enter(self, request: web.Request, acts: bool) -> tuple[Principal, str]:
        principal, identity = self._keys.of_sandbox(request)
        return principal, self._router.enter(principal, identity, Scope.CONTROL if acts else Scope.READ, request.path if acts else "")

    async def _health(self, request: web.Request) -> web.Response:
        """Clients ask when a request failed: 502 in these words means that the sandbox is gone."""
        try:
            _, workspace = self._enter(request, acts=False)
            item = await self._node.workspace(workspace)
        except (NoWorkspace, NotFound) as error:
            return web.json_response({"code": 502, "message": f"the sandbox was not found: {error.message}"}, status=502)
        except (PortalError, EngineError) as error:
            return _refused(error)
        if item["paused"] or item["state"] not in ("ready", "forking"):
            return web.json_response({"code": 502, "message": f"the sandbox was not found: {workspace} is {'paused' if item['paused'] else item['state']}"}, status=502)
        return web.Response(status=204)

    # The service

    async def _stat(self, principal: Principal, workspace: str, message: dict[str, Any], user: str) -> dict[str, Any]:
        return {"entry": await self._entry(workspace, await self._inside.path(workspace, message.get("path")))}

    async def _list(self, principal: Principal, workspace: str, message: dict[str, Any], user: str) -> dict[str, Any]:
        depth = message.get("depth") or 1
        if not isinstance(depth, int) or not 1 <= depth <= 100:
            raise Malformed("depth must be from 1 to 100")
        entries: list[dict[str, Any]] = []
        waiting = [(await self._inside.path(workspace, message.get("path")), depth)]
        while waiting:
            path, left = waiting.pop(0)
            for item in (await self._inside.list_files(workspace, path))["entries"]:
                below = path.rstrip(b"/") + b"/" + unquote_to_bytes(str(item["encoded"]))
                entries.append(_shown(item, below))
                if item["kind"] == "directory" and left > 1:
                    waiting.append((below, left - 1))
                if len(entries) > _MOST_LISTED:
                    raise RpcError("resource_exhausted", f"more than {_MOST_LISTED} entries; list less deeply", 429)
        return {"entries": entries}

    async def _make(self, principal: Principal, workspace: str, message: dict[str, Any], user: str) -> dict[str, Any]:
        path = await self._inside.path(workspace, message.get("path"))
        with audit.outcome("make-directory", principal, workspace):
            if not await self._made(workspace, path):
                raise RpcError("already_exists", f"{path.decode(errors='replace')} is there already", 409)
        return {"entry": await self._entry(workspace, path)}

    async def _move(self, principal: Principal, workspace: str, message: dict[str, Any], user: str) -> dict[str, Any]:
        source = await self._inside.path(workspace, message.get("source"))
        target = await self._inside.path(workspace, message.get("destination"))
        await self._entry(workspace, source)
        with audit.outcome("move", principal, workspace):
            words = ["mv", "-T", "--", source.decode(errors="surrogateescape"), target.decode(errors="surrogateescape")]
            status, _, said = await self._inside.run(workspace, words, user=user)
            if status != 0:
                raise Conflict(said.decode(errors="replace").strip()[-300:] or f"mv ended with {status}")
        return {"entry": await self._entry(workspace, target)}

    async def _remove(self, principal: Principal, workspace: str, message: dict[str, Any], user: str) -> dict[str, Any]:
        path = await self._inside.path(workspace, message.get("path"))
        with audit.outcome("remove-file", principal, workspace):
            await self._inside.remove_file(workspace, path, recursive=True)
        return {}

    # Directories that are watched

    async def _directory(self, workspace: str, message: dict[str, Any]) -> tuple[bytes, bool]:
        """Which one, and whether with all below it. Raises Malformed, RpcError, NotFound."""
        path = await self._inside.path(workspace, message.get("path"))
        if (await self._inside.entry(workspace, path))["kind"] not in ("directory", "link"):
            raise RpcError("invalid_argument", f"{path.decode(errors='replace')} is not a directory")
        return path, message.get("recursive") is True

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        stream = Stream(request)
        try:
            principal, workspace = self._enter(request, acts=False)
            path, below = await self._directory(workspace, await message_of(request))
            async with self._endings.watch() as ended, self._watches.watching(workspace, path, below, user_of(request)) as events:
                async with side_by_side(_sent(stream, events), until(principal.grant, ended)) as (sent, over):
                    if sent.done():
                        sent.result()
                    elif over.result():
                        raise LoginNeeded("the token has ended")
            return await stream.end()
        except (PortalError, EngineError) as error:
            return await stream.end(error)

    async def _create_watcher(self, principal: Principal, workspace: str, message: dict[str, Any], user: str) -> dict[str, Any]:
        return {"watcherId": await self._watches.create(workspace, *await self._directory(workspace, message), user)}

    async def _watched(self, principal: Principal, workspace: str, message: dict[str, Any], user: str) -> dict[str, Any]:
        return {"events": self._watches.taken(workspace, message.get("watcherId"))}

    async def _remove_watcher(self, principal: Principal, workspace: str, message: dict[str, Any], user: str) -> dict[str, Any]:
        self._watches.remove(workspace, message.get("watcherId"))
        return {}

    # Whole files

    async def _read(self, request: web.Request) -> web.StreamResponse:
        try:
            _, workspace = self._enter(request, acts=False)
            path = await self._inside.path(workspace, request.query.get("path"))
            async with self._inside.read_file(workspace, path, {}) as source:
                answer = web.StreamResponse(headers={hdrs.CONTENT_TYPE: _BYTES})
                answer.content_length = source.content_length
                await answer.prepare(request)
                await pieces.send(source, request, answer)
                return answer
        except (PortalError, EngineError) as error:
            return _refused(error)

    async def _write(self, request: web.Request) -> web.Response:
        try:
            principal, workspace = self._enter(request, acts=True)
            if request.content_type == _BYTES:
                return web.json_response([await self._put(principal, workspace, request.query.get("path"), pieces.of_body(request))])
            if request.content_type != "multipart/form-data":
                raise Malformed(f"a file is sent as {_BYTES} or multipart/form-data")
            written: list[dict[str, Any]] = []
            async for part in await request.multipart():
                if not isinstance(part, BodyPartReader) or len(written) >= _MOST_FILES:
                    raise Malformed(f"the form must have up to {_MOST_FILES} files and nothing else")
                # One file is named by the address, several by their own names.
                written.append(await self._put(principal, workspace, request.query.get("path") or _named(part), pieces.of_part(part)))
            return web.json_response(written)
        except (PortalError, EngineError) as error:
            return _refused(error)

    async def _put(self, principal: Principal, workspace: str, name: object, content: AsyncIterator[bytes]) -> dict[str, Any]:
        path = await self._inside.path(workspace, name)
        with audit.outcome("upload", principal, workspace) as told:
            await self._made(workspace, posixpath.dirname(path))
            entry = await self._inside.write_file(workspace, path, content, None, True)
            told["size"] = entry.get("size")
        return {"name": posixpath.basename(path).decode(errors="replace"), "type": "file", "path": path.decode(errors="replace")}

    # Inside

    async def _entry(self, workspace: str, path: bytes) -> dict[str, Any]:
        """What is at a path, as envd tells it. Raises NotFound."""
        return _shown(await self._inside.entry(workspace, path), path)

    async def _made(self, workspace: str, path: bytes) -> bool:
        """Make a directory and those above it that are missing; False when it is there. Raises EngineError."""
        missing = []
        while path != b"/":
            try:
                await self._inside.list_files(workspace, path)
                break
            except NotFound:
                missing.append(path)
                path = posixpath.dirname(path)
        for one in reversed(missing):
            await self._inside.make_directory(workspace, one)
        return bool(missing)


async def _sent(stream: Stream, events: AsyncIterator[dict[str, Any]]) -> None:
    """Send what happens until the directory is gone. Raises why it is watched no more."""
    waiting = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            await asyncio.wait({waiting}, timeout=_QUIET_SECONDS)
            if not waiting.done():
                # It also tells whether the client is still there.
                await stream.send({"keepalive": {}})
                continue
            event = waiting.result()
            if event is None:
                return
            await stream.send(event)
            waiting = asyncio.ensure_future(anext(events, None))
    finally:
        await stopped(waiting)


def _refused(error: PortalError | EngineError) -> web.Response:
    status = error.status if isinstance(error, PortalError) else error.http_status
    # Clients take 401 for a key that went stale, which connecting again mends.
    message = f"{error.message} (connect again)" if isinstance(error, LoginNeeded) else error.message
    return web.json_response({"code": status, "message": message}, status=status)


def _named(part: BodyPartReader) -> str | None:
    """The name that a client gave a file: a whole path, of which aiohttp's own `filename` takes the first slash."""
    found = _FILENAME.search(part.headers.get(hdrs.CONTENT_DISPOSITION, ""))
    return found[1].replace("\\\\", "\\").replace("%22", '"') if found else None


def _shown(item: dict[str, Any], path: bytes) -> dict[str, Any]:
    kind, bits = _TYPES.get(str(item["kind"]), ("FILE_TYPE_UNSPECIFIED", 0))
    mode = int(item.get("mode") or 0)
    modified = datetime.datetime.fromtimestamp(min(max(float(item.get("modified") or 0), 0), 2**36), datetime.timezone.utc)
    return {
        "name": posixpath.basename(path).decode(errors="replace"), "type": kind, "path": path.decode(errors="replace"), "size": str(item.get("size") or 0),
        "mode": mode, "permissions": stat.filemode(bits | mode), "owner": str(item.get("uid")), "group": str(item.get("gid")),
        "modifiedTime": modified.isoformat(timespec="microseconds").replace("+00:00", "Z"),
    }  # fmt: skip
