"""Files of a workspace. Bytes pass through in pieces, at the pace of the slower side."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from aiohttp import hdrs, web

from engine.query import check_path, path_of, switch
from portal import audit, pieces
from portal.errors import Malformed, WrongType
from portal.identity import Identity
from portal.inside import Inside, read_headers
from portal.parameters import PATH, flag
from portal.principal import Scope
from portal.routes import COSTLY, PREFIX, Call, Route, Router

_BYTES = "application/octet-stream"


class Files:
    """`/workspaces/{id}/files`, `/directories`, `/file`."""

    def __init__(self, inside: Inside, identity: Identity, router: Router) -> None:
        self._inside = inside
        self._identity = identity
        self._router = router

    def form_routes(self) -> list[web.RouteDef]:
        """For a browser that saves a file: a form streams it to disk, with the session key in the form and in no address."""
        return [web.post(PREFIX + "/workspaces/{id}/download", self._save)]

    async def _save(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        principal = self._identity.of_socket(request, form.get("key"))
        workspace = self._router.admit(request, principal, Scope.READ)
        path = form.get("path")
        if not isinstance(path, str):
            raise Malformed("path must be an absolute path in the workspace")
        return await self._download(request, workspace, check_path(unquote_to_bytes(path)))

    def routes(self) -> list[Route]:
        one = "/workspaces/{id}"
        return [
            Route("GET", one + "/files", Scope.READ, self._list, "A directory's entries", answers={200: "the directory"}, query=PATH, cost=COSTLY),
            Route("DELETE", one + "/files", Scope.CONTROL, self._remove, "Remove a file or directory", answers={204: "it is gone"},
                  query=PATH | {"recursive": flag("a directory and all that is in it")}, acts=True),
            Route("POST", one + "/directories", Scope.CONTROL, self._make, "Make a directory", answers={201: "its entry"}, query=PATH, acts=True, once="kept"),
            Route("GET", one + "/file", Scope.READ, self._read, "Download a file; ranges and HEAD work", content=(_BYTES,), answers={200: "its bytes", 206: "some of them", 304: "it is still the one of If-None-Match"}, query=PATH),
            Route("PUT", one + "/file", Scope.CONTROL, self._write, "Upload a file: its bytes as the body", answers={201: "its entry"},
                  takes=_BYTES, query=PATH | {"overwrite": flag("in place of a file that is there")}, acts=True),
        ]  # fmt: skip

    async def _list(self, call: Call) -> web.Response:
        return web.json_response(await self._inside.list_files(call.workspace, path_of(call.request)))

    async def _make(self, call: Call) -> web.Response:
        with audit.outcome("make-directory", call.principal, call.workspace):
            made = await self._inside.make_directory(call.workspace, path_of(call.request))
        return web.json_response(made, status=201)

    async def _remove(self, call: Call) -> web.Response:
        with audit.outcome("remove-file", call.principal, call.workspace):
            await self._inside.remove_file(call.workspace, path_of(call.request), switch(call.request, "recursive"))
        return web.Response(status=204)

    async def _read(self, call: Call) -> web.StreamResponse:
        return await self._download(call.request, call.workspace, path_of(call.request))

    async def _download(self, request: web.Request, workspace: str, path: bytes) -> web.StreamResponse:
        """A file as an attachment: what a workspace holds never runs as a page of the portal."""
        asked = {name: request.headers[name] for name in ("Range", "If-Range", "If-None-Match") if name in request.headers}
        async with self._inside.read_file(workspace, path, asked) as source:
            headers = read_headers(source) | {
                hdrs.CONTENT_TYPE: _BYTES, hdrs.CONTENT_DISPOSITION: attachment(path), hdrs.CACHE_CONTROL: "private, no-cache",
            }  # fmt: skip
            answer = web.StreamResponse(status=source.status, headers=headers)
            await answer.prepare(request)
            if request.method == "HEAD" or source.status == 304:
                return answer
            await pieces.send(source, request, answer)
        return answer

    async def _write(self, call: Call) -> web.Response:
        request = call.request
        if request.content_type != _BYTES:
            raise WrongType(f"the body is of type {request.content_type}; send a file with Content-Type: {_BYTES}")
        overwrite = switch(request, "overwrite")
        with audit.outcome("upload", call.principal, call.workspace) as told:
            entry = await self._inside.write_file(call.workspace, path_of(request), pieces.of_body(request), request.content_length, overwrite)
            told["size"] = entry.get("size")
        return web.json_response(entry, status=201)


def attachment(path: bytes) -> str:
    """The Content-Disposition that lets a browser save a file under its name."""
    name = path.rstrip(b"/").rpartition(b"/")[2].decode(errors="replace")
    plain = "".join(character if character.isascii() and (character.isalnum() or character in "-_.") else "_" for character in name)
    quoted = "".join(chr(byte) if chr(byte).isalnum() and byte < 128 or chr(byte) in "-_." else f"%{byte:02X}" for byte in name.encode())
    return f"attachment; filename=\"{plain[:200] or 'file'}\"; filename*=UTF-8''{quoted[:1000]}"
