"""What admins set for all users: how long workspaces live and how much a user may have. Kept in the database, so it needs no restart."""

from __future__ import annotations

import json
from typing import Annotated

import pydantic

from portal.bodies import Body
from portal.database import Database

Seconds = Annotated[float, pydantic.Field(ge=60, le=366 * 86400, strict=False)]
Count = Annotated[int, pydantic.Field(ge=0, le=100_000)]
Bytes = Annotated[int, pydantic.Field(ge=0, le=1 << 50)]
Cpus = Annotated[float, pydantic.Field(ge=0, le=1_000_000)]


class Settings(Body):
    """null: never, or no limit. Memory and disk (bytes) and processors are sums of the limits of a user's workspaces; admins have no limits of their own.
    `second_factor`: every user with a password must have one; it stays as it is where it is not named."""

    idle_seconds: Seconds | None = None
    lifetime_seconds: Seconds | None = None
    user_workspaces: Count | None = None
    user_memory: Bytes | None = None
    user_disk: Bytes | None = None
    user_cpus: Cpus | None = None
    all_workspaces: Count | None = None
    all_memory: Bytes | None = None
    all_disk: Bytes | None = None
    all_cpus: Cpus | None = None
    second_factor: bool = False


class SettingsStore:
    """The settings now, and for the next start."""

    def __init__(self, database: Database, defaults: Settings | None = None) -> None:
        self._database = database
        self.now = defaults or Settings()

    async def open(self) -> None:
        """Read what was set. A setting that an earlier release knew and this one does not is ignored."""
        rows = await self._database.run(lambda db: dict(db.execute("SELECT name, value FROM settings")))
        known = {name: json.loads(value) for name, value in rows.items() if name in Settings.model_fields}
        self.now = self.now.model_copy(update=known)

    async def set(self, settings: Settings) -> None:
        """Replace all of them."""
        rows = [(name, json.dumps(value)) for name, value in settings.model_dump().items()]
        await self._database.run(lambda db: db.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", rows))
        self.now = settings
