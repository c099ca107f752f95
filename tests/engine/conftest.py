"""Fixtures: one pool for the session (its image is made once), a fresh engine process for each test."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.client import EngineClient
from engine.config import Config
from engine.storage import Storage
from tests.engine.support import NATIVE, REPO, Engine, make_image
from tests.leaks import LeakCounter


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data directory whose pool holds the tiny image. The pool stays mounted for the session: each engine finds it so."""
    directory = tmp_path_factory.mktemp("data")
    storage = Storage(directory)
    storage.open()
    make_image(Config(directory, directory / "run", NATIVE, REPO / "images", 0, "nobody-of-tclone"))
    yield directory
    storage.close()
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
async def engine(data: Path, tmp_path: Path, leaks: LeakCounter) -> AsyncIterator[Engine]:
    """A running engine; everything it made must be gone after the test."""
    made = Engine(data, tmp_path / "run")
    leaks.own(tmp_path)
    # The engine unmounts the pool when it ends with no workspace left; a test's engine shall leave the session's in place.
    await made.start()
    yield made
    if made.process is None:
        await made.start()
    await made.remove_everything()
    assert await made.stop() == 0


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[EngineClient]:
    async with engine.client() as connected:
        yield connected
