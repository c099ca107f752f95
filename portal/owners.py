"""Whose a workspace is: who launched it, or who forked a workspace into it."""

from __future__ import annotations

from typing import Any

from portal.database import Database
from portal.principal import Principal, Role


class Owners:
    """Kept in the database by workspace id. A branch that was made elsewhere (at the command line) gets its parent's owner."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._owners: dict[str, str] = {}

    async def open(self) -> None:
        """Read what an earlier process wrote."""
        self._owners = await self._database.run(lambda db: dict(db.execute("SELECT workspace, user FROM owners")))

    async def claim(self, workspace: str, user: str) -> None:
        """From now on `workspace` is the user's."""
        self._owners[workspace] = user
        await self._database.run(lambda db: db.execute("INSERT OR REPLACE INTO owners VALUES (?, ?)", (workspace, user)))

    def of(self, workspace: str) -> str | None:
        """The owner; None for one that was launched at the command line, which only admins see."""
        return self._owners.get(workspace)

    def sees(self, principal: Principal, workspace: str) -> bool:
        """Whether a workspace exists for this user."""
        return principal.role is Role.ADMIN or self._owners.get(workspace) == principal.user

    def release(self, user: str) -> None:
        """Forget a user that was removed, whose rows went with the account."""
        self._owners = {workspace: owner for workspace, owner in self._owners.items() if owner != user}

    # What housekeeping tells

    async def appeared(self, workspace: dict[str, Any]) -> None:
        parent = self._owners.get(workspace.get("parent") or "")
        if parent is not None and workspace["id"] not in self._owners:
            await self.claim(workspace["id"], parent)

    async def gone(self, workspace: str) -> None:
        if self._owners.pop(workspace, None) is not None:
            await self._database.run(lambda db: db.execute("DELETE FROM owners WHERE workspace = ?", (workspace,)))

    async def present(self, workspaces: set[str]) -> None:
        for workspace in [known for known in self._owners if known not in workspaces]:
            await self.gone(workspace)
