"""The engine API's pictures of screens."""

from __future__ import annotations

from aiohttp import hdrs, web

from engine.errors import BadRequest
from engine.manager import Manager
from engine.screen import FORMATS, LARGEST_WIDTH, MOST_AGE_MS, SMALLEST_WIDTH, Screens
from engine.workspace import check_integer


class ScreenService:
    """`GET /v1/workspaces/{ref}/screenshot`, `…/idle`"""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._screens = Screens()

    async def close(self) -> None:
        self._screens.close()

    async def screenshot(self, request: web.Request) -> web.Response:
        """The picture, or 304 when it is the one whose tag the caller has. `Screen-Size` is that of the whole screen."""
        workspace = self._manager.find(request.match_info["ref"])
        format = request.query.get("format", "png")
        if format not in FORMATS:
            raise BadRequest(f"format must be one of {', '.join(FORMATS)}")
        width = _number(request, "width", SMALLEST_WIDTH, LARGEST_WIDTH)
        age = _number(request, "max_age_ms", 0, MOST_AGE_MS) or 0
        picture = await self._screens.picture(workspace, width, format, age / 1000)
        headers = {
            hdrs.ETAG: f'"{picture.tag}"',
            hdrs.CACHE_CONTROL: "no-cache",
            "Screen-Size": f"{picture.screen[0]}x{picture.screen[1]}",
        }
        if headers[hdrs.ETAG] in request.headers.get(hdrs.IF_NONE_MATCH, ""):
            return web.Response(status=304, headers=headers)
        return web.Response(body=picture.content, content_type=FORMATS[picture.format], headers=headers)

    async def idle(self, request: web.Request) -> web.Response:
        """For how long nobody has used its mouse or keyboard; null without a desktop."""
        workspace = self._manager.find(request.match_info["ref"])
        return web.json_response({"idle_seconds": await self._screens.idle(workspace)})


def _number(request: web.Request, name: str, low: int, high: int) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 9:
        raise BadRequest(f"{name} must be a whole number")
    return check_integer(int(text), name, low, high)
