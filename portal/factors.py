"""Second factors of users with a password: codes of an app (TOTP, RFC 6238) and recovery codes. Functions on one connection, like portal.accounts.

A code counts once: the step of time of the last one that was taken is kept, and none of that step or before it is taken again.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from dataclasses import dataclass

import pyotp
from pyotp.exceptions import OTPVerificationError

from portal.database import digest
from portal.errors import Conflicting, NotThere

# Apps know these values only: 6 digits, 30 seconds, SHA-1 (of which nothing but the one-wayness of HMAC matters here).
STEP_SECONDS = 30
DIGITS = 6
# Clocks differ: a code of the step before or after is taken, too.
_STEPS_AROUND = 1
RECOVERY_CODES = 10
# 32 symbols without 0/O and 1/l/I: 120 bits in a code of 24, so that a plain hash of it tells nothing.
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_GROUPS, _GROUP_LENGTH = 4, 6


@dataclass(frozen=True)
class Factor:
    """One user's. `sealed`: its secret (portal.sealing); `since`: Unix seconds; `codes`: recovery codes that are left."""

    user: str
    sealed: str
    since: float
    codes: int

    def public(self) -> dict[str, object]:
        """What its user is shown."""
        return {"since": self.since, "recovery_codes": self.codes}


# Codes


def new_secret() -> str:
    """160 random bits, in the letters that apps take."""
    return pyotp.random_base32()


def address_for_apps(secret: str, user: str, issuer: str) -> str:
    """What an app reads from the picture: the secret, and whose it is where."""
    return pyotp.TOTP(secret).provisioning_uri(name=user, issuer_name=issuer)


def step_of(secret: str, code: str, now: float) -> int | None:
    """Which step of time a code of the app belongs to; None: it is none of now (Unix seconds)."""
    totp = pyotp.TOTP(secret, digits=DIGITS, interval=STEP_SECONDS)
    try:
        return totp.verify_and_get_timecode(code, for_time=now, valid_window=_STEPS_AROUND)
    except OTPVerificationError:
        return None


def plain(code: str) -> str:
    """A code as it counts, however it was typed: groups may stand apart."""
    return "".join(code.split()).replace("-", "").lower()


def _recovery_code() -> str:
    groups = ["".join(secrets.choice(_ALPHABET) for _ in range(_GROUP_LENGTH)) for _ in range(_GROUPS)]
    return "-".join(groups)


# Reading and changing


def find(connection: sqlite3.Connection, user: str) -> Factor | None:
    """A user's second factor, or None."""
    row = connection.execute("SELECT sealed, since FROM factors WHERE user = ?", (user,)).fetchone()
    if row is None:
        return None
    left = connection.execute("SELECT count(*) FROM recovery_codes WHERE user = ?", (user,)).fetchone()[0]
    return Factor(user, row[0], row[1], left)


def put(connection: sqlite3.Connection, user: str, sealed: str, step: int, keep: str) -> list[str]:
    """A user's first factor; its recovery codes, which exist only here. Ends the user's sessions but the one with the id `keep`. Raises Conflicting."""
    if find(connection, user) is not None:
        raise Conflicting("you have a second factor already; remove it first")
    connection.execute("INSERT INTO factors VALUES (?, ?, ?, ?)", (user, sealed, step, time.time()))
    # Whoever came in with less than the factor is not let stay.
    connection.execute("DELETE FROM sessions WHERE user = ? AND id != ?", (user, keep))
    return new_recovery_codes(connection, user)


def new_recovery_codes(connection: sqlite3.Connection, user: str) -> list[str]:
    """Fresh ones in place of those before. Raises NotThere."""
    _existing(connection, user)
    connection.execute("DELETE FROM recovery_codes WHERE user = ?", (user,))
    made = [_recovery_code() for _ in range(RECOVERY_CODES)]
    connection.executemany("INSERT INTO recovery_codes VALUES (?, ?)", [(digest(plain(code)), user) for code in made])
    return made


def use_step(connection: sqlite3.Connection, user: str, step: int) -> bool:
    """Whether no code of this step or a later one was taken before; now one is."""
    return connection.execute("UPDATE factors SET step = ? WHERE user = ? AND step < ?", (step, user, step)).rowcount == 1


def use_recovery_code(connection: sqlite3.Connection, user: str, code: str) -> bool:
    """Whether it was one of the user's; it is none any more."""
    return connection.execute("DELETE FROM recovery_codes WHERE hash = ? AND user = ?", (digest(plain(code)), user)).rowcount == 1


def remove(connection: sqlite3.Connection, user: str) -> None:
    """The password alone lets this user in again. Raises NotThere."""
    _existing(connection, user)
    connection.execute("DELETE FROM factors WHERE user = ?", (user,))


def _existing(connection: sqlite3.Connection, user: str) -> None:
    if find(connection, user) is None:
        raise NotThere(f"{user[:64]} has no second factor")
