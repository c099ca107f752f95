"""The engine API's pictures of screens."""

from __future__ import annotations

import re

from aiohttp import hdrs, web

from engine.errors import BadRequest
from engine.manager import Manager
from engine.pixels import FORMATS, Wanted
from engine.screen import FEWEST_BYTES, LARGEST_WIDTH, MOST_AGE_MS, MOST_BYTES, MOST_WAIT_MS, SMALLEST_WIDTH, Screens
from engine.workspace import check_integer

_REGION = re.compile(r"[0-9]{1,5}(,[0-9]{1,5}){3}")


class ScreenService:
    """`GET /v1/workspaces/{ref}/screenshot`, `…/idle`"""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._screens = Screens()

    async def close(self) -> None:
        self._screens.close()

    async def screenshot(self, request: web.Request) -> web.Response:
        """The picture, or 304 when it is the one whose tag the caller has. `Screen-Size` is that of the whole screen.

        With a known tag and `wait_change_ms` the answer comes when there is another picture; with `settle_ms` when the screen has come to rest.
        """
        workspace = self._manager.find(request.match_info["ref"])
        wanted = _wanted(request)
        known = request.headers.get(hdrs.IF_NONE_MATCH, "")
        change, rest = (_number(request, name, 0, MOST_WAIT_MS) or 0 for name in ("wait_change_ms", "settle_ms"))
        if change and known:
            picture = await self._screens.changed(workspace, wanted, known.strip('"'), change / 1000)
        elif rest:
            picture = await self._screens.at_rest(workspace, wanted, rest / 1000)
        else:
            picture = await self._screens.picture(workspace, wanted, (_number(request, "max_age_ms", 0, MOST_AGE_MS) or 0) / 1000)
        headers = {
            hdrs.ETAG: f'"{picture.tag}"',
            hdrs.CACHE_CONTROL: "no-cache",
            "Screen-Size": f"{picture.screen[0]}x{picture.screen[1]}",
            "Picture-Size": f"{picture.size[0]}x{picture.size[1]}",
        }
        if headers[hdrs.ETAG] in known:
            return web.Response(status=304, headers=headers)
        return web.Response(body=picture.content, content_type=FORMATS[picture.format], headers=headers)

    async def idle(self, request: web.Request) -> web.Response:
        """For how long nobody has used its mouse or keyboard; null without a desktop."""
        workspace = self._manager.find(request.match_info["ref"])
        return web.json_response({"idle_seconds": await self._screens.idle(workspace)})


def _wanted(request: web.Request) -> Wanted:
    format = request.query.get("format", "png")
    if format not in FORMATS:
        raise BadRequest(f"format must be one of {', '.join(FORMATS)}")
    width = _number(request, "width", SMALLEST_WIDTH, LARGEST_WIDTH)
    height = _number(request, "height", SMALLEST_WIDTH, LARGEST_WIDTH)
    if height is not None and width is None:
        raise BadRequest("height goes with width; width alone keeps the proportions")
    text = request.query.get("region")
    if text is not None and not _REGION.fullmatch(text):
        raise BadRequest("region must be left,top,right,bottom in pixels of the screen")
    left, top, right, bottom = (int(part) for part in text.split(",")) if text else (0, 0, 0, 0)
    most = _number(request, "max_bytes", FEWEST_BYTES, MOST_BYTES)
    pointer = bool(_number(request, "pointer", 0, 1))
    return Wanted(width, height, format, (left, top, right, bottom) if text else None, most, pointer)


def _number(request: web.Request, name: str, low: int, high: int) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 9:
        raise BadRequest(f"{name} must be a whole number")
    return check_integer(int(text), name, low, high)
