"""Who gets in: users, sessions, API tokens and share links together, kept in step with the database."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from typing import TypeVar

from portal.database import Database
from portal.endings import ROLE, Endings
from portal.owners import Owners
from portal.sessions import Sessions
from portal.shares import Shares
from portal.tokens import Tokens
from portal.users import Users

log = logging.getLogger(__name__)

T = TypeVar("T")

# Half of what a revocation may take until it is felt.
_LOOK_SECONDS = 0.5


class Access:
    """`open` before serving, `close` after. `change` is how accounts and tokens are changed."""

    def __init__(self, database: Database, owners: Owners, idle_seconds: float, absolute_seconds: float) -> None:
        self._database = database
        self.endings = Endings()
        self.users = Users(database, owners)
        self.sessions = Sessions(database, self.endings, idle_seconds, absolute_seconds)
        self.tokens = Tokens(database, self.endings)
        self.shares = Shares(database, self.endings)
        self._watch: asyncio.Task[None] | None = None
        self._version = 0
        self._catching_up = asyncio.Lock()

    async def open(self) -> None:
        """Raises sqlite3.Error."""
        self._version = await self._database.version()
        await self.users.reload()
        await self.tokens.reload()
        await self.shares.open()
        await self.sessions.open()
        self._watch = asyncio.create_task(self._look(), name="access")

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self.sessions.close()

    async def change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in one transaction; what lost its right by it has ended when this returns."""
        answer = await self._database.run(work)
        await self.reload()
        return answer

    async def reload(self) -> None:
        """Take over what is in the database."""
        demoted = await self.users.reload()
        await self.tokens.reload()
        await self.shares.reload()
        await self.sessions.reload()
        # Their logins, tokens and links stay, but what they opened as admins closes; who comes again is asked what it may.
        for user in demoted:
            for right in (*self.sessions.of(user), *self.tokens.of(user), *self.shares.by(user)):
                self.endings.tell(right.id, ROLE)

    async def catch_up(self) -> None:
        """Take over what another process (the command line) has changed, if anything. Raises sqlite3.Error."""
        async with self._catching_up:
            version = await self._database.version()
            if version != self._version:
                await self.reload()
                self._version = version

    async def _look(self) -> None:
        """End what expires, and notice a change that nobody told of."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self.tokens.sweep()
                await self.shares.sweep()
                await self.catch_up()
            except sqlite3.Error:
                log.exception("access: cannot reach the database; trying again")
