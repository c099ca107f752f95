"""Saves what the portal keeps (accounts, tokens, settings, keys, the audit log) into one archive, and puts it back.

`python -m portal.backup save > FILE` works while the portal runs; `load < FILE` while it does not. Both run as the portal's own user: root, which
calls them for `tclone backup` and `tclone restore`, opens no file in a directory of a less trusted user.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import sqlite3
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from engine import __version__
from engine.config import Config
from portal.database import connect
from portal.places import Places
from portal.setup import make_directory

_MANIFEST = "manifest.json"
_DATABASE = "portal.db"
# Every name that an archive may hold. Others are refused: an archive is somebody's upload until it was looked at.
_NAMES = (_MANIFEST, _DATABASE, "audit.jsonl", "tls/ca.pem", "tls/ca.key", "tls/leaf.pem", "tls/leaf.key")
_MOST_BYTES = 4 << 30
_FORMAT = 1


class BackupError(Exception):
    """The archive, or the portal's state, does not allow it; says what to do."""


def save(places: Places, out: IO[bytes]) -> None:
    """Write the archive (tar). The database is copied as it was at one moment. Raises OSError, sqlite3.Error."""
    with tempfile.TemporaryDirectory(dir=places.data, prefix=".backup-") as scratch, tarfile.open(fileobj=out, mode="w|") as archive:
        manifest = {"format": _FORMAT, "version": __version__, "time": round(time.time(), 3)}
        _add(archive, _MANIFEST, io.BytesIO(json.dumps(manifest).encode()))
        copy = Path(scratch) / _DATABASE
        _copy_database(places.database, copy)
        for name, path in [(_DATABASE, copy), *_files(places)]:
            with path.open("rb") as file:
                _add(archive, name, file)


def load(places: Places, source: IO[bytes]) -> dict[str, object]:
    """Replace everything by what the archive holds and return its manifest. Nothing is changed unless all of it is good.

    Sessions are ended: what was open when the archive was made is no login now. Raises BackupError, OSError, sqlite3.Error.
    """
    if _running(places):
        raise BackupError("the portal is running: `tclone down` first")
    make_directory(places.data)
    with tempfile.TemporaryDirectory(dir=places.data, prefix=".restore-") as scratch:
        top = Path(scratch)
        manifest = _unpack(source, top)
        _check_database(top / _DATABASE)
        _put(top, places)
    return manifest


def _files(places: Places) -> Iterator[tuple[str, Path]]:
    for name in _NAMES:
        path = places.data / name
        if name not in (_MANIFEST, _DATABASE) and path.is_file() and not path.is_symlink():
            yield name, path


def _add(archive: tarfile.TarFile, name: str, file: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = file.seek(0, os.SEEK_END)
    entry.mode, entry.mtime = 0o600, int(time.time())
    file.seek(0)
    archive.addfile(entry, file)


def _copy_database(path: Path, copy: Path) -> None:
    source, target = sqlite3.connect(f"file:{path}?mode=ro", uri=True), sqlite3.connect(copy)
    try:
        source.backup(target)
        target.execute("PRAGMA journal_mode=DELETE")
    finally:
        target.close()
        source.close()


def _unpack(source: IO[bytes], top: Path) -> dict[str, object]:
    (top / "tls").mkdir(mode=0o700)
    left = _MOST_BYTES
    seen: set[str] = set()
    try:
        with tarfile.open(fileobj=source, mode="r|") as archive:
            for entry in archive:
                if entry.name not in _NAMES or not entry.isfile() or entry.name in seen:
                    raise BackupError(f"this is no archive of `tclone backup`: it holds {entry.name[:80]!r}")
                left -= entry.size
                if left < 0:
                    raise BackupError(f"the archive is larger than {_MOST_BYTES >> 30} GiB")
                seen.add(entry.name)
                content = archive.extractfile(entry)
                assert content is not None, "isfile() was true"
                with os.fdopen(os.open(top / entry.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    shutil.copyfileobj(content, file)
    except tarfile.TarError as error:
        raise BackupError(f"this is no archive of `tclone backup`: {error}") from error
    if not {_MANIFEST, _DATABASE} <= seen:
        raise BackupError("the archive is not whole: it was cut off, or is none of `tclone backup`")
    return _manifest(top / _MANIFEST)


def _manifest(path: Path) -> dict[str, object]:
    try:
        manifest = json.loads(path.read_text())
    except ValueError:
        raise BackupError("the archive's manifest is damaged") from None
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise BackupError(f"the archive is of another release: {str(manifest)[:120]}")
    return manifest


def _check_database(path: Path) -> None:
    """Brought up to this release here, so that a damaged or later one is found before anything is replaced."""
    connection = connect(path)
    try:
        found = connection.execute("PRAGMA integrity_check").fetchone()[0]
        if found != "ok":
            raise BackupError(f"the archive's database is damaged: {found}")
        connection.execute("DELETE FROM sessions")
        connection.execute("PRAGMA journal_mode=DELETE")
    finally:
        connection.close()


def _put(top: Path, places: Places) -> None:
    """Rename into place. The database goes last; without its old write-ahead log, which belongs to the one that is replaced."""
    make_directory(places.tls)
    for name in _NAMES:
        if name not in (_MANIFEST, _DATABASE) and (top / name).exists():
            (top / name).replace(places.data / name)
    for suffix in ("-wal", "-shm"):
        places.database.with_name(places.database.name + suffix).unlink(missing_ok=True)
    (top / _DATABASE).replace(places.database)


def _running(places: Places) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(places.control_socket))
        except OSError:
            return False
    return True


def main() -> int:
    """Exit status 0, 1 with one line on stderr, 2 for bad usage."""
    places = Places(Config.from_environment())
    try:
        match sys.argv[1:]:
            case ["save"]:
                save(places, sys.stdout.buffer)
            case ["load"]:
                print(json.dumps(load(places, sys.stdin.buffer)))
            case _:
                print("usage: python -m portal.backup save|load", file=sys.stderr)
                return 2
    except (BackupError, OSError, sqlite3.Error) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
