"""The account: one user, `admin`, whose password is generated and kept only as an argon2id hash."""

from __future__ import annotations

import secrets
import sqlite3
import time

import argon2

from engine.config import Config
from portal.database import connect
from portal.places import Places

USER = "admin"
# 32 symbols without 0/O and 1/l/I: five bits each, 100 bits in a password of 20.
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_GROUPS, _GROUP_LENGTH = 4, 5
_LONGEST_PASSWORD = 256
# The library's defaults (RFC 9106, low-memory profile: 64 MiB, 3 passes): about 60 ms of one core.
_hasher = argon2.PasswordHasher()
# Checked when the user does not exist, so that the answer takes as long.
_UNUSABLE = _hasher.hash(secrets.token_hex(32))


def generate_password() -> str:
    """A new password that can be read out and typed: four groups of five symbols."""
    groups = ["".join(secrets.choice(_ALPHABET) for _ in range(_GROUP_LENGTH)) for _ in range(_GROUPS)]
    return "-".join(groups)


def ensure_password(connection: sqlite3.Connection) -> str | None:
    """Make the account when there is none; its password, or None when it existed."""
    if connection.execute("SELECT 1 FROM accounts WHERE user = ?", (USER,)).fetchone():
        return None
    return _set_password(connection)


def reset_password(config: Config) -> str:
    """Give the account a new password, end all its sessions and return the password. Raises sqlite3.Error, OSError."""
    connection = connect(Places(config).database)
    try:
        connection.execute("BEGIN IMMEDIATE")
        password = _set_password(connection)
        connection.execute("DELETE FROM sessions")
        connection.execute("COMMIT")
        return password
    finally:
        connection.close()


def stored_hash(connection: sqlite3.Connection, user: str) -> str | None:
    """The password hash of a user, None when there is no such user."""
    row = connection.execute("SELECT password_hash FROM accounts WHERE user = ?", (user,)).fetchone()
    return row[0] if row else None


def verify(stored: str | None, password: str) -> bool:
    """Whether the password is the stored one. Blocks for tens of ms: call it in a thread. Takes as long for an unknown user (None)."""
    if len(password) > _LONGEST_PASSWORD:
        return False
    try:
        return _hasher.verify(stored or _UNUSABLE, password) and stored is not None
    except argon2.exceptions.VerificationError:
        return False


def _set_password(connection: sqlite3.Connection) -> str:
    password = generate_password()
    connection.execute(
        "INSERT INTO accounts(user, password_hash, changed) VALUES (?, ?, ?)"
        " ON CONFLICT(user) DO UPDATE SET password_hash = excluded.password_hash, changed = excluded.changed",
        (USER, _hasher.hash(password), time.time()),
    )
    return password
