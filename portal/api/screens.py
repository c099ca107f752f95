"""Pictures of desktops' screens."""

from __future__ import annotations

from typing import Literal

import pydantic
from aiohttp import hdrs, web

from engine.screen import FEWEST_BYTES, MOST_BYTES, MOST_WAIT_MS
from portal.errors import Malformed
from portal.node import Node
from portal.parameters import Parameter, whole
from portal.principal import Scope
from portal.routes import COSTLY, Call, Route

_LONGEST_TAG = 80
_REGION = "^[0-9]{1,5}(,[0-9]{1,5}){3}$"


class _Query(pydantic.BaseModel, extra="forbid"):
    """`max_age_ms`: a picture begun so long before the request will do."""

    width: int | None = pydantic.Field(None, ge=16, le=7680)
    height: int | None = pydantic.Field(None, ge=16, le=7680)
    format: Literal["jpeg", "png", "webp"] = "png"
    region: str | None = pydantic.Field(None, pattern=_REGION)
    max_bytes: int | None = pydantic.Field(None, ge=FEWEST_BYTES, le=MOST_BYTES)
    pointer: int | None = pydantic.Field(None, ge=0, le=1)
    max_age_ms: int = pydantic.Field(0, ge=0, le=10_000)
    settle_ms: int | None = pydantic.Field(None, ge=0, le=MOST_WAIT_MS)
    wait_change_ms: int | None = pydantic.Field(None, ge=0, le=MOST_WAIT_MS)


class Screens:
    """`/workspaces/{id}/screenshot`."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def routes(self) -> list[Route]:
        query = {
            "width": whole("at most so many pixels wide, never enlarged", 16, 7680),
            "height": whole("with width: scaled to just that size", 16, 7680),
            "format": Parameter("the picture's kind", {"type": "string", "enum": ["png", "jpeg", "webp"], "default": "png"}),
            "region": Parameter("left,top,right,bottom in pixels of the screen: only that part", {"type": "string", "pattern": _REGION}),
            "max_bytes": whole("quality falls until it has no more bytes, PNG becoming JPEG; the size stays", FEWEST_BYTES, MOST_BYTES),
            "settle_ms": whole("wait until the screen has come to rest, at most so long", 0, MOST_WAIT_MS),
            "wait_change_ms": whole("with If-None-Match: wait until it shows something else, at most so long", 0, MOST_WAIT_MS),
            "pointer": whole("1: with the mouse's pointer in it", 0, 1),
            "max_age_ms": whole("a picture begun so long before the request will do", 0, 10_000),
        }
        answers = {200: "the picture", 304: "it is still the one of If-None-Match"}
        path = "/workspaces/{id}/screenshot"
        kinds = ("image/png", "image/jpeg", "image/webp")
        return [Route("GET", path, Scope.READ, self._picture, "A picture of its screen", answers=answers, query=query, content=kinds, cost=COSTLY)]  # type: ignore[arg-type]

    async def _picture(self, call: Call) -> web.Response:
        try:
            wanted = _Query.model_validate(dict(call.request.query))
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            raise Malformed(f"{first['loc'][0] if first['loc'] else 'query'}: {first['msg']}") from None
        known = call.request.headers.get(hdrs.IF_NONE_MATCH)
        if known is not None and (len(known) > _LONGEST_TAG or not known.isascii() or not known.isprintable()):
            known = None
        options = wanted.model_dump(exclude={"region"})
        region = [int(part) for part in wanted.region.split(",")] if wanted.region else None
        shot = await self._node.screenshot(call.workspace, known, region=region, **options)
        if shot is None:
            return web.Response(status=304, headers={hdrs.ETAG: str(known)})
        headers = {hdrs.ETAG: shot.tag, "Screen-Size": f"{shot.screen[0]}x{shot.screen[1]}", "Picture-Size": f"{shot.size[0]}x{shot.size[1]}"}
        return web.Response(body=shot.content, content_type=shot.content_type, headers=headers)
