"""Files of a workspace, and what of them differs from another's."""

from __future__ import annotations

import builtins
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_to_bytes

from tclone.data import Change, Entry, Promoted
from tclone.errors import BadRequest, Conflict, Internal
from tclone.transport import Transport

if TYPE_CHECKING:
    from tclone.workspace import Workspace

_PIECE = 256 << 10
_BYTES = {"Content-Type": "application/octet-stream"}
# Why a directory's names or the changes are not all there.
_TRUNCATED = "there are more than are listed; name a smaller part"


class Files:
    """`workspace.files`. Paths are absolute, text or bytes. A link inside is never followed out of the workspace."""

    def __init__(self, transport: Transport, workspace: Workspace) -> None:
        self._transport = transport
        self._workspace = workspace
        self._base = f"/workspaces/{workspace.id}"

    async def read(self, path: str | bytes) -> bytes:
        """All of a file."""
        async with self._transport.request("GET", self._base + "/file", query={"path": path}, repeatable=True) as answer:
            return await answer.read()

    async def read_text(self, path: str | bytes) -> str:
        return (await self.read(path)).decode()

    async def write(self, path: str | bytes, content: bytes | str, *, overwrite: bool = True) -> Entry:
        """Write a file; text as UTF-8. Raises Conflict when it is there and shall not be replaced."""
        data = content.encode() if isinstance(content, str) else content
        return await self._put(path, lambda: _pieces(data), overwrite)

    async def list(self, path: str | bytes) -> builtins.list[Entry]:
        """A directory's entries, in the order of their bytes. Raises Conflict when it has more than 10 000."""
        told = await self._transport.json("GET", self._base + "/files", query={"path": path})
        if told["truncated"]:
            raise Conflict(f"{self._workspace.id}: {told['path']}: {_TRUNCATED}", code="conflict")
        top = unquote_to_bytes(told["encoded"]).rstrip(b"/")
        return [_entry(top, entry) for entry in told["entries"]]

    async def make_directory(self, path: str | bytes) -> Entry:
        """Make a directory whose parent is there."""
        made = await self._transport.json("POST", self._base + "/directories", query={"path": path})
        return _entry(_parent(path), made)

    async def remove(self, path: str | bytes, *, recursive: bool = False) -> None:
        """Remove a file or an empty directory; with `recursive` a directory and all in it."""
        await self._transport.json("DELETE", self._base + "/files", query={"path": path, "recursive": int(recursive)})

    async def download(self, path: str | bytes, to: str | Path) -> int:
        """Copy a file out, in pieces: how many bytes. What fails on the way leaves nothing."""
        target = Path(to)
        part = target.with_name(target.name + ".part")
        count = 0
        try:
            with open(part, "wb") as file:
                async with self._transport.request("GET", self._base + "/file", query={"path": path}, repeatable=True) as answer:
                    async for piece in answer.content.iter_chunked(_PIECE):
                        file.write(piece)
                        count += len(piece)
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
        return count

    async def upload(self, source: str | Path, path: str | bytes, *, overwrite: bool = True) -> Entry:
        """Copy a file in, in pieces."""
        return await self._put(path, lambda: _pieces_of(Path(source)), overwrite)

    async def diff(self, base: str = "parent", *, own: bool = False) -> builtins.list[Change]:
        """Files that differ from `parent`, `image` or, by its id, another workspace of the same image. Raises Conflict when there are too many to tell.

        `own`: also what the desktop writes by itself: logs, caches, the browser's profile.
        """
        found: builtins.list[Change] = []
        async for line in self._transport.lines(self._base + "/diff", {"base": base, "own": int(own)}):
            if "done" in line:
                if line["done"]["truncated"]:
                    raise Conflict(f"{self._workspace.id}: {_TRUNCATED}", code="conflict")
                return found
            if "error" in line:
                raise Internal(f"{self._workspace.id}: {line['error'].get('message')}")
            found.append(Change(line["change"], unquote_to_bytes(line["encoded"]), line["kind"], line["size"], line["before"], line["own"]))
        raise Internal(f"{self._workspace.id}: the list of changes broke off")

    async def compare(self, path: str | bytes, base: str = "parent") -> str:
        """One file's difference as text; empty for the same. Raises BadRequest when it is no text."""
        told = await self._transport.json("GET", self._base + "/diff/file", query={"path": path, "base": base})
        if told["binary"] and not told["same"]:
            raise BadRequest(f"{self._workspace.id}: {told['path']} is no text: read both sides", code="bad_request")
        return str(told["diff"] or "")

    async def promote(self, into: Workspace | None, paths: Iterable[str | bytes], *, force: bool = False, dry_run: bool = False) -> builtins.list[Promoted]:
        """Make what is at and below these paths that of another workspace too, of the parent with None: contents, owners, modes, links, removals.

        What the other one has changed itself since the two parted is not replaced: then nothing is done. With `force` it is. `dry_run` tells
        what would be done. Raises Conflict.
        """
        body = {"into": "parent" if into is None else into.id, "paths": [quote(path, safe="/") for path in paths], "force": force, "dry_run": dry_run}
        done = await self._transport.json("POST", self._base + "/promote", body, once=True)
        return [
            Promoted(unquote_to_bytes(one["encoded"]), one["change"], one["kind"], one["size"], one["outcome"], one["reason"]) for one in done["paths"]
        ]

    async def _put(self, path: str | bytes, data: Any, overwrite: bool) -> Entry:
        query = {"path": path, "overwrite": int(overwrite)}
        # Sent again it would find what it wrote itself, unless that is replaced.
        async with self._transport.request("PUT", self._base + "/file", query=query, headers=_BYTES, data=data, repeatable=overwrite) as answer:
            return _entry(_parent(path), await answer.json())


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), _PIECE):
        yield data[start : start + _PIECE]


async def _pieces_of(source: Path) -> AsyncIterator[bytes]:
    with open(source, "rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def _parent(path: str | bytes) -> bytes:
    return os.fsencode(path).rstrip(b"/").rpartition(b"/")[0]


def _entry(directory: bytes, told: dict[str, Any]) -> Entry:
    path = directory + b"/" + unquote_to_bytes(told["encoded"])
    return Entry(path, told["name"], told["kind"], told.get("size") or 0, told.get("mode"), told.get("modified"))
