"""A page of the portal in Chromium, for tests against the fake engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from playwright.async_api import Browser, BrowserContext, Frame, Locator, Page, expect

from tests.portal.front import Front

if TYPE_CHECKING:
    from tests.portal.conftest import Portal

# As long as the other tests wait for what must come: test machines can be busy.
MS = 30_000
_CLOSE_SECONDS = 30.0
_LOOK_SECONDS = 0.05
# Between the events of a key that is tapped, and tapped again.
_TAP_SECONDS = 0.05
# What the session key is called in a browser's storage (static/js/api.js).
_KEY = "tclone-key"
expect.set_options(timeout=MS)


class Browsing:
    """One browser context, logged in. `complaints`: script errors and breaches of the content security policy of all its pages."""

    def __init__(self, context: BrowserContext, origin: str) -> None:
        self.context = context
        self.origin = origin
        self.complaints: list[str] = []

    @classmethod
    async def login(cls, browser: Browser, portal: Portal, front: Front, **options: object) -> tuple[Browsing, Page]:
        """A context with what the login leaves in a browser, and its first page. The login page has tests of its own."""
        client = await portal.login()
        origin = f"https://tclone.localhost:{front.port}"
        cookies = [
            {"name": name, "value": value, "domain": "tclone.localhost", "path": "/", "secure": True, "httpOnly": True, "sameSite": "Strict", "expires": -1}
            for name, value in client.cookies.items()
        ]
        state = {"cookies": cookies, "origins": [{"origin": origin, "localStorage": [{"name": _KEY, "value": client.key}]}]}
        options = {"viewport": {"width": 1280, "height": 800}, **options}
        context = await browser.new_context(ignore_https_errors=True, storage_state=state, **options)  # type: ignore[arg-type]
        context.set_default_timeout(MS)
        made = cls(context, origin)
        page = await made.page()
        await page.goto(made.origin + "/")
        await live(page)
        return made, page

    async def page(self) -> Page:
        made = await self.context.new_page()
        made.on("pageerror", lambda error: self.complaints.append(str(error)))
        made.on("console", lambda message: self.complaints.append(message.text) if "Content Security Policy" in message.text else None)
        return made

    async def end(self) -> None:
        assert self.complaints == []
        for page in self.context.pages:
            assert await page.evaluate("window.hacked") is None
        await close(self.context)


async def close(opened: Browser | BrowserContext) -> bool:
    """Close a browser or one of its contexts; whether it did. Chromium was seen not to answer for minutes; it is killed in the end, together with its
    driver."""
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await opened.close()
    except TimeoutError:
        return False
    return True


async def becomes(look: Callable[[], Awaitable[object]], wanted: object, what: str = "") -> None:
    """Wait until `look` answers `wanted`: what a page draws, and what its frames hear, comes some time after what caused it. Raises AssertionError."""
    deadline = time.monotonic() + MS / 1000
    while (seen := await look()) != wanted:
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: {seen!r}, not {wanted!r}")
        await asyncio.sleep(_LOOK_SECONDS)


async def tap_control_twice(page: Page) -> None:
    """As quickly as a person does. Pages go by the events' own times, which are therefore told: on a busy machine each event takes its time to get there."""
    devtools = await page.context.new_cdp_session(page)
    began = time.time()
    for number, (kind, modifiers) in enumerate((("rawKeyDown", 2), ("keyUp", 0)) * 2):
        key = {"key": "Control", "code": "ControlLeft", "windowsVirtualKeyCode": 17, "location": 1, "modifiers": modifiers}
        await devtools.send("Input.dispatchKeyEvent", {"type": kind, "timestamp": began + number * _TAP_SECONDS, **key})
    await devtools.detach()


async def live(page: Page) -> None:
    """Wait until a page hears of changes."""
    await expect(page.locator("#connection")).to_have_attribute("data-state", "live")


def tile_of(page: Page, workspace: str) -> Locator:
    return page.locator(f'article[data-workspace="{workspace}"]')


def frame_of(page: Page, workspace: str) -> Frame:
    """The frame that shows a workspace's viewer."""
    return next(frame for frame in reversed(page.frames) if f"//{workspace}." in frame.url)


async def streams(page: Page, workspace: str) -> Frame:
    """Wait until a tile streams; its viewer's frame."""
    await expect(tile_of(page, workspace)).to_have_attribute("data-picture", "stream")
    return frame_of(page, workspace)


async def shows_still(page: Page, workspace: str) -> None:
    """Wait until a tile shows a still picture and no stream."""
    await expect(tile_of(page, workspace)).to_have_attribute("data-picture", "still")
    await expect(tile_of(page, workspace).locator("iframe")).to_have_count(0)
