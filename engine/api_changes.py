"""The routes that compare a workspace's files with its parent's, another workspace's or its image's."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Generator, Iterator
from pathlib import Path

from aiohttp import web

from engine.api_files import FileRoutes
from engine.changes import Comparison, compare_file
from engine.errors import Conflict, LimitReached, from_oserror
from engine.manager import Manager
from engine.query import base_of, path_of, switch
from engine.views import View
from engine.workspace import Workspace

_BATCH = 200
_AT_ONCE = 4


class ChangeRoutes:
    """`GET …/diff`, `GET …/diff/file`."""

    def __init__(self, manager: Manager, files: FileRoutes) -> None:
        self._manager = manager
        self._files = files
        self._under_way = 0

    def routes(self) -> list[web.RouteDef]:
        one = "/v1/workspaces/{ref}"
        return [web.get(one + "/diff", self._compare), web.get(one + "/diff/file", self._compare_file)]

    async def _compare(self, request: web.Request) -> web.StreamResponse:
        workspace = self._manager.find(request.match_info["ref"])
        base, own = self._base(workspace, request), switch(request, "own")
        if self._under_way >= _AT_ONCE:
            raise LimitReached(f"{_AT_ONCE} comparisons are under way; try again")
        self._under_way += 1
        comparing = self._lines(workspace, base, own)
        try:
            # The first lines before the answer begins: what fails at once is told as an error.
            batch = await self._step(workspace, comparing)
            answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
            await answer.prepare(request)
            while batch:
                await answer.write("".join(batch).encode())
                batch = await self._step(workspace, comparing)
            await answer.write_eof()
            return answer
        finally:
            self._under_way -= 1
            comparing.close()

    async def _step(self, workspace: Workspace, comparing: Iterator[str]) -> list[str]:
        return await self._files.in_thread(workspace, lambda: list(itertools.islice(comparing, _BATCH)))

    def _lines(self, workspace: Workspace, base: Workspace | None, own: bool) -> Generator[str, None, None]:
        """Change objects and last the `done` object, each a line."""
        with explained_comparison(workspace), self._view(base, workspace) as before, self._view(workspace, workspace) as after:
            comparison = Comparison(before, after, own=own)
            count = 0
            for count, change in enumerate(comparison, 1):
                yield json.dumps(change) + "\n"
            done = {"base": base.id if base is not None else None, "changes": count, "own": comparison.owned, "truncated": comparison.truncated}
            yield json.dumps({"done": done}) + "\n"

    async def _compare_file(self, request: web.Request) -> web.Response:
        workspace = self._manager.find(request.match_info["ref"])
        base, path = self._base(workspace, request), path_of(request)

        def work() -> dict[str, object]:
            with explained_comparison(workspace), self._view(base, workspace) as before, self._view(workspace, workspace) as after:
                return {**compare_file(before, after, path), "base": base.id if base is not None else None}

        return web.json_response(await self._files.in_thread(workspace, work))

    def _base(self, workspace: Workspace, request: web.Request) -> Workspace | None:
        """Whom to compare with; None for the image. Raises BadRequest, NotFound, Conflict."""
        wanted = base_of(request)
        if wanted == "image":
            return None
        if wanted == "parent":
            return self._manager.workspaces.get(workspace.parent or "")
        base = self._manager.find(wanted)
        if base.image_digest != workspace.image_digest:
            raise Conflict(f"{base.id} was made from another image ({base.image}) than {workspace.id}; compare it with `image`")
        return base

    def _view(self, workspace: Workspace | None, like: Workspace) -> View:
        """The file system of a workspace, or of the image of `like`."""
        return view_of(self._manager, like) if workspace is None else view_of(self._manager, workspace, with_upper=True)


def view_of(manager: Manager, workspace: Workspace, with_upper: bool = False) -> View:
    """The file system of a workspace's image; `with_upper`, of the workspace itself."""
    upper: Path | None = manager.storage.layer(workspace.id) / "upper" if with_upper else None
    return View(upper, manager.lower_layers(workspace))


@contextlib.contextmanager
def explained_comparison(workspace: Workspace) -> Iterator[None]:
    """Turn what the system says into errors that name the workspace."""
    try:
        yield
    except FileNotFoundError as error:
        raise Conflict(f"the files of {workspace.id} are being removed") from error
    except OSError as error:
        raise from_oserror(f"comparing {workspace.id}", error) from error
