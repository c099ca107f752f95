"""The portal's file: what earlier releases wrote is brought up to date, what later ones wrote is left alone."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from portal import accounts
from portal.database import connect

# What release 0.1.0 made.
_FIRST = """
CREATE TABLE accounts (user TEXT PRIMARY KEY, password_hash TEXT NOT NULL, changed REAL NOT NULL);
INSERT INTO accounts VALUES ('admin', 'hash', 1.0);
"""


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
    before = connect(path)
    # As it was before the last columns came.
    for column in ("most_disk", "most_cpus"):
        before.execute(f"ALTER TABLE accounts DROP COLUMN {column}")
    before.execute("PRAGMA user_version = 5")
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
    before = connect(path)
    before.execute("ALTER TABLE accounts DROP COLUMN most_cpus")
    before.execute("PRAGMA user_version = 6")
    before.execute("INSERT INTO accounts(user, password_hash, changed, role, most_workspaces, most_disk) VALUES ('anna', 'hash', 1.0, 'user', 3, 4096)")
    before.close()
    connection = connect(path)
    anna = accounts.find(connection, "anna")
    assert anna is not None and anna.quota() == {"workspaces": 3, "memory": None, "disk": 4096, "cpus": None}
    accounts.set_quota(connection, "anna", {"cpus": 1.5})
    anna = accounts.find(connection, "anna")
    assert anna is not None and anna.quota() == {"workspaces": 3, "memory": None, "disk": 4096, "cpus": 1.5}
    connection.close()


def test_a_file_of_a_later_release_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "portal.db"
    later = sqlite3.connect(path)
    later.execute("PRAGMA user_version = 1000")
    later.close()
    with pytest.raises(sqlite3.DatabaseError, match="later release"):
        connect(path)
