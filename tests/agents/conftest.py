"""One engine with the desktop image and one desktop for all tests of agents' input; what a test forks is removed after it.

`desk`   a real desktop: `.act()`, `.shell()`, `.editor()`, `.watch()`
`stack`  both processes of the portal before the engine
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from engine.client import EngineClient
from portal.setup import prepare
from tests.agents.desk import Desk
from tests.engine.support import Engine, host_counted, own_engine
from tests.leaks import LeakCounter
from tests.stream.stack import Stack, until

IMAGE = "webtop-xfce"
SOURCE = "source"


@pytest.fixture(scope="package")
def host() -> Iterator[LeakCounter]:
    with host_counted() as counter:
        yield counter


@pytest.fixture(scope="package")
def engine(host: LeakCounter) -> Iterator[Engine]:
    """A running engine with one desktop that is ready."""
    with own_engine(host, "tclone-agents-", _start) as made:
        yield made


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


@pytest.fixture
async def stack(engine: Engine) -> AsyncIterator[Stack]:
    """Both processes of the portal, before the real engine."""
    config = replace(engine.config, portal_user="root")
    made = Stack(config, await password_of(engine), 1, {})
    try:
        await made.start("control")
        await made.start("stream", "--workers", "1", "--bind", "127.0.0.1")
        await until(made.watching)
        yield made
    finally:
        await made.stop()


async def password_of(engine: Engine) -> str:
    """The admin's at the portal of this engine, whose directories are made when they are not there. It is told once, to whichever test comes first."""
    made = await asyncio.to_thread(prepare, replace(engine.config, portal_user="root"))
    if made.password is not None:
        _passwords[engine] = made.password
    return _passwords[engine]


_passwords: dict[Engine, str] = {}
