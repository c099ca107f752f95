"""`tclone backup` and `tclone restore`: what comes back, and what is not taken."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
import tarfile
from collections.abc import Callable

import pytest

from engine.config import Config
from portal import accounts, administration, backup
from portal.control import serving
from portal.database import connect
from portal.places import Places
from portal.setup import prepare
from tests.portal.conftest import Portal


def archive_of(places: Places) -> bytes:
    out = io.BytesIO()
    backup.save(places, out)
    return out.getvalue()


def members(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]


def packed(content: dict[str, bytes], change: Callable[[tarfile.TarInfo], None] = lambda entry: None) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in content.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            change(entry)
            tar.addfile(entry, io.BytesIO(data))
    out.seek(0)
    return out


async def test_a_saved_portal_comes_back_with_password_settings_and_keys(config: Config) -> None:
    prepared = await asyncio.to_thread(prepare, config)
    places = Places(config)
    async with serving(config) as control:
        await control.settings.set(control.settings.now.model_copy(update={"user_workspaces": 3}))
        await control.sessions.create("admin")
        archive = await asyncio.to_thread(archive_of, places)
        with pytest.raises(backup.BackupError, match="tclone down"):
            backup.load(places, io.BytesIO(archive))
    authority = places.ca_certificate.read_bytes()
    for name in ("ca.pem", "ca.key", "leaf.pem", "leaf.key"):
        (places.tls / name).unlink()
    administration.run(config, "user-passwd", {"user": "admin"})
    manifest = backup.load(places, io.BytesIO(archive))
    assert manifest["format"] == 1
    assert places.ca_certificate.read_bytes() == authority and places.ca_key.stat().st_mode & 0o777 == 0o600
    assert (await asyncio.to_thread(prepare, config)).password is None
    async with serving(config) as control:
        assert control.settings.now.user_workspaces == 3
        assert control.sessions.live() == []
    connection = connect(places.database)
    stored = accounts.stored_hash(connection, "admin")
    connection.close()
    assert prepared.password is not None and accounts.verify(stored, prepared.password)
    assert [path.name for path in places.data.iterdir() if path.name.startswith(".")] == []


async def test_an_archive_that_is_not_good_changes_nothing(portal: Portal, config: Config) -> None:
    good = members(await asyncio.to_thread(archive_of, portal.places))
    bad = {
        "no archive": io.BytesIO(b"hello" * 1000),
        "cut off": io.BytesIO(packed(good).getvalue()[:3000]),
        "a path out of it": packed({**good, "../../etc/x": b""}),
        "a link": packed(good, lambda entry: setattr(entry, "type", tarfile.SYMTYPE)),
        "no database": packed({name: data for name, data in good.items() if name != "portal.db"}),
        "a damaged database": packed({**good, "portal.db": good["portal.db"][:5000] + b"\xff" * 8000}),
        "of another release": packed({**good, "manifest.json": json.dumps({"format": 99}).encode()}),
    }
    # A portal that does not run, with a file of its own in place.
    places = Places(config)
    elsewhere = Places(config)
    elsewhere.control_socket = places.run / "nobody.sock"
    before = {path: path.read_bytes() for path in places.tls.iterdir()}
    for what, source in bad.items():
        with pytest.raises((backup.BackupError, sqlite3.DatabaseError)):
            backup.load(elsewhere, source)
            pytest.fail(what)
    assert {path: path.read_bytes() for path in places.tls.iterdir()} == before
    assert [path.name for path in places.data.iterdir() if path.name.startswith(".")] == []
