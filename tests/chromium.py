"""How the tests start Playwright and Chromium on the host: with places of their own, since both leave files with whoever runs them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from playwright.async_api import Playwright, async_playwright
from playwright.sync_api import Playwright as SyncPlaywright
from playwright.sync_api import sync_playwright

# The browser without any windows, as it was before it learned to hide them: the same engine at two thirds of the processor time. What the package has
# in /usr/bin is a shell around it, which an order to end would not get past.
_PROGRAM = Path("/usr/lib/chromium/chromium-headless-shell")
# No sandbox: the tests run as root, where Chromium refuses it. The pages under test are our own.
_OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-color-profile=srgb")


@contextmanager
def _places() -> Iterator[dict[str, str]]:
    """The variables for a driver of Playwright, which makes a directory for each browser and at times is stopped before it has removed it."""
    with tempfile.TemporaryDirectory(prefix="tclone-playwright-", ignore_cleanup_errors=True) as directory:
        yield {"TMPDIR": directory}


@asynccontextmanager
async def driver() -> AsyncIterator[Playwright]:
    """A running driver of Playwright."""
    with _places() as places:
        with mock.patch.dict(os.environ, places):
            started = await async_playwright().start()
        try:
            yield started
        finally:
            await started.stop()


@contextmanager
def sync_driver() -> Iterator[SyncPlaywright]:
    """The same, blocking."""
    with _places() as places:
        with mock.patch.dict(os.environ, places):
            started = sync_playwright().start()
        try:
            yield started
        finally:
            started.stop()


@contextmanager
def chromium() -> Iterator[dict[str, Any]]:
    """Arguments for Playwright's `chromium.launch`; what the browser left is removed at the end, so close it before."""
    with tempfile.TemporaryDirectory(prefix="tclone-chromium-", ignore_cleanup_errors=True) as home:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
        # The sound library makes a directory of its own in /tmp where there is none for what lasts as long as a login.
        yield {"executable_path": _PROGRAM, "args": list(_OPTIONS), "env": {**environment, "HOME": home, "XDG_RUNTIME_DIR": home}}
