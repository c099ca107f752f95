"""Accounts as the database holds them: functions on one connection, for the control process and the command line alike.

Passwords are kept only as argon2id hashes. Whoever loses the right to come in loses everything that was given on it, in the same transaction.
"""

from __future__ import annotations

import functools
import re
import secrets
import sqlite3
import time
from dataclasses import dataclass

import argon2

from portal.errors import Conflicting, Denied, Malformed, NotThere
from portal.guessable import guessable
from portal.principal import Role

# The account that every portal begins with.
USER = "admin"
# For how long a password that somebody else made for you opens the way to one of your own.
ONE_TIME_SECONDS = 7 * 86400.0
SHORTEST_PASSWORD = 12
# 32 symbols without 0/O and 1/l/I: five bits each, 100 bits in a password of 20.
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_GROUPS, _GROUP_LENGTH = 4, 5
_LONGEST_PASSWORD = 256
_FEWEST_SYMBOLS = 5
_MOST_USERS = 10_000
# Addresses of an identity provider's users are names, too.
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._@+-]{0,62}[a-z0-9])?")
# The same for programs that read the OpenAPI document.
NAME_PATTERN = f"^{_NAME.pattern}$"
# The library's defaults (RFC 9106, low-memory profile: 64 MiB, 3 passes): about 60 ms of one core.
_hasher = argon2.PasswordHasher()


@dataclass(frozen=True)
class Account:
    """One user. `one_time`: unix seconds until which its password, made by somebody else, opens the way to one of its own; else None.

    `external`: it has no password, an identity provider lets it in. `most_workspaces`, `most_memory` and `most_disk` (bytes), `most_cpus`: limits of
    its own, None: those that the settings have for every user. `factor`: it has a second factor (portal.factors).
    """

    user: str
    role: Role
    disabled: bool
    one_time: float | None
    changed: float
    external: bool
    most_workspaces: int | None = None
    most_memory: int | None = None
    most_disk: int | None = None
    most_cpus: float | None = None
    factor: bool = False

    def lacks_factor(self, required: bool) -> bool:
        """Whether it has to set up a second factor before anything else. Of those that an identity provider lets in, that one has seen to it."""
        return required and not self.external and not self.factor

    def public(self) -> dict[str, object]:
        """What an admin is shown."""
        return {
            "user": self.user, "role": self.role, "disabled": self.disabled, "external": self.external,
            "one_time_until": self.one_time, "changed": self.changed, "second_factor": self.factor,
            "quota": self.quota(),
        }  # fmt: skip

    def quota(self) -> dict[str, float | None]:
        """Its limits by the names that quotas have."""
        return {"workspaces": self.most_workspaces, "memory": self.most_memory, "disk": self.most_disk, "cpus": self.most_cpus}


# Passwords


def generate_password() -> str:
    """A new password that can be read out and typed: four groups of five symbols."""
    groups = ["".join(secrets.choice(_ALPHABET) for _ in range(_GROUP_LENGTH)) for _ in range(_GROUPS)]
    return "-".join(groups)


def hashed(password: str) -> str:
    """What is stored of a password. Blocks for tens of ms: call it in a thread."""
    return _hasher.hash(password)


@functools.cache
def _nobodys() -> str:
    """What a password is checked against when the user does not exist."""
    return hashed(secrets.token_hex(32))


def ready() -> None:
    """Make what `verify` needs for unknown users, so that not even the first of them is answered later than others. Blocks for tens of ms."""
    _nobodys()


def verify(stored: str | None, password: str) -> bool:
    """Whether the password is the stored one. Blocks for tens of ms: call it in a thread. Takes as long for an unknown user (None)."""
    if len(password) > _LONGEST_PASSWORD:
        return False
    try:
        return _hasher.verify(stored or _nobodys(), password) and bool(stored)
    except argon2.exceptions.VerificationError:
        return False


def check_new_password(user: str, password: str) -> None:
    """Raises Malformed for one that is easily guessed: short, of few symbols, or made of common parts and the user's name."""
    if not SHORTEST_PASSWORD <= len(password) <= _LONGEST_PASSWORD:
        raise Malformed(f"a password has {SHORTEST_PASSWORD} to {_LONGEST_PASSWORD} characters", field="new_password")
    if len(set(password)) < _FEWEST_SYMBOLS:
        raise Malformed(f"a password has at least {_FEWEST_SYMBOLS} different characters", field="new_password")
    if guessable(password, user):
        raise Malformed("this password is made of words, rows of keys, repeats or the user's name, which are tried first; choose one with more of your own in it", field="new_password")


def check_name(user: str) -> None:
    """Raises Malformed."""
    if not _NAME.fullmatch(user):
        raise Malformed("a user's name has 1 to 64 of a-z, 0-9 and . _ @ + -, and begins and ends with a letter or digit", field="user")


# Reading


def find(connection: sqlite3.Connection, user: str) -> Account | None:
    """One account, or None."""
    row = connection.execute(f"SELECT {_COLUMNS} FROM accounts WHERE user = ?", (user,)).fetchone()
    return _account(row) if row else None


def every(connection: sqlite3.Connection) -> list[Account]:
    """All accounts by name."""
    return [_account(row) for row in connection.execute(f"SELECT {_COLUMNS} FROM accounts ORDER BY user")]


def stored_hash(connection: sqlite3.Connection, user: str) -> str | None:
    """The password hash of a user, None when there is no such user or it may not come in by a password."""
    row = connection.execute("SELECT password_hash FROM accounts WHERE user = ? AND NOT disabled", (user,)).fetchone()
    return row[0] or None if row else None


