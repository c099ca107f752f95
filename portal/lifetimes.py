"""How long a workspace lives: by default until somebody discards it; else so long after its last use, or so long in all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from engine.errors import EngineError
from portal import audit
from portal.database import Database
from portal.errors import PortalError
from portal.feed import Feed
from portal.node import Node
from portal.settings import SettingsStore

log = logging.getLogger(__name__)

# How often deadlines are looked at; a workspace ends at most so much later than was shown.
_SWEEP_SECONDS = 5.0
# A deadline that moves by less is not told to every page again.
_TOLD_SECONDS = 15.0


@dataclass(frozen=True)
class Rules:
    """Seconds of idleness and of life in all after which a workspace is discarded. None: never."""

    idle: float | None = None
    lifetime: float | None = None


@dataclass(frozen=True)
class Life:
    """One workspace's rules, when its life in all began to count and when it was used last. Times are Unix seconds."""

    rules: Rules
    begun: float
    active: float

    @property
    def idle_at(self) -> float | None:
        return None if self.rules.idle is None else self.active + self.rules.idle

    @property
    def ends_at(self) -> float | None:
        return None if self.rules.lifetime is None else self.begun + self.rules.lifetime

    @property
    def deadline(self) -> float | None:
        times = [at for at in (self.idle_at, self.ends_at) if at is not None]
        return min(times) if times else None

    def public(self) -> dict[str, Any]:
        return {"idle_seconds": self.rules.idle, "lifetime_seconds": self.rules.lifetime, "idle_at": self.idle_at, "ends_at": self.ends_at}


class Lifetimes:
    """Use is what somebody does in a workspace: input to its desktop, commands, files. Watching is none, nor are bytes on an open stream."""

    def __init__(self, database: Database, feed: Feed, node: Node, settings: SettingsStore, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._feed = feed
        self._node = node
        self._settings = settings
        self._clock = clock
        self._lives: dict[str, Life] = {}
        self._removing: dict[str, asyncio.Task[None]] = {}
        self._sweeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read what an earlier process left, and begin to end workspaces when their time comes."""
        rows = await self._database.run(lambda db: db.execute("SELECT workspace, idle, lifetime, begun, active FROM lifetimes").fetchall())
        for workspace, idle, lifetime, begun, active in rows:
            self._set(workspace, Life(Rules(idle, lifetime), begun, active))
        self._sweeper = asyncio.create_task(self._sweep(), name="lifetime sweep")

    async def close(self) -> None:
        tasks = [task for task in (self._sweeper, *self._removing.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def of(self, workspace: str) -> Life | None:
        return self._lives.get(workspace)

    def touch(self, workspace: str) -> None:
        """It is being used. Written down by the next sweep."""
        life = self._lives.get(workspace)
        if life is not None:
            self._set(workspace, replace(life, active=self._clock()))

    async def keep(self, workspace: str) -> Life | None:
        """Count anew, the idle time and the life in all."""
        life = self._lives.get(workspace)
        if life is None:
            return None
        now = self._clock()
        return await self._store(workspace, Life(life.rules, now, now))

    async def rule(self, workspace: str, rules: Rules) -> Life:
        """Give a workspace other rules; both times count from now."""
        now = self._clock()
        return await self._store(workspace, Life(rules, now, now))

    # What housekeeping tells

    async def appeared(self, workspace: dict[str, Any]) -> None:
        """A new workspace has the default rules, a branch those of its parent."""
        identity = workspace["id"]
        if identity in self._lives:
            return
        parent = self._lives.get(workspace.get("parent") or "")
        now = self._clock()
        await self._store(identity, Life(parent.rules if parent else self._default(), now, now))

    async def gone(self, workspace: str) -> None:
        if self._lives.pop(workspace, None) is not None:
            await self._database.run(lambda db: db.execute("DELETE FROM lifetimes WHERE workspace = ?", (workspace,)))

    async def present(self, workspaces: set[str]) -> None:
        for workspace in [known for known in self._lives if known not in workspaces]:
            await self.gone(workspace)

    # Inside

    def _default(self) -> Rules:
        return Rules(self._settings.now.idle_seconds, self._settings.now.lifetime_seconds)

    def _set(self, workspace: str, life: Life) -> None:
        told = self._lives.get(workspace)
        self._lives[workspace] = life
        moved = told is None or told.rules != life.rules or abs((told.deadline or 0) - (life.deadline or 0)) > _TOLD_SECONDS
        if moved and (life.deadline is not None or told is not None):
            self._feed.state("life", workspace, life.public() if life.deadline is not None else None)

    async def _store(self, workspace: str, life: Life) -> Life:
        self._set(workspace, life)
        row = (workspace, life.rules.idle, life.rules.lifetime, life.begun, life.active)
        await self._database.run(lambda db: db.execute("INSERT OR REPLACE INTO lifetimes VALUES (?,?,?,?,?)", row))
        return life

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            with contextlib.suppress(sqlite3.Error):
                await self.sweep()

    async def sweep(self) -> None:
        """Look at every workspace with a deadline: was its desktop used, is its time over?"""
        for workspace in [identity for identity, life in self._lives.items() if life.deadline is not None]:
            await self._ask(workspace)
            life = self._lives.get(workspace)
            if life is None:
                continue
            await self._store(workspace, life)
            if life.deadline is not None and self._clock() >= life.deadline and workspace not in self._removing:
                task = asyncio.create_task(self._remove(workspace, life), name=f"end of {workspace}")
                self._removing[workspace] = task
                task.add_done_callback(lambda _, identity=workspace: self._removing.pop(identity, None))

    async def _ask(self, workspace: str) -> None:
        """The engine knows when somebody last used mouse or keyboard of a desktop."""
        life = self._lives[workspace]
        if life.rules.idle is None:
            return
        try:
            idle = await self._node.idle(workspace)
        except (EngineError, PortalError):
            return  # not ready, or the engine is away: nothing is known, so nothing changes
        if idle is not None and workspace in self._lives:
            active = max(life.active, self._clock() - idle)
            self._set(workspace, replace(self._lives[workspace], active=active))

    async def _remove(self, workspace: str, life: Life) -> None:
        idle = life.idle_at is not None and life.idle_at == life.deadline
        try:
            await self._node.remove(workspace)
        except (EngineError, PortalError) as error:
            log.warning("%s has outlived its time and cannot be discarded: %s; trying again", workspace, error.message)
            return
        audit.record("expired", workspace=workspace, rule="idle" if idle else "lifetime")
