"""Share links: whoever has one watches one workspace's desktop, without a login and without touching anything."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from portal.database import Database, digest
from portal.endings import Endings
from portal.errors import Conflicting, NotThere
from portal.sessions import new_secret

DEFAULT_HOURS = 24
MOST_HOURS = 31 * 24
LONGEST_LABEL = 100
# In the audit log, as the user: whoever came by a link has not logged in. No account can have the name.
NOBODY = "(share link)"
_LONGEST_SECRET = 128
_MOST_PER_WORKSPACE = 50
# Browsers let in by one link; the oldest has to open the link again.
_DESKS_PER_SHARE = 256


@dataclass
class Share:
    """One link. Times are unix seconds. `id` is public, the link's secret is known by its hash alone."""

    id: str
    hash: str
    user: str
    workspace: str
    label: str
    created: float
    expires: float
    desks: dict[str, None] = field(default_factory=dict)  # hashes of desk cookies, oldest first

    def over(self, now: float) -> bool:
        return now >= self.expires

    def public(self, viewers: int) -> dict[str, object]:
        """What those who may share the workspace are shown."""
        return {
            "id": self.id, "workspace": self.workspace, "label": self.label, "user": self.user, "created": self.created,
            "expires": self.expires, "viewers": viewers,
        }  # fmt: skip


class Shares:
    """All live links. Kept in memory and written through to the database."""

    def __init__(self, database: Database, endings: Endings, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._endings = endings
        self._clock = clock
        self._by_id: dict[str, Share] = {}
        self._by_hash: dict[str, Share] = {}
        self._desks: dict[str, Share] = {}

    async def open(self) -> None:
        """Read what an earlier process wrote."""
        for share in await self._database.run(_load):
            self._add(share)

    async def create(self, user: str, workspace: str, label: str, hours: float) -> tuple[Share, str]:
        """A new link and its secret, which exists nowhere else. Raises Conflicting."""
        if len(self.of(workspace)) >= _MOST_PER_WORKSPACE:
            raise Conflicting(f"{workspace} has {_MOST_PER_WORKSPACE} share links already; revoke some")
        now = self._clock()
        secret = new_secret()
        share = Share("shr-" + secrets.token_hex(8), digest(secret), user, workspace, label, now, now + hours * 3600.0)
        row = (share.id, share.hash, user, workspace, label, now, share.expires)
        await self._database.run(lambda db: db.execute(f"INSERT INTO shares({_COLUMNS}) VALUES (?,?,?,?,?,?,?)", row))
        self._add(share)
        return share, secret

    def find(self, secret: str) -> Share | None:
        """The live link with this secret."""
        share = self._by_hash.get(digest(secret)) if len(secret) <= _LONGEST_SECRET else None
        return share if share is not None and not share.over(self._clock()) else None

    def get(self, identity: str) -> Share | None:
        """The live link with this id."""
        share = self._by_id.get(identity)
        return share if share is not None and not share.over(self._clock()) else None

    def of(self, workspace: str) -> list[Share]:
        """A workspace's live links, the newest first."""
        now = self._clock()
        return sorted(
            (share for share in self._by_id.values() if share.workspace == workspace and not share.over(now)),
            key=lambda share: share.created, reverse=True,
        )  # fmt: skip

    def by(self, user: str) -> list[Share]:
        """The live links that a user made."""
        now = self._clock()
        return [share for share in self._by_id.values() if share.user == user and not share.over(now)]

    def live(self) -> list[str]:
        """The ids of all live links."""
        now = self._clock()
        return [share.id for share in self._by_id.values() if not share.over(now)]

    async def revoke(self, workspace: str, identity: str) -> None:
        """End a workspace's link and what was opened by it. Raises NotThere."""
        share = self._by_id.get(identity)
        if share is None or share.workspace != workspace:
            raise NotThere(f"{workspace} has no share link {identity[:40]}")
        await self._end([share], "revoked")

    # Desks

    async def new_desk(self, share: Share) -> str:
        """A cookie value that shows the workspace's desktop for as long as the link lives."""
        desk = new_secret()
        hashed = digest(desk)
        surplus = list(share.desks)[: max(0, len(share.desks) + 1 - _DESKS_PER_SHARE)]
        for old in surplus:
            share.desks.pop(old)
            self._desks.pop(old, None)
        share.desks[hashed] = None
        self._desks[hashed] = share
        row = (hashed, share.id, self._clock())

        def write(db: sqlite3.Connection) -> None:
            db.executemany("DELETE FROM share_desks WHERE hash = ?", [(old,) for old in surplus])
            # The link may have been revoked meanwhile.
            db.execute("INSERT INTO share_desks SELECT ?1,?2,?3 WHERE EXISTS (SELECT 1 FROM shares WHERE id = ?2)", row)

        await self._database.run(write)
        return desk

    def check_desk(self, desk: str, workspace: str) -> Share | None:
        """The live link whose desk this is, if it is for that workspace."""
        hashed = digest(desk)
        share = self._desks.get(hashed)
        if share is None or share.workspace != workspace or hashed not in share.desks or share.over(self._clock()):
            return None
        return share

    # Ends

    async def reload(self) -> None:
        """End those that were deleted from the database: their user was disabled or removed."""
        left = await self._database.run(lambda db: {row[0] for row in db.execute("SELECT id FROM shares")})
        for share in [one for one in self._by_id.values() if one.id not in left]:
            self._forget(share, "revoked")

    async def sweep(self) -> None:
        """End those whose time has come."""
        now = self._clock()
        await self._end([share for share in self._by_id.values() if share.over(now)], "expired")

    # What housekeeping tells

    async def appeared(self, workspace: dict[str, object]) -> None:
        """A branch has none of its parent's links."""

    async def gone(self, workspace: str) -> None:
        await self._end([share for share in self._by_id.values() if share.workspace == workspace], "revoked")

    async def present(self, workspaces: set[str]) -> None:
        await self._end([share for share in self._by_id.values() if share.workspace not in workspaces], "revoked")

    # Inside

    def _add(self, share: Share) -> None:
        self._by_id[share.id] = share
        self._by_hash[share.hash] = share
        for hashed in share.desks:
            self._desks[hashed] = share

    def _forget(self, share: Share, reason: str) -> None:
        if self._by_id.pop(share.id, None) is None:
            return
        self._by_hash.pop(share.hash, None)
        for hashed in share.desks:
            self._desks.pop(hashed, None)
        self._endings.tell(share.id, reason)

    async def _end(self, ended: list[Share], reason: str) -> None:
        if not ended:
            return
        for share in ended:
            self._forget(share, reason)
        await self._database.run(lambda db: db.executemany("DELETE FROM shares WHERE id = ?", [(share.id,) for share in ended]))


_COLUMNS = "id, hash, user, workspace, label, created, expires"


def _load(db: sqlite3.Connection) -> list[Share]:
    shares = {row[0]: Share(*row) for row in db.execute(f"SELECT {_COLUMNS} FROM shares")}
    for hashed, share in db.execute("SELECT hash, share FROM share_desks ORDER BY created"):
        shares[share].desks[hashed] = None
    return list(shares.values())
