"""`tclone backup` and `tclone restore`, with no portal running; what the archive holds is tested in tests/portal/test_backup.py."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from tests.cli.conftest import Tclone
from tests.cli.test_accounts import prepared  # noqa: F401

pytestmark = pytest.mark.root


async def test_users_come_back_into_an_empty_data_directory(prepared: Tclone, place: Path) -> None:  # noqa: F811
    assert (await prepared("user", "add", "anna")).status == 0
    archive = place / "tclone.tar"
    saved = await prepared("backup", str(archive))
    assert saved.status == 0, saved.err
    status = archive.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid) == (0o600, os.geteuid())
    again = await prepared("backup", str(archive))
    assert again.status == 5 and "exists" in again.err and archive.stat().st_size == status.st_size
    shutil.rmtree(place / "data")
    restored = await prepared("restore", str(archive))
    assert restored.status == 0, restored.err
    assert [one["user"] for one in (await prepared("user", "ls", "--json")).json()] == ["admin", "anna"]


async def test_what_is_no_archive_changes_nothing(prepared: Tclone, place: Path) -> None:  # noqa: F811
    assert (await prepared("user", "add", "anna")).status == 0
    wrong = place / "wrong.tar"
    wrong.write_bytes(b"x" * 20480)
    refused = await prepared("restore", str(wrong))
    assert refused.status == 5 and "archive" in refused.err
    assert (await prepared("restore", str(place / "absent"))).status == 4
    assert [one["user"] for one in (await prepared("user", "ls", "--json")).json()] == ["admin", "anna"]
