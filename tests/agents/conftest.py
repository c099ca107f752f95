"""One engine with the desktop image and one desktop for all tests of agents' input; what a test forks is removed after it.

`desk`   a real desktop: `.act()`, `.shell()`, `.editor()`, `.watch()`
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.client import EngineClient
from tests.agents.desk import Desk
from tests.engine.support import Engine
from tests.leaks import LeakCounter

IMAGE = "webtop-xfce"
SOURCE = "source"


@pytest.fixture(scope="package")
def host() -> Iterator[LeakCounter]:
    """Counts what the host holds before the engine starts and after it ended."""
    counter = LeakCounter()
    counter.start()
    yield counter
    counter.check(within=20.0)


@pytest.fixture(scope="package")
def engine(host: LeakCounter) -> Iterator[Engine]:
    """A running engine with one desktop that is ready."""
    # A short path, which Unix sockets need.
    directory = Path(tempfile.mkdtemp(prefix="tclone-agents-", dir="/tmp"))
    variables = {"TCLONE_CACHE": os.environ["TCLONE_CACHE"]} if "TCLONE_CACHE" in os.environ else {}
    made = Engine(directory / "data", directory / "run", variables)
    host.own_engine(made.config.data, made.run)
    try:
        asyncio.run(_start(made))
        yield made
        asyncio.run(made.remove_everything())
    finally:
        status = asyncio.run(made.stop())
        shutil.rmtree(directory)
    assert status == 0


async def _start(engine: Engine) -> None:
    await engine.start()
    async with engine.client() as client:
        async for _ in client.build(IMAGE):
            pass
        await client.launch(IMAGE, name=SOURCE, wait=True)


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[EngineClient]:
    async with engine.client() as connected:
        yield connected
        for workspace in await connected.list():
            if workspace["name"] != SOURCE:
                await connected.remove(workspace["id"])


@pytest.fixture
async def desk(client: EngineClient) -> AsyncIterator[Desk]:
    made = Desk(client, SOURCE)
    yield made
    await client.release(SOURCE)
    await made.shell("setxkbmap us; pkill -9 mousepad; pkill -9 xev; true")
