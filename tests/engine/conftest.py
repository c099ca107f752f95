"""Fixtures: one pool for the session (its image is made once); a fresh engine process for each test that asks for `engine`, one for the others of
a file, which only ask for `client`, or for the engine that it speaks to: `serving`."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.client import EngineClient
from engine.config import Config
from engine.storage import Storage
from tests.engine.support import NATIVE, REPO, Engine, make_image, unseen_errors
from tests.leaks import LeakCounter


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with an engine of their own come first in their file: to each engine what another one makes is rubbish, and to a test a leak."""
    files = {path: place for place, path in reversed(list(enumerate(item.path for item in items)))}
    items.sort(key=lambda item: (files[item.path], _shares(item)))


def _shares(item: pytest.Item) -> bool:
    """Whether a test speaks to the file's engine."""
    fixtures = getattr(item, "fixturenames", [])
    return "serving" in fixtures and "engine" not in fixtures


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
async def engine(data: Path, tmp_path: Path, leaks: LeakCounter, variables: dict[str, str]) -> AsyncIterator[Engine]:
    """A running engine; everything it made must be gone after the test."""
    made = Engine(data, tmp_path / "run", variables)
    leaks.own(tmp_path)
    # The engine unmounts the pool when it ends with no workspace left; a test's engine shall leave the session's in place.
    await made.start()
    yield made
    if made.process is None:
        await made.start()
    await made.remove_everything()
    assert await made.stop() == 0
    assert unseen_errors(made.log) == []


@pytest.fixture(scope="module")
def variables() -> dict[str, str]:
    """Added to the environment of the engines of a file."""
    return {}


@pytest.fixture(scope="module")
def shared_engine(data: Path, tmp_path_factory: pytest.TempPathFactory, variables: dict[str, str]) -> Iterator[Engine]:
    """A running engine for those tests of a file that only speak to it; everything it made must be gone when it has ended."""
    place = tmp_path_factory.mktemp("shared")
    counter = LeakCounter()
    counter.own(tmp_path_factory.getbasetemp())
    counter.start()
    made = Engine(data, place / "run", variables)
    asyncio.run(made.start())
    yield made
    assert asyncio.run(made.stop()) == 0
    assert unseen_errors(made.log) == []
    counter.check()


@pytest.fixture
def serving(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """The engine that `client` speaks to: the test's own where it asks for `engine`, too, else the file's, which must outlive the test."""
    if "engine" in request.fixturenames:
        yield request.getfixturevalue("engine")
        return
    shared: Engine = request.getfixturevalue("shared_engine")
    process = shared.process
    yield shared
    assert process is not None and process.poll() is None, f"the engine ended:\n{shared.log.read_text()[-4000:]}"
    asyncio.run(shared.remove_everything())


@pytest.fixture
async def client(serving: Engine) -> AsyncIterator[EngineClient]:
    async with serving.client() as connected:
        yield connected
