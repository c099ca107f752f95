"""The pages in Chromium: the story of a person, against the fake engine."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Page, expect

from tests.portal.browsing import becomes
from tests.portal.fake_engine import FakeEngine
from tests.portal.front import Front

HOSTILE = '<img src=x onerror="window.hacked=1">'


async def test_launch_fork_and_discard(page: Page, engine: FakeEngine, front: Front) -> None:
    engine.step = 0.05
    await expect(page.get_by_text("No workspaces yet")).to_be_visible()
    await page.get_by_role("button", name="Launch", exact=True).click()
    await expect(page.get_by_role("radio", name="webtop-xfce")).to_be_checked()
    await page.get_by_label("Ports to publish").fill("3000")
    await page.locator("dialog button[type=submit]").click()
    await expect(page.frame_locator("iframe").get_by_text("File Manager")).to_be_visible()
    await page.get_by_role("button", name="Fork", exact=True).click()
    await page.get_by_role("radio", name="2", exact=True).check()
    await page.locator("dialog button[type=submit]").click()
    await expect(page.locator("article.tile")).to_have_count(3)
    await expect(page.locator(".toast").last).to_contain_text(re.compile(r"paused 284\s*ms.*usable after 348\s*ms"))
    await page.get_by_role("button", name="All live").click()
    await expect(page.locator("article.tile iframe")).to_have_count(3)
    for workspace in ("ws-1", "ws-2", "ws-3"):
        frame = page.frame_locator(f'article[data-workspace="{workspace}"] iframe')
        await expect(frame.get_by_text("File Manager")).to_be_visible()
    assert sorted(set(front.entered)) == ["ws-1", "ws-2", "ws-3"]
    assert not any("code=" in line for line in front.requests), "no ticket in an address"
    tile = page.locator('article[data-workspace="ws-3"]')
    await expect(tile.get_by_role("link", name="Port 3000")).to_have_attribute("href", f"http://localhost:{engine.workspaces['ws-3']['ports']['3000']}")
    await tile.get_by_role("button", name="Discard").click()
    await page.get_by_role("dialog").get_by_role("button", name="Discard").click()
    await expect(page.locator("article.tile")).to_have_count(2)
    assert "ws-3" not in engine.workspaces


async def test_one_that_is_paused_says_so_and_goes_on_at_a_click(page: Page, engine: FakeEngine) -> None:
    engine.add(paused=True)
    tile = page.locator('article[data-workspace="ws-1"]')
    await expect(tile.get_by_text("Its programs stand still")).to_be_visible()
    await expect(tile.get_by_role("button", name="Fork", exact=True)).to_be_disabled()
    await tile.get_by_role("button", name="Let it go on").click()
    await expect(page.frame_locator("article iframe").get_by_text("File Manager")).to_be_visible()
    assert engine.workspaces["ws-1"]["paused"] is False


async def test_a_launch_that_failed_is_tried_again_as_it_was(page: Page, engine: FakeEngine) -> None:
    engine.add(name="desk", state="failed", error="the X server did not start", network="none", memory_limit=2 << 30, disk_limit=10 << 30, cpu_limit=1.5)
    await page.locator('article[data-workspace="ws-1"]').get_by_role("button", name="Retry").click()
    await expect(page.locator('article[data-workspace="ws-2"]')).to_be_visible()
    asked = next(body for verb, body in engine.calls if verb == "launch")
    assert {name: asked[name] for name in ("image", "name", "memory", "disk", "cpus", "network")} == {
        "image": "webtop-xfce", "name": "desk", "memory": 2 << 30, "disk": 10 << 30, "cpus": 1.5, "network": "none"
    }
    assert [port["container"] for port in asked["ports"]] == [3000]


async def test_hostile_names_are_shown_as_text(page: Page, engine: FakeEngine) -> None:
    engine.add(name=HOSTILE, state="failed", error=HOSTILE, desktop=False)
    await expect(page.locator(".tile-name")).to_have_text(HOSTILE)
    await expect(page.locator("article img")).to_have_count(0)


async def test_a_refused_fork_says_why_and_can_be_tried_again(page: Page, engine: FakeEngine) -> None:
    engine.add(desktop=False, image="workspace")
    engine.refuse("fork", "unsupported", "pid 7 (/usr/bin/x): io_uring is in use")
    await page.get_by_role("button", name="Fork", exact=True).click()
    await page.locator("dialog button[type=submit]").click()
    await expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("io_uring is in use", ignore_case=True)
    engine.allow("fork")
    await page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    await expect(page.locator("article.tile")).to_have_count(2)


async def test_a_lost_engine_is_said_and_comes_back(page: Page, engine: FakeEngine) -> None:
    await engine.stop()
    await expect(page.get_by_text("The engine is down")).to_be_visible()
    await expect(page.get_by_role("button", name="Launch", exact=True)).to_be_disabled()
    await engine.start()
    await expect(page.get_by_text("The engine is down")).to_be_hidden()


async def test_logout_leaves_nothing_and_leads_to_the_login(page: Page) -> None:
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_role("heading", name="Log in to TClone")).to_be_visible()
    assert await page.evaluate("localStorage.getItem('tclone-key')") is None


@pytest.mark.parametrize("width", [1280, 390])
async def test_nothing_runs_out_of_the_page(page: Page, engine: FakeEngine, width: int) -> None:
    for _ in range(3):
        engine.add(name="a-name-as-long-as-a-name-may-be-0123456789", desktop=False, image="workspace")
    await page.set_viewport_size({"width": width, "height": 800})
    await expect(page.locator("article.tile")).to_have_count(3)
    await becomes(lambda: page.evaluate("document.documentElement.scrollWidth <= innerWidth"), True, "the page is as wide as the window")


async def test_only_what_can_be_watched_is_shared(page: Page, engine: FakeEngine) -> None:
    desktop = engine.add()
    await page.goto(page.url + "w/ws-1")
    share = page.get_by_role("button", name="Share", exact=True)
    await expect(share).to_be_visible()
    engine.changed(desktop, state="failed", error="the X server did not start")
    await expect(page.get_by_text("It did not start")).to_be_visible()
    await expect(share).to_be_hidden()
