"""A configuration of its own for each test, and small archives to import."""

from __future__ import annotations

import dataclasses
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.config import Config

Entry = tuple[tarfile.TarInfo, bytes]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """The repository's recipes; data and run directories below the test's own."""
    return dataclasses.replace(Config.from_environment(), data=tmp_path / "data", run=tmp_path / "run", cache_directory=None)


def entry(name: str, content: bytes = b"", **fields: object) -> Entry:
    """One tar member; `fields` are TarInfo's attributes (type, mode, linkname, pax_headers …)."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    info.mode = 0o644
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


def folder(name: str, mode: int = 0o755) -> Entry:
    return entry(name, type=tarfile.DIRTYPE, mode=mode)


def symlink(name: str, target: str) -> Entry:
    return entry(name, type=tarfile.SYMTYPE, linkname=target)


def hardlink(name: str, target: str) -> Entry:
    return entry(name, type=tarfile.LNKTYPE, linkname=target)


def tar_bytes(*entries: Entry, format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


class ProgressLog(list[tuple[str, str, float]]):
    """A Progress that remembers."""

    def __call__(self, phase: str, detail: str, elapsed_ms: float) -> None:
        self.append((phase, detail, elapsed_ms))

    @property
    def phases(self) -> list[str]:
        return list(dict.fromkeys(phase for phase, _, _ in self))


@pytest.fixture
def progress() -> ProgressLog:
    return ProgressLog()


@pytest.fixture
def archive(tmp_path: Path) -> Callable[..., Path]:
    """Writes entries as a tar and answers its path."""

    def make(*entries: Entry) -> Path:
        path = tmp_path / "root.tar"
        path.write_bytes(tar_bytes(*entries))
        return path

    return make


def leftovers(config: Config) -> list[str]:
    """What an operation that ended must not leave: stages, trash and partial archives."""
    images = config.pool / "images"
    found = [path.name for path in images.glob(".*")] if images.is_dir() else []
    return found + [path.name for path in config.cache.glob(".*")]
