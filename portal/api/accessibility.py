"""What a desktop's programs say of their windows, buttons and texts."""

from __future__ import annotations

import pydantic
from aiohttp import web

from engine.desktop.tree import DEFAULT_NODES, MOST_NODES, Tree
from engine.query import switch
from portal.accessibility import as_text, as_xml
from portal.errors import Malformed
from portal.node import Node
from portal.parameters import Parameter, flag, number, whole
from portal.principal import Scope
from portal.routes import COSTLY, Call, Route

_FORMS = ("json", "xml", "text")


class Accessibility:
    """`/workspaces/{id}/accessibility`."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def routes(self) -> list[Route]:
        query = {
            "form": Parameter("`xml` as OSWorld's server has it, `text` for models", {"type": "string", "enum": list(_FORMS), "default": "json"}),
            "showing": flag("without what cannot be seen"),
            "nodes": whole(f"the most nodes ({DEFAULT_NODES})", 1, MOST_NODES),
        }
        answers: dict[int, type[pydantic.BaseModel] | str] = {200: Tree}
        kinds = ("application/json", "application/xml", "text/plain")
        path = "/workspaces/{id}/accessibility"
        return [Route("GET", path, Scope.READ, self._tree, "What its programs say of their windows, buttons and texts", answers=answers, query=query, content=kinds, cost=COSTLY)]

    async def _tree(self, call: Call) -> web.Response:
        form = call.request.query.get("form", "json")
        if form not in _FORMS:
            raise Malformed(f"form must be one of {', '.join(_FORMS)}")
        most = number(call.request.query.get("nodes", str(DEFAULT_NODES)), "nodes", 1, MOST_NODES)
        tree = await self._node.accessibility(call.workspace, switch(call.request, "showing"), most)
        if form == "xml":
            return web.Response(text=as_xml(tree), content_type="application/xml")
        if form == "text":
            return web.Response(text=as_text(tree), content_type="text/plain")
        return web.json_response(tree)
