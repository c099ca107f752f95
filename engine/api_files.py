"""The routes of a workspace's files: JSON for directories, bytes both ways for files, never more of them in memory than one piece."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from aiohttp import web

from engine import files
from engine.errors import BadRequest, Conflict, LimitReached, NoSpace, Unavailable
from engine.manager import Manager
from engine.query import path_of, switch
from engine.threads import in_thread
from engine.workspace import Workspace

T = TypeVar("T")

LARGEST_UPLOAD = 16 << 30
_PIECE = 256 << 10
_THREADS = 32
# Of one workspace: if one day its file system does not answer, there are threads left for the others.
_AT_ONCE = 20
_TRANSFERS = 16
_STALLED_SECONDS = 60.0
SPARE_BYTES = 256 << 20


class FileRoutes:
    """`GET|HEAD|PUT …/file`, `GET …/entry`, `GET|DELETE …/files`, `POST …/directories`."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="files")
        self._working: Counter[str] = Counter()
        self._transfers: Counter[str] = Counter()

    def routes(self) -> list[web.RouteDef]:
        one = "/v1/workspaces/{ref}"
        return [
            web.get(one + "/files", self._list),
            web.delete(one + "/files", self._remove),
            web.post(one + "/directories", self._make_directory),
            web.get(one + "/entry", self._entry),
            web.get(one + "/file", self._read),
            web.put(one + "/file", self._write),
        ]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def in_thread(self, workspace: Workspace, work: Callable[[], T]) -> T:
        """Run blocking work on a workspace's files. Raises Unavailable while too much of that is under way."""
        if self._working[workspace.id] >= _AT_ONCE:
            raise Unavailable(f"too many requests for files of {workspace.id} are under way; try again")
        with _counted(self._working, workspace.id):
            return await in_thread(work, self._threads)

    def _workspace(self, request: web.Request) -> Workspace:
        return self._manager.find(request.match_info["ref"])

    async def _list(self, request: web.Request) -> web.Response:
        workspace, path = self._workspace(request), path_of(request)
        return web.json_response(await self.in_thread(workspace, lambda: files.list_directory(workspace, path)))

    async def _entry(self, request: web.Request) -> web.Response:
        workspace, path = self._workspace(request), path_of(request)
        return web.json_response(await self.in_thread(workspace, lambda: files.entry_at(workspace, path)))

    async def _make_directory(self, request: web.Request) -> web.Response:
        workspace, path = self._workspace(request), path_of(request)
        return web.json_response(await self.in_thread(workspace, lambda: files.make_directory(workspace, path)), status=201)

    async def _remove(self, request: web.Request) -> web.Response:
        workspace, path, recursive = self._workspace(request), path_of(request), switch(request, "recursive")
        await self.in_thread(workspace, lambda: files.remove(workspace, path, recursive))
        return web.Response(status=204)

    # Bytes

    async def _read(self, request: web.Request) -> web.StreamResponse:
        workspace, path = self._workspace(request), path_of(request)
        with self._transfer(workspace):
            fd = await self.in_thread(workspace, lambda: files.open_file(workspace, path))
            try:
                return await self._send(request, workspace, fd)
            finally:
                os.close(fd)

    async def _send(self, request: web.Request, workspace: Workspace, fd: int) -> web.StreamResponse:
        status = os.fstat(fd)
        tag = f'"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}"'
        headers = {"Content-Type": "application/octet-stream", "X-Content-Type-Options": "nosniff", "Accept-Ranges": "bytes", "ETag": tag}
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers={"ETag": tag})
        start, end, partial = _range(request, status.st_size, tag)
        answer = web.StreamResponse(status=206 if partial else 200, headers=headers)
        if partial:
            answer.headers["Content-Range"] = f"bytes {start}-{end - 1}/{status.st_size}"
        answer.last_modified = status.st_mtime if 0 <= status.st_mtime < 1 << 37 else None
        answer.content_length = end - start
        await answer.prepare(request)
        while start < end and request.method != "HEAD":
            piece = await self.in_thread(workspace, lambda at=start: os.pread(fd, min(_PIECE, end - at), at))
            if not piece or not workspace.alive:
                # It was cut short meanwhile: a connection that breaks off is the only way left to say so.
                if request.transport is not None:
                    request.transport.abort()
                break
            await answer.write(piece)
            start += len(piece)
        return answer

    async def _write(self, request: web.Request) -> web.Response:
        workspace, path, overwrite = self._workspace(request), path_of(request), switch(request, "overwrite")
        _check_size(request.content_length or 0)
        with self._transfer(workspace):
            if await asyncio.to_thread(self._manager.storage.free_bytes) < (request.content_length or 0) + SPARE_BYTES:
                raise NoSpace("no space left in the data directory for this file; remove workspaces (`tclone rm`) or images")
            upload = await self.in_thread(workspace, lambda: files.Upload.begin(workspace, path, overwrite))
            try:
                async for piece in _body(request):
                    _check_size(upload.size + len(piece))
                    if not workspace.alive:
                        raise Conflict(f"{workspace.id} has stopped")
                    await self.in_thread(workspace, lambda data=piece: upload.write(data))
                if request.content_length not in (None, upload.size):
                    raise BadRequest(f"only {upload.size} of {request.content_length} bytes came; the file was not written")
                entry = await self.in_thread(workspace, upload.commit)
            finally:
                await asyncio.shield(asyncio.to_thread(upload.close))
        return web.json_response(entry, status=201)

    @contextlib.contextmanager
    def _transfer(self, workspace: Workspace):
        if self._transfers[workspace.id] >= _TRANSFERS:
            raise LimitReached(f"{_TRANSFERS} files of {workspace.id} are being read or written; wait until one has ended")
        with _counted(self._transfers, workspace.id):
            yield


@contextlib.contextmanager
def _counted(counter: Counter[str], key: str):
    counter[key] += 1
    try:
        yield
    finally:
        counter[key] -= 1
        if counter[key] <= 0:
            del counter[key]


def _range(request: web.Request, size: int, tag: str) -> tuple[int, int, bool]:
    """First byte, the byte behind the last, and whether that is a part that was asked for. Raises BadRequest."""
    if "Range" not in request.headers or request.headers.get("If-Range", tag) != tag:
        return 0, size, False
    try:
        wanted = request.http_range
    except ValueError:
        return 0, size, False  # what is not understood is ignored, as RFC 9110 has it
    start, end = wanted.start or 0, wanted.stop
    if start < 0:
        start = max(0, size + start)
    end = size if end is None else min(end, size)
    if start >= end:
        raise web.HTTPRequestRangeNotSatisfiable(reason=f"the file has {size} bytes", headers={"Content-Range": f"bytes */{size}"})
    return start, end, True


def _check_size(size: int) -> None:
    if size > LARGEST_UPLOAD:
        raise LimitReached(f"a file may have at most {LARGEST_UPLOAD >> 30} GiB")


async def _body(request: web.Request) -> AsyncIterator[bytes]:
    """The body in pieces. Raises BadRequest when nothing comes for a minute."""
    while True:
        try:
            async with asyncio.timeout(_STALLED_SECONDS):
                piece = await request.content.readany()
        except TimeoutError:
            raise BadRequest(f"nothing came for {_STALLED_SECONDS:.0f} s; the file was not written") from None
        except (ConnectionError, web.RequestPayloadError) as error:
            raise BadRequest(f"the connection broke off; the file was not written ({error})") from None
        if not piece:
            return
        yield piece
