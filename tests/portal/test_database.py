"""The portal's file: what earlier releases wrote is brought up to date, what later ones wrote is left alone."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

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


def test_a_file_of_a_later_release_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "portal.db"
    later = sqlite3.connect(path)
    later.execute("PRAGMA user_version = 1000")
    later.close()
    with pytest.raises(sqlite3.DatabaseError, match="later release"):
        connect(path)
