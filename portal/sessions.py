"""Login sessions and the desks (desktop cookies) that hang on them. Kept in memory and written through to the database."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from portal.database import Database, digest
from portal.endings import Endings

log = logging.getLogger(__name__)

IDLE_SECONDS = 12 * 3600.0
ABSOLUTE_SECONDS = 7 * 86400.0
# For how long somebody who has shown who it is may do what takes that, such as making a token.
FRESH_SECONDS = 600.0
# How often `active` is written; a crash costs at most this much idle time.
_TOUCH_SECONDS = 60.0
_SWEEP_SECONDS = 0.5
# Old desks of a session go first: more than this many desktops at once are not watched by one person.
_DESKS_PER_SESSION = 64
_LONGEST_AGENT = 300


def new_secret() -> str:
    """256 random bits."""
    return secrets.token_urlsafe(32)


@dataclass
class Session:
    """One login. Times are Unix seconds. `id` is a public handle; cookie and key are known here only by their hashes. `shown`: when its user last showed
    who it is, by a password or to an identity provider."""

    id: str
    cookie_hash: str
    key_hash: str
    user: str
    created: float
    active: float
    expires: float
    address: str = ""
    agent: str = ""
    shown: float = 0.0
    desks: dict[str, str] = field(default_factory=dict)  # hash of the desk cookie -> workspace

    def over(self, now: float, idle_seconds: float) -> bool:
        return now >= self.expires or now >= self.active + idle_seconds

    def is_fresh(self, now: float) -> bool:
        """Whether its user showed who it is a short time ago. A clock that was set back makes nothing fresh."""
        return 0 <= now - self.shown < FRESH_SECONDS

    def key_fits(self, key: str) -> bool:
        return hmac.compare_digest(self.key_hash, digest(key))

    def public(self) -> dict[str, object]:
        """What its user is shown. `agent` is what the browser says of itself: text, whatever it looks like."""
        return {"id": self.id, "created": self.created, "active": self.active, "expires": self.expires, "address": self.address, "agent": self.agent}


@dataclass(frozen=True)
class NewSession:
    """A session with its secrets, which exist only here and in the browser."""

    session: Session
    cookie: str
    key: str


class Sessions:
    """All live sessions of one portal."""

    def __init__(
        self,
        database: Database,
        endings: Endings,
        idle_seconds: float = IDLE_SECONDS,
        absolute_seconds: float = ABSOLUTE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self.endings = endings
        self._idle = idle_seconds
        self._absolute = absolute_seconds
        self._clock = clock
        self._by_cookie: dict[str, Session] = {}
        self._by_id: dict[str, Session] = {}
        self._desks: dict[str, Session] = {}
        self._sweeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Load what an earlier process left, and begin to end sessions when their time comes."""
        for session in await self._database.run(_load):
            self._add(session)
        self._sweeper = asyncio.create_task(self._sweep(), name="session sweep")

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        self.endings.close()

    # Life

    async def create(self, user: str, address: str = "", agent: str = "", shown: float | None = None) -> NewSession:
        """Begin a session with fresh secrets. `shown`: when its user showed who it is, None: just now."""
        now = self._clock()
        cookie, key = new_secret(), new_secret()
        session = Session(
            secrets.token_hex(16), digest(cookie), digest(key), user, now, now, now + self._absolute, address, agent[:_LONGEST_AGENT],
            now if shown is None else min(shown, now),
        )  # fmt: skip
        row = (session.id, session.cookie_hash, session.key_hash, user, now, now, session.expires, session.address, session.agent, session.shown)
        await self._database.run(lambda db: db.execute(f"INSERT INTO sessions({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?)", row))
        self._add(session)
        return NewSession(session, cookie, key)

    def find(self, cookie: str | None) -> Session | None:
        """The live session of a cookie."""
        session = self._by_cookie.get(digest(cookie)) if cookie else None
        return session if session and not session.over(self._clock(), self._idle) else None

    def get(self, identity: str) -> Session | None:
        """The live session with this id."""
        session = self._by_id.get(identity)
        return session if session and not session.over(self._clock(), self._idle) else None

    def live(self) -> list[str]:
        """The ids of all live sessions."""
        now = self._clock()
        return [session.id for session in self._by_id.values() if not session.over(now, self._idle)]

    def of(self, user: str) -> list[Session]:
        """A user's live sessions, the newest first."""
        now = self._clock()
        own = [session for session in self._by_id.values() if session.user == user and not session.over(now, self._idle)]
        return sorted(own, key=lambda session: session.created, reverse=True)

    async def touch(self, session: Session) -> None:
        """Its user did something."""
        now = self._clock()
        if now - session.active < _TOUCH_SECONDS or session.id not in self._by_id:
            return
        session.active = now
        await self._database.run(
            lambda db: db.execute("UPDATE sessions SET active = ? WHERE id = ?", (now, session.id))
        )

    async def show(self, session: Session) -> None:
        """Its user has just shown who it is, once more."""
        session.shown = now = self._clock()
        await self._database.run(lambda db: db.execute("UPDATE sessions SET shown = ? WHERE id = ?", (now, session.id)))

    async def end(self, session: Session, reason: str) -> None:
        """End a session: its cookie, key, desks and watchers' relays. Reasons: logout, expired, revoked, password."""
        if not self._forget(session, reason):
            return
        await self._database.run(lambda db: db.execute("DELETE FROM sessions WHERE id = ?", (session.id,)))

    # Desks

    async def new_desk(self, session: Session, workspace: str) -> str:
        """A cookie value that opens one workspace's desktop for as long as the session lives."""
        desk = new_secret()
        hashed = digest(desk)
        surplus = list(session.desks)[: max(0, len(session.desks) + 1 - _DESKS_PER_SESSION)]
        for old in surplus:
            session.desks.pop(old)
            self._desks.pop(old, None)
        session.desks[hashed] = workspace
        self._desks[hashed] = session
        row = (hashed, session.id, workspace, self._clock())

        def write(db: sqlite3.Connection) -> None:
            db.executemany("DELETE FROM desks WHERE hash = ?", [(old,) for old in surplus])
            # The session may have ended meanwhile; its desk must not come back then.
            db.execute("INSERT INTO desks SELECT ?,?,?,? WHERE EXISTS (SELECT 1 FROM sessions WHERE id = ?)", (*row, row[1]))

        await self._database.run(write)
        return desk

    def check_desk(self, desk: str, workspace: str) -> Session | None:
        """The live session whose desk this is, if it is for that workspace."""
        hashed = digest(desk)
        session = self._desks.get(hashed)
        if session is None or session.desks.get(hashed) != workspace or session.over(self._clock(), self._idle):
            return None
        return session

    async def reload(self) -> None:
        """End those that were deleted from the database: a new password, a user that was disabled or removed."""
        left = await self._database.run(lambda db: {row[0] for row in db.execute("SELECT id FROM sessions")})
        for session in [one for one in self._by_id.values() if one.id not in left]:
            self._forget(session, "revoked")

    # Inside

    def _add(self, session: Session) -> None:
        self._by_id[session.id] = session
        self._by_cookie[session.cookie_hash] = session
        for hashed in session.desks:
            self._desks[hashed] = session

    def _forget(self, session: Session, reason: str) -> bool:
        if self._by_id.pop(session.id, None) is None:
            return False
        self._by_cookie.pop(session.cookie_hash, None)
        for hashed in session.desks:
            self._desks.pop(hashed, None)
        self.endings.tell(session.id, reason)
        return True

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                now = self._clock()
                for session in [one for one in self._by_id.values() if one.over(now, self._idle)]:
                    await self.end(session, "expired")
            except sqlite3.Error:
                log.exception("sessions: cannot reach the database; trying again")


_COLUMNS = "id, cookie_hash, key_hash, user, created, active, expires, address, agent, shown"


def _load(db: sqlite3.Connection) -> list[Session]:
    sessions = {row[0]: Session(*row) for row in db.execute(f"SELECT {_COLUMNS} FROM sessions")}
    for hashed, session, workspace in db.execute("SELECT hash, session, workspace FROM desks ORDER BY created"):
        sessions[session].desks[hashed] = workspace
    return list(sessions.values())
