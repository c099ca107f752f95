"""Builds of images, whoever began them, in the pages."""

from __future__ import annotations

import re

from playwright.async_api import Page, expect

from tests.portal.browsing import live
from tests.portal.fake_engine import FakeEngine


async def test_a_build_begun_elsewhere_is_seen_with_how_far_it_is(page: Page, engine: FakeEngine) -> None:
    """`make up` tells the address before it builds the first image: whoever comes then sees what is still to wait for."""
    await expect(page.get_by_text("No workspaces yet")).to_be_visible()
    engine.images = [image for image in engine.images if image["name"] != "webtop-xfce"]
    engine.building("webtop-xfce", phase="unpack", detail="41 of 212 packages", elapsed_ms=65_000)
    build = page.get_by_role("region", name="Building webtop-xfce")
    await expect(build).to_contain_text("Unpacking packages · 41 of 212 packages")
    await expect(build).to_contain_text(re.compile(r"1 min \d+ s"))
    # In one line below its title.
    title, line = await build.get_by_role("heading").bounding_box(), await build.locator(".choice-build").bounding_box()
    assert title and line and line["y"] >= title["y"] + title["height"] and line["height"] < 40 and line["width"] > 300
    # Whoever comes later sees it, too.
    await page.reload()
    await live(page)
    await expect(build).to_contain_text("41 of 212 packages")
    await page.get_by_role("button", name="Launch", exact=True).click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("status").filter(has_text="41 of 212 packages")).to_be_visible()
    await expect(dialog.get_by_role("button", name="Building…")).to_be_disabled()
    engine.building("webtop-xfce", phase="configure", error="no space is left in <b>/var</b>")
    await expect(dialog.locator(".choice-build")).to_contain_text("The build failed: no space is left in <b>/var</b>")
    await page.keyboard.press("Escape")
    engine.building("webtop-xfce", done=True)
    await expect(build).to_have_count(0)


async def test_the_engine_forgets_a_build_while_nobody_listens(page: Page, engine: FakeEngine) -> None:
    engine.building("webtop-xfce", phase="fetch")
    build = page.get_by_role("region", name="Building webtop-xfce")
    await expect(build).to_be_visible()
    await engine.stop()
    engine.builds.clear()
    await engine.start()
    await expect(build).to_have_count(0)


async def test_an_image_says_what_it_is(page: Page, engine: FakeEngine) -> None:
    await page.get_by_role("button", name="Launch", exact=True).click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.locator(".choice", has_text="webtop-xfce")).to_contain_text("An XFCE desktop")
