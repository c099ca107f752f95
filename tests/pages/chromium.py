"""One Chromium for all pages of a file: each test has contexts of its own in it, which share nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from playwright.async_api import Browser, Playwright

from tests.chromium import chromium
from tests.portal.browsing import close


class Chromium:
    """Started when it is first wanted, and again when a test has broken it. It takes 2.5 s of two processors to start, most tests less."""

    def __init__(self, playwright: Playwright) -> None:
        self._playwright = playwright
        self._running: Browser | None = None
        self._home = ExitStack()

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[Browser]:
        """The browser for one test. The contexts that the test leaves are closed after it; one that does not close costs the browser."""
        if self._running is None or not self._running.is_connected():
            self._home.close()
            self._running = await self._playwright.chromium.launch(**self._home.enter_context(chromium()))
        browser = self._running
        yield browser
        for context in browser.contexts:
            if not await close(context):
                await self.end()
                break

    async def end(self) -> None:
        """Close the browser, if there is one."""
        browser, self._running = self._running, None
        if browser is not None:
            await close(browser)
        self._home.close()
