"""The image part of the API: list, build and import with a stream of progress, remove."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from engine import image_build
from engine.config import Config
from engine.errors import BadRequest, EngineError, Internal
from engine.events import Events
from engine.image_recipe import is_valid_name
from engine.images import Image, ImageStore
from engine.waiting import stopped

log = logging.getLogger(__name__)

_KEEPALIVE_SECONDS = 15.0
_Tell = Callable[[dict[str, Any]], None]
_Work = Callable[[Callable[[str, str, float], None]], Awaitable[Image]]


class ImageService:
    """`in_use` gives the digests that workspaces stand on; `events` hears of every build, whoever asked for it."""

    def __init__(self, config: Config, store: ImageStore, in_use: Callable[[], set[str]], events: Events) -> None:
        self._config = config
        self._store = store
        self._in_use = in_use
        self._events = events

    async def list(self, _: web.Request) -> web.Response:
        images = await asyncio.to_thread(self._store.list)
        return web.json_response([image.to_json() for image in images])

    async def remove(self, request: web.Request) -> web.Response:
        await self._store.remove(request.match_info["ref"], self._in_use())
        return web.Response(status=204)

    async def build(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        return await _stream(request, lambda progress: image_build.build(name, self._config, progress), self._told(name))

    async def import_(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await request.json()
        except ValueError:
            body = None
        if not isinstance(body, dict) or not isinstance(body.get("path"), str) or not isinstance(body.get("name"), str):
            raise BadRequest("the body must be a JSON object with `path` and `name`")
        if not body["path"].startswith("/"):
            raise BadRequest("path must be absolute")
        from engine import image_import

        path, name = Path(body["path"]), body["name"]
        return await _stream(request, lambda progress: image_import.import_image(path, name, self._config, progress), self._told(name))

    def _told(self, name: str) -> _Tell:
        """What passes on the lines of one operation as events. A name that no image can have is nobody's business."""

        def tell(line: dict[str, Any]) -> None:
            state = {"phase": line.get("phase", ""), "detail": line.get("detail", ""), "elapsed_ms": line.get("elapsed_ms"), "done": "done" in line}
            error = line.get("error")
            self._events.build(name, {**state, "error": error["message"] if error else None})

        return tell if is_valid_name(name) else lambda _: None


async def _stream(request: web.Request, start: _Work, tell: _Tell) -> web.StreamResponse:
    """Run the work and stream its progress as NDJSON; `tell` gets the same lines. The work goes away with its reader: a build that nobody waits for
    stops."""
    lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def progress(phase: str, detail: str, elapsed_ms: float) -> None:
        line = {"phase": phase, "detail": detail, "elapsed_ms": round(elapsed_ms, 1)}
        loop.call_soon_threadsafe(heard, line)

    def heard(line: dict[str, Any]) -> None:
        lines.put_nowait(line)
        tell(line)

    told = False
    answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await answer.prepare(request)
    task = asyncio.ensure_future(start(progress))
    try:
        while not task.done() or not lines.empty():
            getter = asyncio.ensure_future(lines.get())
            try:
                await asyncio.wait({getter, task}, return_when=asyncio.FIRST_COMPLETED, timeout=_KEEPALIVE_SECONDS)
            finally:
                getter.cancel()
            if getter.done():
                await _write(answer, getter.result())
                continue
            if not task.done():
                await _write(answer, {"phase": "working", "detail": "", "elapsed_ms": None})
        outcome = _outcome(task)
        tell(outcome)
        told = True
        await _write(answer, outcome)
        await answer.write_eof()
    finally:
        await stopped(task)
        if not told:
            tell({"error": {"message": "whoever asked for it went away; ask for it again"}})
    return answer


def _outcome(task: asyncio.Future[Image]) -> dict[str, Any]:
    """The last line: the image, or the error (the status line has gone out already)."""
    error = task.exception()
    if error is None:
        return {"done": task.result().to_json()}
    if not isinstance(error, EngineError):
        log.error("an image operation failed", exc_info=error)
        error = Internal("the image operation failed; the engine's log has more")
    return {"error": error.to_wire()}


async def _write(answer: web.StreamResponse, line: dict[str, Any]) -> None:
    await answer.write(json.dumps(line).encode() + b"\n")
