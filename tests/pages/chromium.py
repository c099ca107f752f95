"""One Chromium for all pages of a file: each test has contexts of its own in it, which share nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, Playwright

from tests.portal.browsing import close

_PROGRAM = "/usr/bin/chromium"
# No sandbox: the tests run as root, where Chromium refuses it. The pages under test are our own.
_OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-color-profile=srgb"]


class Chromium:
    """Started when it is first wanted, and again when a test has broken it. It takes 2.5 s of two processors to start, most tests less."""

    def __init__(self, playwright: Playwright) -> None:
        self._playwright = playwright
        self._running: Browser | None = None

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[Browser]:
        """The browser for one test. The contexts that the test leaves are closed after it; one that does not close costs the browser."""
        if self._running is None or not self._running.is_connected():
            self._running = await self._playwright.chromium.launch(executable_path=_PROGRAM, args=_OPTIONS)
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
