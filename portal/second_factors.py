"""Checking codes of second factors without letting anybody guess, and setting factors up."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from portal import audit, factors
from portal.attempts import Attempts
from portal.database import Database
from portal.errors import CodeNeeded, NotThere, TooMany, WrongCode
from portal.sealing import Sealing
from portal.sessions import Session

# Of one user, from wherever: whoever gets as far has the password. Three codes of a million are good at a time: who guesses on for a whole year
# hits with a chance of one in four, and each miss is on record.
CODES, CODES_SECONDS = 10, 3600.0
# A factor that was begun and not proved is forgotten.
_BEGUN_SECONDS = 600.0
_MOST_BEGUN = 1000
_LONGEST_CODE = 64


class SecondFactors:
    """One for all of control: attempts are counted wherever they are made. `open` before use."""

    def __init__(self, database: Database, key: Path, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._sealing = Sealing(key)
        self._clock = clock
        self._attempts = Attempts(limit=CODES, window=CODES_SECONDS)
        self._begun: dict[str, tuple[str, float]] = {}  # by the session's id: secret and when, oldest first

    async def open(self) -> None:
        """Raises OSError."""
        await asyncio.to_thread(self._sealing.open)

    async def find(self, user: str) -> factors.Factor | None:
        """A user's second factor, or None."""
        return await self._database.run(lambda db: factors.find(db, user))

    async def check(self, user: str, code: str | None, address: str) -> None:
        """After the password was found good: return when the code is, too, or the user has no second factor. A code counts once.

        Raises CodeNeeded, WrongCode, TooMany.
        """
        factor = await self.find(user)
        if factor is None:
            return
        if code is None:
            raise CodeNeeded("a code of your app, or a recovery code, has to come with the password")
        wait = self._attempts.take("", user)
        if wait:
            audit.record("login-limited", user=user, address=address, factor=True)
            raise TooMany(f"too many codes were tried; try again in {wait:.0f} s", retry_after=wait)
        shown = factors.plain(code[:_LONGEST_CODE])
        if len(code) > _LONGEST_CODE or not await self._used(factor, shown):
            audit.record("login-refused", user=user, address=address, factor=True)
            raise WrongCode("this code is wrong, too old, or was used before; wait for the next one", field="code")
        self._attempts.clear("", user)

    async def _used(self, factor: factors.Factor, shown: str) -> bool:
        """Whether a code was good; it is so no more."""
        user = factor.user
        if len(shown) != factors.DIGITS:
            good = await self._database.run(lambda db: factors.use_recovery_code(db, user, shown))
            if good:
                audit.record("recovery-code", user=user, left=factor.codes - 1)
            return good
        secret = self._sealing.unseal(factor.sealed, user)
        if secret is None:
            audit.record("factor-unreadable", user=user)
            return False
        step = factors.step_of(secret, shown, self._clock())
        return step is not None and await self._database.run(lambda db: factors.use_step(db, user, step))

    # Setting one up

    def begin(self, session: Session) -> str:
        """A new secret for an app. It becomes a factor when this session shows a code of it within ten minutes."""
        now = self._clock()
        self._begun.pop(session.id, None)
        for identity in [identity for identity, (_, begun) in self._begun.items() if now - begun >= _BEGUN_SECONDS]:
            del self._begun[identity]
        while len(self._begun) >= _MOST_BEGUN:
            del self._begun[next(iter(self._begun))]
        secret = factors.new_secret()
        self._begun[session.id] = secret, now
        return secret

    def proved(self, session: Session, code: str) -> Callable[[sqlite3.Connection], list[str]]:
        """The change of the database that makes the secret which this session began a factor, and returns its recovery codes. Raises NotThere, WrongCode."""
        secret, begun = self._begun.get(session.id, ("", 0.0))
        now = self._clock()
        if not secret or now - begun >= _BEGUN_SECONDS:
            raise NotThere("setting up a second factor was not begun, or took longer than ten minutes; begin again")
        step = factors.step_of(secret, factors.plain(code[:_LONGEST_CODE]), now)
        if step is None:
            raise WrongCode("the app shows another code; check that its clock and this machine's are right", field="code")
        del self._begun[session.id]
        sealed = self._sealing.seal(secret, session.user)
        return lambda db: factors.put(db, session.user, sealed, step, keep=session.id)
