"""Checking and making password hashes without letting anybody guess, or take the machine by making us hash."""

from __future__ import annotations

import asyncio

from portal import accounts, audit
from portal.attempts import Attempts
from portal.database import Database
from portal.errors import TooMany, WrongPassword

# argon2 takes 64 MiB and a core for each check: a flood of logins must not take the machine.
_HASHES_AT_ONCE = 2


class Passwords:
    """One for all of control: attempts are counted wherever they are made."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._attempts = Attempts()
        self._hashing = asyncio.Semaphore(_HASHES_AT_ONCE)

    async def check(self, user: str, password: str, address: str) -> None:
        """Return when the password is the user's. Raises WrongPassword (for an unknown or disabled user alike, as late), TooMany."""
        wait = self._attempts.take(address, user)
        if wait:
            audit.record("login-limited", user=user, address=address)
            raise TooMany(f"too many attempts; try again in {wait:.0f} s", retry_after=wait)
        stored = await self._database.run(lambda db: accounts.stored_hash(db, user))
        async with self._hashing:
            good = await asyncio.to_thread(accounts.verify, stored, password)
        if not good:
            audit.record("login-refused", user=user, address=address)
            raise WrongPassword("user or password is wrong")
        self._attempts.clear(address, user)

    async def hashed(self, password: str) -> str:
        """What is stored of a new password."""
        async with self._hashing:
            return await asyncio.to_thread(accounts.hashed, password)
