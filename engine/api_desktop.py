"""The engine API's input to desktops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pydantic
from aiohttp import web

from engine.desktop.actions import Batch, problem_of
from engine.desktop.tree import DEFAULT_NODES, MOST_NODES
from engine.errors import BadRequest
from engine.manager import Manager
from engine.query import switch

Once = Callable[[dict[str, Any], str, Callable[[], Awaitable[Any]], Any], Awaitable[Any]]
Body = Callable[[web.Request], Awaitable[dict[str, Any]]]

# The answer to a repetition while the first request's is not known: the engine was ended in the midst of it.
_INTERRUPTED = {"results": [], "screen": None, "cursor": None, "interrupted": True}


class DesktopRoutes:
    """`POST /v1/workspaces/{ref}/actions`, `…/release`, `GET …/windows`, `…/accessibility`. `once` carries out by request id, `body` reads a JSON object."""

    def __init__(self, manager: Manager, once: Once, body: Body) -> None:
        self._manager = manager
        self._once = once
        self._body = body

    def routes(self) -> list[web.RouteDef]:
        one = "/v1/workspaces/{ref}"
        return [web.post(one + "/actions", self._act), web.post(one + "/release", self._release), web.get(one + "/windows", self._windows), web.get(one + "/accessibility", self._tree)]

    async def _act(self, request: web.Request) -> web.Response:
        """Carry actions out once for each request id, also when the engine is killed in the midst of them."""
        body = await self._body(request)
        request_id = body.pop("request_id", None)
        try:
            batch = Batch.model_validate(body)
        except pydantic.ValidationError as error:
            raise BadRequest(problem_of(error)) from None
        workspace = self._manager.find(request.match_info["ref"])
        identified = {**body, "ref": workspace.id, **({} if request_id is None else {"request_id": request_id})}
        return web.json_response(await self._once(identified, "actions", lambda: self._manager.desktops.act(workspace, batch), _INTERRUPTED))

    async def _release(self, request: web.Request) -> web.Response:
        """Stop what is under way and release what is held."""
        await self._manager.desktops.release(self._manager.find(request.match_info["ref"]))
        return web.Response(status=204)

    async def _windows(self, request: web.Request) -> web.Response:
        windows = await self._manager.desktops.windows(self._manager.find(request.match_info["ref"]))
        return web.json_response({"windows": [window.public() for window in windows]})

    async def _tree(self, request: web.Request) -> web.Response:
        """What its programs say of their windows, buttons and texts."""
        workspace = self._manager.find(request.match_info["ref"])
        text = request.query.get("nodes", str(DEFAULT_NODES))
        if not text.isdecimal() or not text.isascii() or len(text) > 6 or not 1 <= int(text) <= MOST_NODES:
            raise BadRequest(f"nodes must be a number from 1 to {MOST_NODES}")
        tree = await self._manager.accessibility.tree(workspace, switch(request, "showing"), int(text))
        return web.json_response(tree.public())
