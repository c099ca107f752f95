"""The route that makes chosen files of one workspace those of another."""

from __future__ import annotations

import posixpath
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote_to_bytes

from aiohttp import web

from engine.api_changes import explained_comparison, view_of
from engine.api_files import SPARE_BYTES, FileRoutes
from engine.errors import BadRequest, Conflict, LimitReached, NoSpace, NotFound, Unavailable
from engine.files import shown
from engine.manager import Manager
from engine.promotion import MOST_PATHS, Promotion, parted_at
from engine.query import LONGEST_PATH
from engine.workspace import Workspace

_AT_ONCE = 4
_LONGEST_NAME = 60
_FIELDS = ("into", "paths", "force", "dry_run")

Body = Callable[[web.Request], Awaitable[dict[str, Any]]]


class PromotionRoutes:
    """`POST …/promote`. `body` reads a request's JSON object."""

    def __init__(self, manager: Manager, files: FileRoutes, body: Body) -> None:
        self._manager = manager
        self._files = files
        self._body = body
        # Ids of the workspaces that are promoted into.
        self._under_way: set[str] = set()

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/workspaces/{ref}/promote", self._promote)]

    async def _promote(self, request: web.Request) -> web.Response:
        workspace = self._manager.find(request.match_info["ref"])
        wanted = _wanted(await self._body(request))
        target = self._target(workspace, wanted["into"])
        lines = [await self._manager.database.line_of(one.id) for one in (workspace, target)]
        parted = parted_at(*lines)
        if target.id in self._under_way:
            raise Conflict(f"files are being promoted into {target.id} already; try again when that is done")
        if len(self._under_way) >= _AT_ONCE:
            raise LimitReached(f"files are being promoted into {_AT_ONCE} workspaces; try again")
        self._under_way.add(target.id)
        try:
            return web.json_response(await self._files.in_thread(target, lambda: self._carry_over(workspace, target, wanted, parted)))
        except Unavailable:
            self._under_way.discard(target.id)
            raise

    def _carry_over(self, workspace: Workspace, target: Workspace, wanted: dict[str, Any], parted: float) -> dict[str, Any]:
        """In a thread. It goes on, and counts as under way, when whoever asked has gone."""
        try:
            return self._promotion(workspace, target, wanted, parted)
        finally:
            self._under_way.discard(target.id)

    def _promotion(self, workspace: Workspace, target: Workspace, wanted: dict[str, Any], parted: float) -> dict[str, Any]:
        with (
            explained_comparison(workspace),
            view_of(self._manager, target, with_upper=True) as before,
            view_of(self._manager, workspace, with_upper=True) as after,
        ):
            promotion = Promotion(target, before, after, wanted["paths"], parted, wanted["force"])
            promotion.plan()
            if not wanted["dry_run"]:
                promotion.conflicts()
                if self._manager.storage.free_bytes() < promotion.bytes + SPARE_BYTES:
                    raise NoSpace("no space left in the data directory for these files; remove workspaces (`tclone rm`) or images")
                promotion.carry_out()
            return {"workspace": workspace.id, "into": target.id, "dry_run": wanted["dry_run"], "paths": [step.public() for step in promotion.steps]}

    def _target(self, workspace: Workspace, into: str) -> Workspace:
        """Whom to promote into. Raises NotFound, Conflict."""
        if into == "parent" and workspace.parent is None:
            raise Conflict(f"{workspace.id} has no parent; name the workspace that its files go to")
        target = self._manager.find(workspace.parent or "" if into == "parent" else into)
        if target.id == workspace.id:
            raise Conflict(f"{workspace.id} has these files already; name another workspace")
        if target.image_digest != workspace.image_digest:
            raise Conflict(f"{target.id} was made from another image ({target.image}) than {workspace.id}; copy single files with `tclone cp`")
        return target


def _wanted(body: dict[str, Any]) -> dict[str, Any]:
    """What a promotion's body asks for, with what it left out. Raises BadRequest, which names the field."""
    unknown = sorted(set(body) - set(_FIELDS))
    if unknown:
        raise BadRequest(f"unknown field {unknown[0][:40]!r}; known: {', '.join(_FIELDS)}")
    paths = body.get("paths")
    if not isinstance(paths, list) or not 1 <= len(paths) <= MOST_PATHS or not all(isinstance(path, str) for path in paths):
        raise BadRequest(f"paths must be a list of 1 to {MOST_PATHS} absolute paths, percent-encoded", "paths")
    into = body.get("into", "parent")
    if not isinstance(into, str) or not 1 <= len(into) <= _LONGEST_NAME:
        raise BadRequest("into must be `parent`, or an id or name of a workspace", "into")
    switches = {name: body.get(name, False) for name in ("force", "dry_run")}
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise BadRequest(f"{name} must be true or false", name)
    return {"into": into, "paths": [_clean(path) for path in paths], **switches}


def _clean(path: str) -> bytes:
    """An absolute path as bytes, without empty and `..` parts. Raises BadRequest, NotFound for what no file can be called."""
    try:
        found = unquote_to_bytes(path)
    except UnicodeEncodeError:
        raise BadRequest("paths: half of a surrogate pair is no character", "paths") from None
    if not found.startswith(b"/"):
        raise BadRequest("paths must be absolute paths in the workspace", "paths")
    if b"\0" in found or len(found) > LONGEST_PATH:
        raise NotFound(f"there is no {shown(found)}: a path has no NUL, and at most {LONGEST_PATH} bytes")
    return b"/" + posixpath.normpath(found).lstrip(b"/")
