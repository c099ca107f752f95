"""The portal's file: what earlier releases wrote is brought up to date, what later ones wrote is left alone."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from portal import accounts, factors
from portal.database import _MIGRATIONS, connect
from portal.principal import Role

# What release 0.1.0 made.
_FIRST = """
CREATE TABLE accounts (user TEXT PRIMARY KEY, password_hash TEXT NOT NULL, changed REAL NOT NULL);
INSERT INTO accounts VALUES ('admin', 'hash', 1.0);
"""


def of_version(path: Path, version: int) -> sqlite3.Connection:
    """A file as the release with so many migrations made it."""
    connection = sqlite3.connect(path, isolation_level=None)
    for statements in _MIGRATIONS[:version]:
        connection.executescript(statements)
    connection.execute(f"PRAGMA user_version = {version}")
    return connection


def test_a_file_of_the_first_release_keeps_its_content(tmp_path: Path) -> None:
    path = tmp_path / "portal.db"
    first = sqlite3.connect(path)
    first.executescript(_FIRST)
    first.close()
    connection = connect(path)
    assert connection.execute("SELECT user FROM accounts").fetchall() == [("admin",)]
    assert connection.execute("SELECT count(*) FROM owners").fetchone() == (0,)
    connection.close()
    connect(path).close()


def test_the_quotas_that_users_had_are_kept_when_disk_joins_them(tmp_path: Path) -> None:
    path = tmp_path / "portal.db"
    before = of_version(path, 5)
    before.execute("INSERT INTO accounts(user, password_hash, changed, role, most_workspaces, most_memory) VALUES ('anna', 'hash', 1.0, 'user', 3, 4096)")
    before.execute("INSERT INTO settings VALUES ('user_memory', '8192')")
    before.close()
    connection = connect(path)
    anna = accounts.find(connection, "anna")
    assert anna is not None and (anna.most_workspaces, anna.most_memory, anna.most_disk) == (3, 4096, None)
    assert connection.execute("SELECT value FROM settings WHERE name = 'user_memory'").fetchone() == ("8192",)
    accounts.set_quota(connection, "anna", {"disk": 1 << 30})
    anna = accounts.find(connection, "anna")
    assert anna is not None and (anna.most_workspaces, anna.most_memory, anna.most_disk) == (3, 4096, 1 << 30)
    connection.close()


def test_the_quotas_that_users_had_are_kept_when_processors_join_them(tmp_path: Path) -> None:
    path = tmp_path / "portal.db"
    before = of_version(path, 6)
    before.execute("INSERT INTO accounts(user, password_hash, changed, role, most_workspaces, most_disk) VALUES ('anna', 'hash', 1.0, 'user', 3, 4096)")
    before.close()
    connection = connect(path)
    anna = accounts.find(connection, "anna")
    assert anna is not None and anna.quota() == {"workspaces": 3, "memory": None, "disk": 4096, "cpus": None}
    accounts.set_quota(connection, "anna", {"cpus": 1.5})
    anna = accounts.find(connection, "anna")
    assert anna is not None and anna.quota() == {"workspaces": 3, "memory": None, "disk": 4096, "cpus": 1.5}
    connection.close()


def test_logins_go_on_when_second_factors_come_and_have_to_show_who_they_are(tmp_path: Path) -> None:
    path = tmp_path / "portal.db"
    before = of_version(path, 7)
    before.execute("INSERT INTO accounts(user, password_hash, changed) VALUES ('anna', 'hash', 1.0)")
    before.execute("INSERT INTO sessions(id, cookie_hash, key_hash, user, created, active, expires) VALUES ('s', 'c', 'k', 'anna', 1.0, 1.0, 2.0)")
    before.close()
    connection = connect(path)
    assert connection.execute("SELECT id, shown FROM sessions").fetchall() == [("s", 0.0)]
    anna = accounts.find(connection, "anna")
    assert anna is not None and not anna.factor
    connection.close()


def test_a_second_factor_goes_with_its_user(tmp_path: Path) -> None:
    connection = connect(tmp_path / "portal.db")
    for user in ("anna", "ben"):
        accounts.add(connection, user, Role.ADMIN, "hash", None)
        factors.put(connection, user, "sealed", 1, keep="")
    accounts.remove(connection, "anna")
    assert [row[0] for row in connection.execute("SELECT DISTINCT user FROM factors JOIN recovery_codes USING (user)")] == ["ben"]
    assert connection.execute("SELECT count(*) FROM recovery_codes").fetchone() == (factors.RECOVERY_CODES,)
    accounts.add(connection, "anna", Role.USER, "hash", None)
    assert factors.find(connection, "anna") is None
    connection.close()


def test_a_file_of_a_later_release_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "portal.db"
    later = sqlite3.connect(path)
    later.execute("PRAGMA user_version = 1000")
    later.close()
    with pytest.raises(sqlite3.DatabaseError, match="later release"):
        connect(path)
