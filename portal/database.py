"""The portal's SQLite file. Only hashes of secrets are in it; those that are needed themselves (second factors) are sealed by a key that is not."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_BUSY_MS = 5000
# Each brings a file of the version before it up to the next; PRAGMA user_version counts those that were done. Never change one that was released.
_MIGRATIONS = (
    """
CREATE TABLE IF NOT EXISTS accounts (user TEXT PRIMARY KEY, password_hash TEXT NOT NULL, changed REAL NOT NULL);
CREATE TABLE IF NOT EXISTS sessions (
    id TEXT PRIMARY KEY, cookie_hash TEXT NOT NULL UNIQUE, key_hash TEXT NOT NULL, user TEXT NOT NULL,
    created REAL NOT NULL, active REAL NOT NULL, expires REAL NOT NULL);
CREATE TABLE IF NOT EXISTS desks (
    hash TEXT PRIMARY KEY, session TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE, workspace TEXT NOT NULL,
    created REAL NOT NULL);
""",
    """
CREATE TABLE owners (workspace TEXT PRIMARY KEY, user TEXT NOT NULL);
CREATE TABLE leases (
    workspace TEXT PRIMARY KEY, epoch INTEGER NOT NULL, holder TEXT, session TEXT, since REAL NOT NULL, expires REAL NOT NULL);
CREATE TABLE lifetimes (workspace TEXT PRIMARY KEY, idle REAL, lifetime REAL, begun REAL NOT NULL, active REAL NOT NULL);
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
""",
    """
ALTER TABLE accounts ADD COLUMN role TEXT NOT NULL DEFAULT 'admin';
ALTER TABLE accounts ADD COLUMN disabled INTEGER NOT NULL DEFAULT 0;
ALTER TABLE accounts ADD COLUMN one_time REAL;
ALTER TABLE accounts ADD COLUMN subject TEXT;
ALTER TABLE sessions ADD COLUMN address TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN agent TEXT NOT NULL DEFAULT '';
CREATE TABLE tokens (
    id TEXT PRIMARY KEY, hash TEXT NOT NULL UNIQUE, user TEXT NOT NULL, name TEXT NOT NULL, scopes TEXT NOT NULL,
    created REAL NOT NULL, expires REAL, used REAL);
CREATE TABLE shares (
    id TEXT PRIMARY KEY, hash TEXT NOT NULL UNIQUE, user TEXT NOT NULL, workspace TEXT NOT NULL, label TEXT NOT NULL,
    created REAL NOT NULL, expires REAL NOT NULL);
CREATE TABLE share_desks (
    hash TEXT PRIMARY KEY, share TEXT NOT NULL REFERENCES shares(id) ON DELETE CASCADE, created REAL NOT NULL);
""",
    """
ALTER TABLE accounts ADD COLUMN most_workspaces INTEGER;
ALTER TABLE accounts ADD COLUMN most_memory INTEGER;
""",
    """
CREATE TABLE answers (
    name TEXT PRIMARY KEY, digest TEXT NOT NULL, status INTEGER NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL, at REAL NOT NULL);
CREATE TABLE sandboxes (workspace TEXT PRIMARY KEY, metadata TEXT NOT NULL);
""",
    """
ALTER TABLE accounts ADD COLUMN most_disk INTEGER;
""",
    """
ALTER TABLE accounts ADD COLUMN most_cpus REAL;
""",
    """
ALTER TABLE sessions ADD COLUMN shown REAL NOT NULL DEFAULT 0;
CREATE TABLE factors (
    user TEXT PRIMARY KEY REFERENCES accounts(user) ON DELETE CASCADE, sealed TEXT NOT NULL, step INTEGER NOT NULL, since REAL NOT NULL);
CREATE TABLE recovery_codes (hash TEXT PRIMARY KEY, user TEXT NOT NULL REFERENCES factors(user) ON DELETE CASCADE);
""",
)


def digest(secret: str) -> str:
    """What is stored of a random secret. No salt or stretching: 256 random bits cannot be guessed from it."""
    return hashlib.sha256(secret.encode()).hexdigest()


def connect(path: Path) -> sqlite3.Connection:
    """Open the file, making it (0600) when absent. Raises sqlite3.Error, OSError."""
    if not path.exists():
        path.touch(mode=0o600)
    connection = sqlite3.connect(path, timeout=_BUSY_MS / 1000, check_same_thread=False, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA foreign_keys=ON")
    _migrate(connection, path)
    return connection


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Raises sqlite3.DatabaseError for a file of a later release, which must not be written to."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > len(_MIGRATIONS):
            raise sqlite3.DatabaseError(f"{path} was written by a later release of TClone; install that one again")
        for statements in _MIGRATIONS[version:]:
            for statement in statements.split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")
    except BaseException:
        connection.execute("ROLLBACK")
        connection.close()
        raise
    connection.execute("COMMIT")


class Database:
    """One connection, used by one thread of its own: the event loop never waits for the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="portal-db")
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Raises sqlite3.Error or OSError naming the file."""
        self._connection = await asyncio.get_running_loop().run_in_executor(self._thread, connect, self._path)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in one transaction and return what it returns."""

        def transaction() -> T:
            assert self._connection is not None, "the database is not open"
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                answer = work(self._connection)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
            return answer

        return await asyncio.get_running_loop().run_in_executor(self._thread, transaction)

    async def usable(self) -> bool:
        """Whether it can be written to now: the disk may be full, the file gone read-only."""
        try:
            await self.run(lambda db: db.execute("UPDATE settings SET value = value WHERE name = ''"))
        except sqlite3.Error:
            return False
        return True

    async def version(self) -> int:
        """A number that changes when *another* connection has written."""

        def read() -> int:
            assert self._connection is not None, "the database is not open"
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

        return await asyncio.get_running_loop().run_in_executor(self._thread, read)

    async def close(self) -> None:
        if self._connection is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
            self._connection = None
        self._thread.shutdown(wait=False)
