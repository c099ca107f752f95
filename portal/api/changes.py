"""What of a workspace's files differs from its parent's or another workspace's, and the promotion of chosen ones."""

from __future__ import annotations

import json
from typing import Annotated

import pydantic
from aiohttp import hdrs, web

from engine.errors import Conflict
from engine.promotion import MOST_PATHS
from engine.query import base_of, path_of, switch
from portal import audit
from portal.bodies import Body
from portal.feed import Feed
from portal.inside import Inside
from portal.parameters import BASE, OWN, PATH
from portal.principal import Scope
from portal.routes import COSTLY, HEAVY, LONGEST_TEXT_BODY, Call, Route, Router

_NO_WORKSPACE = ("parent", "image")

Path = Annotated[str, pydantic.Field(min_length=1, max_length=3 * 4095, pattern="^/")]


class Promote(Body):
    """`paths`: absolute, percent-encoded; with a directory all that is in it. `into`: a workspace's id, or `parent`.
    `force`: also what the other side has changed since the two parted. `dry_run`: tell what would be done, and do nothing."""

    paths: Annotated[list[Path], pydantic.Field(min_length=1, max_length=MOST_PATHS)]
    into: Annotated[str, pydantic.Field(pattern="^(parent|ws-[0-9]{1,18})$")] = "parent"
    force: bool = False
    dry_run: bool = False


class Changes:
    """`/workspaces/{id}/diff`, `/diff/file`, `/promote`."""

    def __init__(self, inside: Inside, feed: Feed, router: Router) -> None:
        self._inside = inside
        self._feed = feed
        self._router = router

    def routes(self) -> list[Route]:
        one = "/workspaces/{id}"
        return [
            Route("GET", one + "/diff", Scope.READ, self._changes, "What differs", answers={200: "NDJSON of changes, last `done`"}, content=("application/x-ndjson",), query=BASE | OWN, cost=HEAVY),
            Route("GET", one + "/diff/file", Scope.READ, self._compare, "One file's difference", answers={200: "the difference"},
                  query=PATH | BASE, cost=COSTLY),
            Route("POST", one + "/promote", Scope.CONTROL, self._promote, "Make chosen files those of another workspace", body=Promote,
                  answers={200: "each path and what became of it"}, once="memory", longest=LONGEST_TEXT_BODY, cost=HEAVY),
        ]  # fmt: skip

    def _base(self, call: Call) -> str:
        """The other side of a comparison, which whoever asks may see. Raises Forbidden, Malformed, NoWorkspace."""
        base = base_of(call.request)
        return base if base in _NO_WORKSPACE else self._router.enter(call.principal, base, Scope.READ)

    async def _changes(self, call: Call) -> web.StreamResponse:
        found = self._inside.changes(call.workspace, self._base(call), switch(call.request, "own"))
        try:
            # Before the answer begins, so that what fails at once is told as an error.
            first = await anext(found)
            answer = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "application/x-ndjson"})
            await answer.prepare(call.request)
            await answer.write(json.dumps(first).encode() + b"\n")
            async for item in found:
                await answer.write(json.dumps(item).encode() + b"\n")
            return answer
        finally:
            await found.aclose()  # type: ignore[attr-defined]

    async def _compare(self, call: Call) -> web.Response:
        return web.json_response(await self._inside.compare_file(call.workspace, path_of(call.request), self._base(call)))

    async def _promote(self, call: Call) -> web.Response:
        wanted: Promote = call.body
        into = self._router.enter(call.principal, self._into(call.workspace, wanted.into), Scope.CONTROL, acts="" if wanted.dry_run else f"promote from {call.workspace}")
        with audit.outcome("promote", call.principal, into, source=call.workspace, dry_run=wanted.dry_run) as told:
            done = await self._inside.promote(call.workspace, into, wanted.paths, wanted.force, wanted.dry_run)
            told["paths"] = len(done["paths"])
        return web.json_response(done)

    def _into(self, workspace: str, into: str) -> str:
        if into != "parent":
            return into
        parent = (self._feed.workspace(workspace) or {}).get("parent")
        if not isinstance(parent, str):
            raise Conflict(f"{workspace} has no parent; name the workspace that its files go to", field="into")
        return parent
