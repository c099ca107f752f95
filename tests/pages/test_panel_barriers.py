"""No barriers that axe-core knows of in the panels of a workspace's page."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser, expect

from tests.pages.barriers import barriers
from tests.pages.test_narrow import OUTSIDE
from tests.portal.browsing import Browsing, live
from tests.portal.conftest import Portal
from tests.portal.fake_engine import FakeEngine
from tests.portal.front import Front


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_no_panel_has_a_serious_barrier(browser: Browser, portal: Portal, front: Front, engine: FakeEngine) -> None:
    engine.add(name="desk")
    engine.add(name="try", kind="branch", parent="ws-1", generation=1)
    browsing, page = await Browsing.login(browser, portal, front)
    await page.goto(browsing.origin + "/w/ws-2")
    await live(page)
    found: list[str] = []
    for width, height in ((1280, 800), (390, 844)):
        await page.set_viewport_size({"width": width, "height": height})
        for name, settled in (("Terminal", ".xterm-rows"), ("Files", ".files tbody tr"), ("Ports", ".port-list li"), ("Changes", ".change-list li")):
            await page.get_by_role("tab", name=name).click()
            await expect(page.locator(settled).first).to_be_visible()
            if name != "Terminal":
                await page.get_by_role("tabpanel", name=name).locator("summary").click()
            found += await barriers(page, f"{name}, {width} px")
        for about in ("conflicts", "refused"):
            setattr(engine.inside, about, {"/home/user/new.txt"})
            await page.get_by_label("Choose all that are listed").check()
            await page.get_by_role("button", name="Promote 3…").click()
            await expect(page.get_by_role("dialog").locator(".promote-reason")).to_be_visible()
            found += await barriers(page, f"promotion, {about}, {width} px")
            assert await page.evaluate(OUTSIDE) == [], f"promotion, {about}, {width} px"
            await page.keyboard.press("Escape")
            setattr(engine.inside, about, set())
        await page.get_by_role("button", name="notes.txt").click()
        await expect(page.locator(".diff")).to_be_visible()
        found += await barriers(page, f"difference, {width} px")
        await page.get_by_role("button", name="All changes").click()
        for name in ("Files", "Ports", "Changes"):
            await page.get_by_role("tab", name=name).click()
            await page.get_by_role("tabpanel", name=name).locator("summary").click()
    assert not found, "\n".join(found)
    await browsing.end()
