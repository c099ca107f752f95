"""Requests that are carried out once for each `Idempotency-Key`: a repetition gets the first one's answer, and nothing is done or noted again."""

from __future__ import annotations

import asyncio
import hashlib
import re
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from engine.waiting import seen
from portal.database import Database
from portal.errors import Conflicting, Malformed

KEY_HEADER = "Idempotency-Key"
REPLAYED_HEADER = "Idempotent-Replayed"
_LONGEST_KEY = 255
KEY_PATTERN = f"^[!-~]{{1,{_LONGEST_KEY}}}$"
_KEY = re.compile(KEY_PATTERN)
# Answers in memory, pictures for models included, and what of them outlives a restart of the portal.
_MOST_BYTES = 32 << 20
_LARGEST_KEPT = 256 << 10
_MOST_ROWS = 10_000
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class Answer:
    """What a repetition gets. `digest` is that of the body which was answered: another one under the same key is a mistake."""

    digest: str
    status: int
    kind: str
    body: bytes

    def response(self, replayed: bool) -> web.Response:
        headers = {REPLAYED_HEADER: "true"} if replayed else {}
        if self.kind:
            headers["Content-Type"] = self.kind
        return web.Response(status=self.status, body=self.body, headers=headers)


def check_key(key: str | None) -> str | None:
    """A key, as it came, or None without one. Raises Malformed."""
    if key is not None and not _KEY.fullmatch(key):
        raise Malformed(f"{KEY_HEADER} must have 1 to {_LONGEST_KEY} printable ASCII characters without spaces")
    return key


class Once:
    """Answers by name; a name stands for who asked, where, and the key (`Call.request_id`). Failures are not kept: the same key may try again."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._under_way: dict[str, tuple[str, asyncio.Task[Answer]]] = {}
        self._known: OrderedDict[str, Answer] = OrderedDict()
        self._bytes = 0

    async def answer(self, name: str, body: bytes, work: Callable[[], Awaitable[web.StreamResponse]], keep: bool) -> web.StreamResponse:
        """`work`'s response, or that of the first request of this name. `keep`: also beyond a restart of the portal, for a day.

        Work goes on when its caller goes away. Raises Conflicting when the name was used for another body, and what `work` raises.
        """
        digest = hashlib.sha256(body).hexdigest()
        known = await self._find(name)
        if known is not None:
            _same(known.digest, digest)
            return known.response(replayed=True)
        # Nothing is awaited between these two lines: two equal requests cannot both find nothing here.
        under_way = self._under_way.get(name)
        if under_way is None:
            task = asyncio.create_task(self._carried_out(name, digest, work, keep), name="once")
            self._under_way[name] = (digest, task)
            task.add_done_callback(lambda done: self._over(name, done))
            return (await asyncio.shield(task)).response(replayed=False)
        _same(under_way[0], digest)
        return (await asyncio.shield(under_way[1])).response(replayed=True)

    async def close(self) -> None:
        """What is under way comes to its end; it is bounded in time by itself."""
        await asyncio.gather(*(task for _, task in self._under_way.values()), return_exceptions=True)

    def _over(self, name: str, task: asyncio.Task[Answer]) -> None:
        self._under_way.pop(name, None)
        seen(task)

    async def _carried_out(self, name: str, digest: str, work: Callable[[], Awaitable[web.StreamResponse]], keep: bool) -> Answer:
        response = await work()
        assert isinstance(response, web.Response), "what is streamed cannot be repeated"
        body = response.body if isinstance(response.body, bytes) else b""
        made = Answer(digest, response.status, response.headers.get("Content-Type", "") if body else "", body)
        if made.status < 400:
            await self._remember(name, made, keep)
        return made

    async def _find(self, name: str) -> Answer | None:
        known = self._known.get(name)
        if known is not None or name in self._under_way:
            return known
        query = "SELECT digest, status, kind, body FROM answers WHERE name = ? AND at > ?"
        row = await self._database.run(lambda db: db.execute(query, (name, self._clock() - _DAY_SECONDS)).fetchone())
        # An equal request may have come and gone while the database was asked.
        return self._known.get(name) or (Answer(*row) if row is not None else None)

    async def _remember(self, name: str, made: Answer, keep: bool) -> None:
        self._known[name] = made
        self._bytes += len(made.body)
        while self._bytes > _MOST_BYTES or len(self._known) > _MOST_ROWS:
            self._bytes -= len(self._known.popitem(last=False)[1].body)
        if not keep or len(made.body) > _LARGEST_KEPT:
            return
        now = self._clock()

        def store(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM answers WHERE at <= ? OR rowid <= (SELECT max(rowid) FROM answers) - ?", (now - _DAY_SECONDS, _MOST_ROWS))
            db.execute("INSERT OR REPLACE INTO answers VALUES (?,?,?,?,?,?)", (name, made.digest, made.status, made.kind, made.body, now))

        await self._database.run(store)


def _same(first: str, second: str) -> None:
    if first != second:
        raise Conflicting(f"this {KEY_HEADER} was used for another request; use a new one", reason="key_reused")
