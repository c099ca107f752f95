"""What must last: workspaces, answers to requests, the journal of operations under way, lineage. SQLite, one thread."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS workspaces (id TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS lineage (
  id TEXT PRIMARY KEY, name TEXT NOT NULL, parent TEXT, batch TEXT, image TEXT, created TEXT NOT NULL, removed TEXT);
CREATE TABLE IF NOT EXISTS requests (
  request TEXT PRIMARY KEY, operation TEXT NOT NULL, body TEXT NOT NULL, answer TEXT NOT NULL, time REAL NOT NULL);
CREATE TABLE IF NOT EXISTS journal (
  id INTEGER PRIMARY KEY AUTOINCREMENT, operation TEXT NOT NULL, data TEXT NOT NULL, time REAL NOT NULL);
"""
_REQUESTS_KEPT_SECONDS = 7 * 86400


class Database:
    """Every method is a coroutine; the statements run one after the other in a thread of their own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="database")
        self._connection: sqlite3.Connection

    async def open(self) -> None:
        await self._run(self._open)

    def _open(self) -> None:
        # Stream tokens lie in here: the file must never be readable by others, not even for the moment of its creation.
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        # A power failure may lose the last moments; the processes it describes die with the power anyway.
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._connection.executescript(_SCHEMA)
        self._connection.execute("DELETE FROM requests WHERE time < ?", (time.time() - _REQUESTS_KEPT_SECONDS,))

    async def close(self) -> None:
        await self._run(lambda: self._connection.close())
        self._thread.shutdown()

    async def _run(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    # Counters

    async def next_number(self, counter: str) -> int:
        """1, 2, 3 … and never the same again."""

        def step() -> int:
            row = self._connection.execute(
                "INSERT INTO counters VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1 RETURNING value",
                (counter,),
            ).fetchone()
            return int(row[0])

        return await self._run(step)

    # Workspaces

    async def save_workspaces(self, records: list[dict[str, Any]]) -> None:
        """Write records in one transaction, and their place in the lineage."""

        def save() -> None:
            with self._transaction():
                for record in records:
                    self._connection.execute(
                        "INSERT OR REPLACE INTO workspaces VALUES (?, ?)", (record["id"], json.dumps(record))
                    )
                    self._connection.execute(
                        "INSERT OR IGNORE INTO lineage VALUES (?, ?, ?, ?, ?, ?, NULL)",
                        tuple(record[key] for key in ("id", "name", "parent", "batch", "image", "created")),
                    )

        await self._run(save)

    async def workspaces(self) -> list[dict[str, Any]]:
        rows = await self._run(lambda: self._connection.execute("SELECT record FROM workspaces").fetchall())
        return [json.loads(row[0]) for row in rows]

    async def delete_workspace(self, workspace: str, removed: str, forget: bool = False) -> None:
        """Delete a record; its line in the lineage stays, unless it never came to life (`forget`)."""

        def delete() -> None:
            with self._transaction():
                self._connection.execute("DELETE FROM workspaces WHERE id = ?", (workspace,))
                if forget:
                    self._connection.execute("DELETE FROM lineage WHERE id = ?", (workspace,))
                else:
                    self._connection.execute("UPDATE lineage SET removed = ? WHERE id = ?", (removed, workspace))

        await self._run(delete)

    async def line_of(self, workspace: str) -> list[tuple[str, str]]:
        """A workspace and its ancestors, nearest first, removed ones too: each one's id, and when it was made (RFC 3339)."""
        walk = (
            "WITH RECURSIVE line(id, parent, created, depth) AS (SELECT id, parent, created, 0 FROM lineage WHERE id = ? UNION ALL "
            "SELECT l.id, l.parent, l.created, depth + 1 FROM lineage l JOIN line ON l.id = line.parent WHERE depth < 10000) "
            "SELECT id, created FROM line ORDER BY depth"
        )
        return await self._run(lambda: [(row[0], row[1]) for row in self._connection.execute(walk, (workspace,))])

    # Requests

    async def answer_of(self, request: str) -> tuple[str, str, Any] | None:
        """(operation, body, answer) of a request that was carried out, or None."""
        row = await self._run(
            lambda: self._connection.execute(
                "SELECT operation, body, answer FROM requests WHERE request = ?", (request,)
            ).fetchone()
        )
        return None if row is None else (row[0], row[1], json.loads(row[2]))

    async def save_answer(self, request: str, operation: str, body: str, answer: Any) -> None:
        await self._run(
            lambda: self._connection.execute(
                "INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?, ?)",
                (request, operation, body, json.dumps(answer), time.time()),
            )
        )

    async def forget_answer(self, request: str) -> None:
        """The request failed before it did anything: it may come again."""
        await self._run(lambda: self._connection.execute("DELETE FROM requests WHERE request = ?", (request,)))

    # Journal

    async def journal_begin(self, operation: str, data: dict[str, Any]) -> int:
        """Note that an operation starts; what it names is undone at the next start unless journal_end came first."""

        def begin() -> int:
            cursor = self._connection.execute(
                "INSERT INTO journal (operation, data, time) VALUES (?, ?, ?)", (operation, json.dumps(data), time.time())
            )
            return int(cursor.lastrowid or 0)

        return await self._run(begin)

    async def journal_end(self, entry: int) -> None:
        await self._run(lambda: self._connection.execute("DELETE FROM journal WHERE id = ?", (entry,)))

    async def journal(self) -> list[tuple[int, str, dict[str, Any]]]:
        rows = await self._run(
            lambda: self._connection.execute("SELECT id, operation, data FROM journal ORDER BY id").fetchall()
        )
        return [(row[0], row[1], json.loads(row[2])) for row in rows]

    def _transaction(self) -> "_Transaction":
        return _Transaction(self._connection)


class _Transaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        self._connection.execute("ROLLBACK" if kind else "COMMIT")
