"""SQLite in WAL mode with two writers: nothing torn, no row lost, both go on."""

from __future__ import annotations

import sqlite3
import sys
import time

from application import HOME, PATIENCE, alive, background, expect, grows, main, wait_for

_DATABASE = HOME / "rows.db"


def _connect() -> sqlite3.Connection:
    connection = sqlite3.connect(_DATABASE, timeout=PATIENCE, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    return connection


def write(writer: str) -> None:
    """Add one numbered row a transaction, for ever."""
    connection = _connect()
    number = 0
    while True:
        number += 1
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO rows(writer, number, filler) VALUES (?, ?, ?)", (writer, number, "x" * 500))
        connection.execute("COMMIT")
        time.sleep(0.002)


def _rows(writer: str) -> int:
    return _connect().execute("SELECT count(*) FROM rows WHERE writer = ?", (writer,)).fetchone()[0]


def start() -> None:
    HOME.mkdir(exist_ok=True)
    connection = _connect()
    connection.execute("CREATE TABLE rows(id INTEGER PRIMARY KEY, writer TEXT, number INTEGER, filler TEXT)")
    connection.execute("CREATE INDEX by_writer ON rows(writer, number)")
    connection.execute("CREATE TABLE marks(side TEXT)")
    for writer in ("one", "two"):
        background(writer, sys.executable, __file__, "write", writer)
        wait_for("first rows", lambda name=writer: _rows(name) > 20)


def check(side: str) -> None:
    for writer in ("one", "two"):
        expect(alive(writer), f"writer {writer} is gone")
        grows(f"writer {writer}", lambda name=writer: _rows(name))
        highest = _connect().execute("SELECT count(*), max(number) FROM rows WHERE writer = ?", (writer,)).fetchone()
        expect(highest[0] == highest[1], f"writer {writer}: {highest[0]} rows, the last has number {highest[1]}")
    answer = _connect().execute("PRAGMA integrity_check").fetchone()[0]
    expect(answer == "ok", f"integrity: {answer}")
    _connect().execute("INSERT INTO marks VALUES (?)", (side,))


def verify(side: str) -> None:
    marks = [mark for (mark,) in _connect().execute("SELECT side FROM marks")]
    expect(marks == [side], f"marks: {marks}")


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2])
    main(start, check, verify)