# Changing; each raises NotThere for an unknown user


def add(connection: sqlite3.Connection, user: str, role: Role, password_hash: str, one_time: float | None) -> None:
    """A new account; `password_hash` is "" for one without a password. Raises Malformed, Conflicting."""
    check_name(user)
    if find(connection, user) is not None:
        raise Conflicting(f"there is a user {user} already", field="user")
    if connection.execute("SELECT count(*) FROM accounts").fetchone()[0] >= _MOST_USERS:
        raise Conflicting(f"there are {_MOST_USERS} users already; remove some")
    row = (user, password_hash, time.time(), role, one_time)
    connection.execute("INSERT INTO accounts(user, password_hash, changed, role, one_time) VALUES (?, ?, ?, ?, ?)", row)


def set_password(connection: sqlite3.Connection, user: str, password_hash: str, one_time: float | None, keep: str = "") -> None:
    """A new password, which ends the user's sessions but the one with the id `keep`. Raises Conflicting for a user of an identity provider."""
    if _existing(connection, user).external:
        raise Conflicting(f"{user} comes in by the identity provider and has no password here")
    row = (password_hash, time.time(), one_time, user)
    connection.execute("UPDATE accounts SET password_hash = ?, changed = ?, one_time = ? WHERE user = ?", row)
    connection.execute("DELETE FROM sessions WHERE user = ? AND id != ?", (user, keep))


def set_role(connection: sqlite3.Connection, user: str, role: Role) -> None:
    """Raises Conflicting for the last admin. Takes effect with the user's next request; what an admin had open closes."""
    if role is not Role.ADMIN:
        _not_the_last_admin(connection, user)
    _existing(connection, user)
    connection.execute("UPDATE accounts SET role = ? WHERE user = ?", (role, user))


def set_disabled(connection: sqlite3.Connection, user: str, disabled: bool) -> None:
    """A disabled user keeps its name and workspaces, and nothing else. Raises Conflicting for the last admin."""
    _existing(connection, user)
    if disabled:
        _not_the_last_admin(connection, user)
        _end_all(connection, user)
    connection.execute("UPDATE accounts SET disabled = ? WHERE user = ?", (int(disabled), user))


def set_quota(connection: sqlite3.Connection, user: str, limits: dict[str, float | None]) -> None:
    """Limits of its own by name: `workspaces`, `memory` and `disk` (bytes), `cpus`. None: what the settings have for every user; one that is not given stays."""
    now = {**_existing(connection, user).quota(), **limits}
    row = (now["workspaces"], now["memory"], now["disk"], now["cpus"], user)
    connection.execute("UPDATE accounts SET most_workspaces = ?, most_memory = ?, most_disk = ?, most_cpus = ? WHERE user = ?", row)


def remove(connection: sqlite3.Connection, user: str) -> None:
    """The account and all that was given on it; its workspaces become the admins'. Raises Conflicting for the last admin."""
    _existing(connection, user)
    _not_the_last_admin(connection, user)
    _end_all(connection, user)
    connection.execute("DELETE FROM owners WHERE user = ?", (user,))
    connection.execute("DELETE FROM accounts WHERE user = ?", (user,))


def let_in(connection: sqlite3.Connection, user: str, subject: str, role: Role) -> None:
    """An identity provider vouches for a user: make the account at the first time, and give it the role that the provider says.

    Raises Conflicting when the name is somebody else's (a local user's, or that of another subject to whom the address was given before),
    Denied when the account is disabled, Malformed for an address that cannot be a name.
    """
    row = connection.execute("SELECT subject, disabled, role FROM accounts WHERE user = ?", (user,)).fetchone()
    if row is None:
        add(connection, user, role, "", None)
        connection.execute("UPDATE accounts SET subject = ? WHERE user = ?", (subject, user))
        return
    known, disabled, now = row
    if known != subject:
        raise Conflicting(f"there is another user {user} already; an admin has to remove it before you can come in")
    if disabled:
        raise Denied(f"{user} is disabled")
    if now != role:
        set_role(connection, user, role)


# For the start


def ensure_password(connection: sqlite3.Connection) -> str | None:
    """Make the first account when there is none at all; its password, or None."""
    if connection.execute("SELECT 1 FROM accounts").fetchone():
        return None
    password = generate_password()
    add(connection, USER, Role.ADMIN, hashed(password), None)
    return password


_COLUMNS = "user, role, disabled, one_time, changed, subject IS NOT NULL, most_workspaces, most_memory, most_disk, most_cpus, EXISTS (SELECT 1 FROM factors WHERE factors.user = accounts.user)"


def _account(row: tuple) -> Account:
    user, role, disabled, one_time, changed, external, workspaces, memory, disk, cpus, factor = row
    return Account(user, Role(role), bool(disabled), one_time, changed, bool(external), workspaces, memory, disk, cpus, bool(factor))


def _existing(connection: sqlite3.Connection, user: str) -> Account:
    account = find(connection, user)
    if account is None:
        raise NotThere(f"no user {user}")
    return account


def _not_the_last_admin(connection: sqlite3.Connection, user: str) -> None:
    others = connection.execute("SELECT 1 FROM accounts WHERE role = ? AND NOT disabled AND user != ?", (Role.ADMIN, user)).fetchone()
    if others is None and find(connection, user) is not None:
        raise Conflicting(f"{user} is the last admin; make another user admin first")


def _end_all(connection: sqlite3.Connection, user: str) -> None:
    for table in ("sessions", "tokens", "shares"):
        connection.execute(f"DELETE FROM {table} WHERE user = ?", (user,))
