"""What clients wrote onto their sandboxes, kept in the database; a child begins with its parent's."""

from __future__ import annotations

import json
from typing import Any

from portal.database import Database


# Beside what a client wrote stands what this face notes of a snapshot: its name, and the sandbox that it was taken of.
_NOTED = "tclone.snapshot."
_NAME, _SOURCE = _NOTED + "name", _NOTED + "of"


class Metadata:
    """Text by text, for each workspace."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, dict[str, str]] = {}

    async def open(self) -> None:
        rows = await self._database.run(lambda db: db.execute("SELECT workspace, metadata FROM sandboxes").fetchall())
        self._known = {workspace: json.loads(text) for workspace, text in rows}

    def of(self, workspace: str) -> dict[str, str]:
        return _written(self._known.get(workspace, {}))

    async def put(self, workspace: str, metadata: dict[str, str]) -> None:
        """What a client writes; names of this face's own notes are left out."""
        await self._keep(workspace, _written(metadata))

    def snapshot(self, workspace: str) -> tuple[str, str] | None:
        """Its name, which may be empty, and the sandbox that it was taken of; None for what is no snapshot."""
        known = self._known.get(workspace, {})
        return (known[_NAME], known[_SOURCE]) if _SOURCE in known else None

    async def note_snapshot(self, workspace: str, name: str, source: str) -> None:
        await self._keep(workspace, {**self.of(workspace), _NAME: name, _SOURCE: source})

    async def _keep(self, workspace: str, metadata: dict[str, str]) -> None:
        self._known[workspace] = metadata
        text = json.dumps(metadata)
        await self._database.run(lambda db: db.execute("INSERT OR REPLACE INTO sandboxes VALUES (?, ?)", (workspace, text)))

    # What housekeeping tells

    async def appeared(self, workspace: dict[str, Any]) -> None:
        parent = self.of(workspace.get("parent") or "")
        if parent and workspace["id"] not in self._known:
            await self.put(workspace["id"], parent)

    async def gone(self, workspace: str) -> None:
        if self._known.pop(workspace, None) is not None:
            await self._database.run(lambda db: db.execute("DELETE FROM sandboxes WHERE workspace = ?", (workspace,)))

    async def present(self, workspaces: set[str]) -> None:
        for workspace in [known for known in self._known if known not in workspaces]:
            await self.gone(workspace)


def _written(metadata: dict[str, str]) -> dict[str, str]:
    """What of it is the client's."""
    return {name: value for name, value in metadata.items() if not name.startswith(_NOTED)}
