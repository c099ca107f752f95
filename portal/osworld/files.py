"""Routes of an OSWorld server that move files: into the workspace, out of it, and lists of them."""

from __future__ import annotations

import json
import posixpath
from typing import Any

import pydantic
from aiohttp import BodyPartReader, hdrs, web

from portal import audit, pieces
from portal.errors import BadAnswer
from portal.osworld.server import Ground, failure, object_of

_LONGEST_PATH = 4096
_LONGEST_FIELD = 64 << 10
_LIST_SECONDS, _FETCH_SECONDS = 60.0, 300.0
# Run inside, as the desktop's user. At most so many entries, so deep; a link is a file, so that no walk goes round.
_LISTING = """
import json, os, sys
left = 20000
def tree(path, depth):
    global left
    left -= 1
    name = os.path.basename(path) or path
    if os.path.islink(path) or not os.path.isdir(path):
        return {"type": "file", "name": name}
    try:
        names = sorted(os.listdir(path)) if depth < 64 else []
    except OSError:
        names = []
    return {"type": "directory", "name": name, "children": [tree(os.path.join(path, one), depth + 1) for one in names if left > 0]}
path = os.path.expanduser(%s)
if not os.path.isdir(path):
    sys.exit("no such directory: " + path)
print(json.dumps(tree(os.path.abspath(path), 0)))
"""
_FETCH = """
import os, shutil, sys, urllib.request
url, path = %s, os.path.expanduser(%s)
try:
    with urllib.request.urlopen(url, timeout=60) as source:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "wb") as target:
            shutil.copyfileobj(source, target)
except (OSError, ValueError) as error:
    sys.exit(f"{url}: {error}")
"""
_PYTHON = ["python3", "-IS"]


class _Path(pydantic.BaseModel):
    path: str = pydantic.Field(min_length=1, max_length=_LONGEST_PATH)


class _Fetched(_Path):
    url: str = pydantic.Field(pattern="^https?://", max_length=8192)


class Files:
    """`/file`, `/list_directory`, `/desktop_path`, `/setup/upload`, `/setup/download_file` of one workspace."""

    def __init__(self, ground: Ground, workspace: str) -> None:
        self._ground = ground
        self._workspace = workspace

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/file", self._file),
            web.post("/list_directory", self._list),
            web.post("/desktop_path", self._desktop),
            web.post("/setup/upload", self._upload),
            web.post("/setup/download_file", self._fetch),
        ]

    async def path(self, text: str) -> bytes:
        """An absolute path of what a client wrote: `~`, `$HOME` and what is relative are the desktop's user's. Raises Malformed."""
        if "$" in text and len(text) <= _LONGEST_PATH:
            home = (await self._ground.inside.home(self._workspace)).decode(errors="surrogateescape")
            text = text.replace("${HOME}", home).replace("$HOME", home)
        return await self._ground.inside.path(self._workspace, text)

    async def send(self, request: web.Request, path: bytes) -> web.StreamResponse:
        """A file as the answer. Raises EngineError."""
        async with self._ground.inside.read_file(self._workspace, path, {}) as source:
            headers = {hdrs.CONTENT_TYPE: "application/octet-stream"}
            if hdrs.CONTENT_LENGTH in source.headers:
                headers[hdrs.CONTENT_LENGTH] = source.headers[hdrs.CONTENT_LENGTH]
            answer = web.StreamResponse(headers=headers)
            await answer.prepare(request)
            await pieces.send(source, request, answer)
        return answer

    async def _file(self, request: web.Request) -> web.StreamResponse:
        text = (await request.post()).get("file_path")
        if not isinstance(text, str):
            return failure("file_path is required", 400)
        return await self.send(request, await self.path(text))

    async def _list(self, request: web.Request) -> web.Response:
        _, value = await object_of(request)
        wanted = _Path.model_validate(value)
        done = await self._python(request, _LISTING % repr(wanted.path), _LIST_SECONDS)
        if done.returncode != 0:
            return failure(done.error.strip()[-500:] or "it cannot be listed", 400)
        try:
            tree = json.loads(done.output)
        except (ValueError, RecursionError):
            raise BadAnswer(f"what {self._workspace} says of this directory makes no sense") from None
        return web.json_response({"directory_tree": tree})

    async def _desktop(self, request: web.Request) -> web.Response:
        command = {"shell": 'xdg-user-dir DESKTOP 2>/dev/null || echo "$HOME/Desktop"', "seconds": _LIST_SECONDS}
        done = await self._ground.guest.run(self._workspace, command, _asks_nothing)
        return web.json_response({"desktop_path": done.output.strip()})

    async def _upload(self, request: web.Request) -> web.Response:
        """Fields in the order in which OSWorld's client sends them: where to, then the bytes, which go on as they come."""
        self._ground.admit(self._workspace, request.path)
        if not request.content_type.startswith("multipart/"):
            return failure("file_path and file_data are sent as multipart/form-data", 415)
        target: bytes | None = None
        async for part in await request.multipart():
            if not isinstance(part, BodyPartReader):
                return failure("a part of the form is no field", 400)
            if part.name == "file_path":
                target = await self.path((await _short(part)).decode(errors="replace"))
            elif part.name == "file_data" and target is not None:
                await self._make_parent(target)
                with audit.outcome("upload", self._ground.principal(self._workspace), self._workspace):
                    await self._ground.inside.write_file(self._workspace, target, pieces.of_part(part), None, overwrite=True)
                return web.Response(text="File Uploaded")
        return failure("file_path and then file_data are required", 400)

    async def _make_parent(self, path: bytes) -> None:
        parent = posixpath.dirname(path).decode(errors="surrogateescape")
        await self._ground.guest.run(self._workspace, {"argv": ["mkdir", "-p", "--", parent]}, _asks_nothing)

    async def _fetch(self, request: web.Request) -> web.Response:
        """By the workspace itself: it reaches what it may reach."""
        _, value = await object_of(request)
        wanted = _Fetched.model_validate(value)
        done = await self._python(request, _FETCH % (repr(wanted.url), repr(wanted.path)), _FETCH_SECONDS)
        if done.returncode != 0 or done.late:
            return failure(done.error.strip()[-500:] or "it took too long", 500)
        return web.Response(text="File downloaded successfully")

    async def _python(self, request: web.Request, code: str, seconds: float) -> Any:
        return await self._ground.run(request, self._workspace, {"code": code, "interpreter": _PYTHON, "seconds": seconds})


async def _short(part: BodyPartReader) -> bytes:
    """A field that is a path. Raises HTTPRequestEntityTooLarge: aiohttp would take all that comes into memory."""
    kept = b""
    while piece := await part.read_chunk(_LONGEST_FIELD):
        kept += piece
        if len(kept) > _LONGEST_FIELD:
            raise web.HTTPRequestEntityTooLarge(max_size=_LONGEST_FIELD, actual_size=len(kept))
    return kept


async def _asks_nothing(_: dict[str, Any]) -> dict[str, Any]:
    return {"error": "this command has no desktop to ask for"}
