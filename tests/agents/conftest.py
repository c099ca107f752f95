"""One engine with the desktop image and one desktop for all tests of agents' input; what a test forks is removed after it.

`desk`   a real desktop: `.act()`, `.shell()`, `.editor()`, `.watch()`
`portal` the control process before the engine
`stack`  both processes of the portal before the engine
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from engine.client import EngineClient
from portal.app import Options
from portal.control import serving
from portal.setup import prepare
from tests.agents.desk import Desk, eventually
from tests.engine.support import Engine, own_engine
from tests.portal.conftest import Portal
from tests.stream.stack import Stack, until

IMAGE = "webtop-xfce"
SOURCE = "source"


@pytest.fixture(scope="package")
def engine() -> Iterator[Engine]:
    """A running engine with one desktop that is ready."""
    with own_engine("tclone-agents-", IMAGE, lambda client: client.launch(IMAGE, name=SOURCE, wait=True)) as made:
        yield made


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


@pytest.fixture
async def portal(engine: Engine) -> AsyncIterator[Portal]:
    """The control process, before the real engine."""
    config = replace(engine.config, portal_user="root")
    password = await password_of(engine)
    async with serving(config, Options()) as control:
        served = Portal(config, password, control)
        await eventually("the portal sees the engine", lambda: _up(served))
        yield served
        await served.close()


async def _up(portal: Portal) -> bool:
    return portal.control.feed.engine == "up"


async def password_of(engine: Engine) -> str:
    """The admin's at the portal of this engine, whose directories are made when they are not there. It is told once, to whichever test comes first."""
    made = await asyncio.to_thread(prepare, replace(engine.config, portal_user="root"))
    if made.password is not None:
        _passwords[engine] = made.password
    return _passwords[engine]


_passwords: dict[Engine, str] = {}
