"""Who drives a workspace. A person takes control and hands it back; while a person holds it, programs are refused, not queued."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

from portal import audit
from portal.database import Database
from portal.errors import Conflicting, Forbidden, Held
from portal.feed import Feed
from portal.presence import Presence
from portal.principal import Principal
from portal.sessions import Sessions

log = logging.getLogger(__name__)

# A holder who does nothing for so long has walked away.
TTL_SECONDS = 600.0
# A holder whose last page is closed may come back (a reload, a lost connection) for so long.
GRACE_SECONDS = 30.0
_SWEEP_SECONDS = 1.0


@dataclass(frozen=True)
class Lease:
    """One hold. `epoch` grows with every change of hands of the workspace; times are Unix seconds."""

    workspace: str
    epoch: int
    holder: str
    session: str
    since: float
    expires: float

    def public(self) -> dict[str, Any]:
        """What pages and programs are told: everything but the session."""
        told = asdict(self)
        del told["session"], told["workspace"]
        return told


async def _nothing(_: str) -> None:
    """For when nobody needs to know."""


class Leases:
    """All holds, kept in the database so that a restart of the portal gives no desktop away."""

    def __init__(self, database: Database, feed: Feed, sessions: Sessions, presence: Presence, clock: Callable[[], float] = time.time) -> None:
        # Called when a person takes control of a workspace, and before it is anybody's again: whoever had it holds no key any more.
        self.changed: Callable[[str], Awaitable[None]] = _nothing
        self.ending: Callable[[str], Awaitable[None]] = _nothing
        self._database = database
        self._feed = feed
        self._sessions = sessions
        self._presence = presence
        self._clock = clock
        self._leases: dict[str, Lease] = {}
        self._epochs: dict[str, int] = {}
        self._sweeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read what an earlier process left, and begin to end holds when their time comes."""
        rows = await self._database.run(lambda db: db.execute("SELECT workspace, epoch, holder, session, since, expires FROM leases").fetchall())
        for row in rows:
            self._epochs[row[0]] = row[1]
            if row[2] is not None:
                self._leases[row[0]] = Lease(*row)
                self._feed.state("lease", row[0], self._leases[row[0]].public())
        self._sweeper = asyncio.create_task(self._sweep(), name="lease sweep")

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)

    def of(self, workspace: str) -> Lease | None:
        """The hold on a workspace now."""
        lease = self._leases.get(workspace)
        return lease if lease is not None and not self._over(lease) else None

    def check(self, principal: Principal, workspace: str) -> None:
        """Before a program acts on a workspace. Raises Held (423) while a person holds it; persons are never refused."""
        lease = self.of(workspace)
        if lease is not None and not principal.is_person:
            raise Held(
                f"{workspace} is held by {lease.holder}: nothing was done; try again when it is handed back",
                reason="held_by_person",
                lease=lease.public(),
            )

    async def take(self, principal: Principal, workspace: str, force: bool) -> Lease:
        """Take control, or keep it for another ten minutes. Raises Forbidden for a program, Conflicting when another person holds it."""
        session = principal.session
        if session is None:
            raise Forbidden("control is taken by a person who is logged in, not by a token")
        now, current = self._clock(), self.of(workspace)
        if current is not None and current.session == session.id:
            return await self._put(Lease(workspace, current.epoch, current.holder, session.id, current.since, now + TTL_SECONDS))
        if current is not None and not force:
            raise Conflicting(f"{workspace} is held by {current.holder}; take it with `force` if that is agreed", lease=current.public())
        lease = Lease(workspace, self._epochs.get(workspace, 0) + 1, principal.user, session.id, now, now + TTL_SECONDS)
        audit.record("control-taken", user=principal.user, workspace=workspace, epoch=lease.epoch, taken_from=current.holder if current else None)
        kept = await self._put(lease)
        await self.changed(workspace)
        return kept

    async def hand_back(self, principal: Principal, workspace: str) -> None:
        """End the hold, whoever has it. Raises Forbidden for a program: only a person clears a person's hold."""
        if not principal.is_person:
            raise Forbidden("a person's hold is ended by a person, not by a token")
        lease = self._leases.get(workspace)
        if lease is not None:
            await self._end(lease, f"by {principal.user}")

    async def touch(self, session: str) -> None:
        """The holder is at work: what it holds stays held."""
        now = self._clock()
        for lease in [one for one in self._leases.values() if one.session == session and not self._over(one)]:
            await self._put(Lease(lease.workspace, lease.epoch, lease.holder, session, lease.since, now + TTL_SECONDS))

    # What housekeeping tells

    async def appeared(self, workspace: dict[str, Any]) -> None:
        """A branch begins free: whoever holds its source does not hold it."""

    async def gone(self, workspace: str) -> None:
        self._leases.pop(workspace, None)
        if self._epochs.pop(workspace, None) is not None:
            await self._database.run(lambda db: db.execute("DELETE FROM leases WHERE workspace = ?", (workspace,)))

    async def present(self, workspaces: set[str]) -> None:
        for workspace in [known for known in self._epochs if known not in workspaces]:
            await self.gone(workspace)

    # Inside

    def _over(self, lease: Lease) -> bool:
        return self._clock() >= lease.expires or self._sessions.get(lease.session) is None or self._presence.absent(lease.session) > GRACE_SECONDS

    async def _put(self, lease: Lease) -> Lease:
        self._leases[lease.workspace] = lease
        self._epochs[lease.workspace] = lease.epoch
        self._feed.state("lease", lease.workspace, lease.public())
        row = (lease.workspace, lease.epoch, lease.holder, lease.session, lease.since, lease.expires)
        await self._database.run(lambda db: db.execute("INSERT OR REPLACE INTO leases VALUES (?,?,?,?,?,?)", row))
        return lease

    async def _end(self, lease: Lease, why: str) -> None:
        if self._leases.get(lease.workspace) != lease:
            return
        await self.ending(lease.workspace)
        if self._leases.get(lease.workspace) != lease:
            return
        del self._leases[lease.workspace]
        self._feed.state("lease", lease.workspace, None)
        audit.record("control-ended", user=lease.holder, workspace=lease.workspace, epoch=lease.epoch, why=why)
        # The row stays, without a holder: the next hold has another epoch, also after a restart.
        query = "UPDATE leases SET holder = NULL, session = NULL WHERE workspace = ?"
        await self._database.run(lambda db: db.execute(query, (lease.workspace,)))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            with contextlib.suppress(sqlite3.Error):
                for lease in [one for one in self._leases.values() if self._over(one)]:
                    await self._end(lease, "idle" if self._clock() >= lease.expires else "its page or session was closed")
