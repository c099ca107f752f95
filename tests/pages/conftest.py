"""The pages in Chromium against the fake engine. The fixtures are those of tests/portal, and of a browser:

`front`    TLS and hosts before the portal, as the stream process does, for a browser
`browser`  Chromium, one for all tests of a file, which therefore share an event loop
`page`     a page of it, logged in

A fixture of a file that is a coroutine has `loop_scope="module"` for the same reason.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from engine.config import Config
from portal.app import Options
from tests.chromium import driver
from tests.pages.chromium import Chromium
from tests.portal.browsing import Browsing
from tests.portal.conftest import Portal, config, plain_config, quick_hashes, served  # noqa: F401
from tests.portal.fake_engine import FakeEngine
from tests.portal.front import Front


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.get_closest_marker("asyncio") is not None:
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


@pytest.fixture
def options() -> Options:
    """As patient as a portal is: none of these tests has a slow engine, but a machine that draws pages is slow at times."""
    return Options()


@pytest_asyncio.fixture(loop_scope="module")
async def engine(config: Config) -> AsyncIterator[FakeEngine]:  # noqa: F811
    async with FakeEngine(config.socket) as fake:
        yield fake


@pytest_asyncio.fixture(loop_scope="module")
async def portal(config: Config, options: Options, engine: FakeEngine) -> AsyncIterator[Portal]:  # noqa: F811
    async with served(config, options) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def front(portal: Portal) -> AsyncIterator[Front]:
    async with Front(portal.places) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Chromium]:
    async with driver() as playwright:
        made = Chromium(playwright)
        yield made
        await made.end()


@pytest_asyncio.fixture(loop_scope="module")
async def browser(chromium: Chromium) -> AsyncIterator[Browser]:
    async with chromium.lent() as lent:
        yield lent


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser, portal: Portal, front: Front) -> AsyncIterator[Page]:
    """A page that is logged in; it fails the test on any script error or breach of the content security policy."""
    browsing, made = await Browsing.login(browser, portal, front)
    yield made
    await browsing.end()
