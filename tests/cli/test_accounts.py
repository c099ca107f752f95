"""`tclone user` and `tclone token` on a portal's data, with no portal running."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import Config
from portal import accounts, factors
from portal.database import digest
from portal.setup import prepare
from tests.cli.conftest import Tclone

pytestmark = pytest.mark.root


@pytest.fixture
def prepared(place: Path) -> Tclone:
    """The command for a TClone that was up once."""
    config = replace(Config.from_environment(), data=place / "data", run=place / "run", portal_user="nobody")
    prepare(config)
    environment = {**os.environ, "TCLONE_DATA": str(config.data), "TCLONE_RUN": str(config.run), "TCLONE_PORTAL_USER": "nobody", "TERM": "xterm"}
    return Tclone(environment)


def database(place: Path) -> sqlite3.Connection:
    return sqlite3.connect(place / "data" / "portal" / "portal.db")


async def test_users_are_added_listed_changed_and_removed(prepared: Tclone, place: Path) -> None:
    added = await prepared("user", "add", "anna")
    assert added.status == 0 and "7 days" in added.err
    connection = database(place)
    stored, until = connection.execute("SELECT password_hash, one_time FROM accounts WHERE user = 'anna'").fetchone()
    assert accounts.verify(stored, added.out.strip()) and until is not None
    assert (await prepared("user", "role", "anna", "admin")).status == 0
    assert (await prepared("user", "disable", "anna")).status == 0
    listed = {one["user"]: one for one in (await prepared("user", "ls", "--json")).json()}
    assert (listed["anna"]["role"], listed["anna"]["disabled"], listed["admin"]["disabled"]) == ("admin", True, False)
    assert "anna   admin  disabled" in (await prepared("user", "ls")).out
    factors.put(connection, "anna", "sealed", 1, keep="")
    connection.commit()
    assert (await prepared("user", "ls")).out.splitlines()[2].split()[-1] == "yes"
    assert (await prepared("user", "no-factor", "anna")).status == 0
    assert connection.execute("SELECT count(*) FROM factors").fetchone() == (0,)
    again = await prepared("user", "no-factor", "anna")
    assert again.status != 0 and "anna has no second factor" in again.err
    fresh = (await prepared("user", "passwd", "anna")).out.strip()
    assert fresh != added.out.strip()
    assert (await prepared("user", "rm", "anna")).status == 0
    assert [one["user"] for one in (await prepared("user", "ls", "--json")).json()] == ["admin"]
    trail = (place / "data" / "portal" / "audit.jsonl").read_text()
    assert '"event": "user-add", "user": "command line", "name": "anna"' in trail and fresh not in trail
    # Written by the portal's user, who alone may read it.
    status = (place / "data" / "portal" / "portal.db").stat()
    assert status.st_uid != 0 and stat.S_IMODE(status.st_mode) == 0o600


async def test_refusals_say_what_is_wrong(prepared: Tclone) -> None:
    for words, status, said in (
        (("user", "rm", "admin"), 5, "last admin"),
        (("user", "add", "admin"), 5, "already"),
        (("user", "add", "No Body"), 2, "name has"),
        (("user", "rm", "nobody"), 4, "no user nobody"),
        (("token", "create", "--name", "x", "--scopes", "root"), 2, "read, control"),
        (("token", "create", "--name", "x", "--user", "eve"), 4, "eve"),
        (("token", "revoke", "tok-0"), 4, "tok-0"),
    ):
        done = await prepared(*words)
        assert (done.status, done.out) == (status, "") and said in done.err, words


async def test_a_token_is_shown_once_and_never_has_more_than_its_user(prepared: Tclone, place: Path) -> None:
    made = await prepared("token", "create", "--name", "ci", "--scopes", "read,fork")
    secret = made.out.strip()
    assert made.status == 0 and secret.startswith("tct_") and "shown once" in made.err
    assert database(place).execute("SELECT hash, scopes FROM tokens").fetchall() == [(digest(secret), "fork read")]
    # As clients of E2B insist on: a prefix and 40 hexadecimal digits.
    other = (await prepared("token", "create", "--name", "sdk", "--form", "e2b")).out.strip()
    assert re.fullmatch("e2b_[0-9a-f]{40}", other)
    listed = await prepared("token", "ls")
    assert "ci" in listed.out and secret not in listed.out
    await prepared("user", "add", "anna")
    refused = await prepared("token", "create", "--name", "x", "--user", "anna", "--scopes", "admin")
    assert refused.status == 2 and "anna" in refused.err
    one = (await prepared("token", "create", "--name", "y", "--user", "anna", "--never", "--json")).json()
    assert one["expires"] is None
    assert (await prepared("token", "revoke", one["id"])).status == 0
    assert [token["name"] for token in (await prepared("token", "ls", "--json")).json()] == ["ci", "sdk"]


async def test_before_the_first_start_it_says_so(tclone: Tclone) -> None:
    done = await tclone("user", "ls")
    assert done.status == 4 and "the first `tclone up` makes it" in done.err
