"""No barriers that axe-core knows of, on every page and dialog, in both colour schemes, on a desk and on a phone (WCAG 2.2 A and AA)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.pages.barriers import barriers
from tests.portal.browsing import Browsing, becomes, shows_still, streams, tap_control_twice
from tests.portal.conftest import OWN_PASSWORD, Portal
from tests.portal.fake_engine import FakeEngine
from tests.portal.front import Front
from tests.portal.test_factors import App, enrolled

_WIDTHS = {"desk": (1280, 800), "phone": (390, 844)}


async def _in_dialog(page: Page, open_it: Callable[[], Awaitable[Any]], unfold: bool = True) -> None:
    await open_it()
    await expect(page.get_by_role("dialog")).to_be_visible()
    if unfold:
        await page.get_by_role("dialog").locator("summary").click()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("width", ["desk", "phone"])
async def test_no_page_has_a_serious_barrier(
    browser: Browser, portal: Portal, front: Front, engine: FakeEngine, width: str
) -> None:
    size = _WIDTHS[width]
    viewport = {"width": size[0], "height": size[1]}
    found: list[str] = []
    stranger = await browser.new_context(ignore_https_errors=True, viewport=viewport)  # type: ignore[arg-type]
    page = await stranger.new_page()
    await page.goto(f"https://tclone.localhost:{front.port}/login")
    found += await barriers(page, "login")
    await page.get_by_role("button", name="Log in").click()
    found += await barriers(page, "login refused")
    await enrolled(portal, await portal.user(await portal.login(), "anna"))
    await page.get_by_label("User").fill("anna")
    await page.get_by_label("Password").fill(OWN_PASSWORD)
    await page.get_by_role("button", name="Log in").click()
    await expect(page.get_by_label("Code")).to_be_visible()
    found += await barriers(page, "login, second step")
    await stranger.close()

    browsing, page = await Browsing.login(browser, portal, front, viewport=viewport)
    await expect(page.get_by_text("No workspaces yet")).to_be_visible()
    found += await barriers(page, "empty")
    source = engine.add(name="desk", ports={"3000": 43827, "5173": 43828})
    engine.add(name="desk-clone-0", kind="branch", parent=source["id"], label="try the new parser")
    engine.add(name="box", desktop=False, image="workspace")
    engine.add(name="broken", state="failed", error="the X server did not start")
    engine.add(name="coming", state="starting")
    engine.add(name="orphan", kind="branch", parent="ws-99")
    await streams(page, "ws-1")
    await shows_still(page, "ws-2")
    found += await barriers(page, "grid")
    await page.get_by_role("button", name="All live").click()
    await streams(page, "ws-2")
    found += await barriers(page, "all live")
    actions = page.locator('article[data-workspace="ws-1"] .tile-actions')
    for name in ("Fork", "Lifetime", "Discard"):
        # By the keyboard: a narrow tile hides some of them.
        if await actions.get_by_role("button", name=name).is_visible():
            await _in_dialog(page, actions.get_by_role("button", name=name).click)
            found += await barriers(page, f"{name} dialog")
            await page.keyboard.press("Escape")
    await _in_dialog(page, page.get_by_role("button", name="Launch", exact=True).click)
    await expect(page.get_by_role("radio", name="webtop-xfce")).to_be_checked()
    found += await barriers(page, "Launch dialog")
    await page.keyboard.press("Escape")
    await tap_control_twice(page)
    await expect(page.get_by_role("dialog", name="Shortcut")).to_be_visible()
    found += await barriers(page, "shortcut bar")
    await page.keyboard.press("?")
    await expect(page.get_by_role("heading", name="Keyboard shortcuts")).to_be_visible()
    found += await barriers(page, "help")
    for path, name in (("/w/ws-1", "alone"), ("/w/ws-3", "alone, headless"), ("/w/ws-77", "missing"), ("/compare/ws-1/ws-2", "compare"), ("/nowhere", "error")):
        await page.goto(browsing.origin + path)
        if name == "compare":
            await streams(page, "ws-1")
            await streams(page, "ws-2")
            await page.get_by_role("button", name="Mirror input").click()
        elif name != "error":
            await expect(page.locator("#connection")).to_have_attribute("data-state", "live")
        found += await barriers(page, name)
    assert not found, "\n".join(found)
    await browsing.end()


def _have_shown(portal: Portal, at: float) -> None:
    """As if everybody had shown who they are at that time (Unix seconds)."""
    for session in portal.control.sessions._by_id.values():
        session.shown = at


async def look_at_second_factor(page: Page, portal: Portal, look: Callable[[str], Awaitable[None]]) -> None:
    """On the account page: setting it up, its recovery codes, and the question who it is."""
    # The login may be minutes ago by now.
    _have_shown(portal, time.time())
    await page.get_by_role("button", name="Set up").click()
    dialog = page.get_by_role("dialog")
    await dialog.locator("summary").click()
    await look("Set up a second factor")
    await dialog.get_by_label("Code that the app shows").fill(App(portal, ((await dialog.locator(".secret-text").text_content()) or "").replace(" ", "")).code())
    await page.keyboard.press("Enter")
    await expect(dialog.get_by_role("button", name="Done")).to_be_visible()
    await look("Recovery codes")
    await dialog.get_by_role("button", name="Done").click()
    _have_shown(portal, 0.0)
    await page.get_by_role("region", name="Second factor").get_by_role("button", name="Remove").click()
    await dialog.get_by_role("button", name="Remove").click()
    await expect(page.get_by_role("dialog", name="Is it you?")).to_be_visible()
    await look("Is it you?")
    await page.keyboard.press("Escape")
    await look("Remove the second factor")
    await page.keyboard.press("Escape")
    await look("account with a second factor")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("width", ["desk", "phone"])
async def test_no_page_of_accounts_and_admins_has_a_serious_barrier(
    browser: Browser, portal: Portal, front: Front, engine: FakeEngine, width: str
) -> None:
    size = _WIDTHS[width]
    viewport = {"width": size[0], "height": size[1]}
    engine.add(name="desk-with-a-name-that-is-rather-long-41-ch")
    engine.add(name="broken", state="failed", error="the X server did not start")
    admin = await portal.login()
    anna = await portal.user(admin, "anna")
    await enrolled(portal, anna)
    await anna.request("POST", "/api/v1/workspaces", {"image": "webtop-xfce", "name": "annas"})
    await admin.request("POST", "/api/v1/users", {"user": "somebody.with-a-long-address@department.example.org"})
    link = (await (await admin.request("POST", "/api/v1/workspaces/ws-1/shares", {"label": "the review"})).json())["link"]
    browsing, page = await Browsing.login(browser, portal, front, viewport=viewport)
    found: list[str] = []

    async def look(where: str) -> None:
        found.extend(await barriers(page, where))
        await becomes(lambda: page.evaluate("Math.max(0, document.documentElement.scrollWidth - innerWidth)"), 0, f"{where}: pixels wider than the window")

    for path, settled in (("/docs", ".operation"), ("/docs/how-to/operate", "table"), ("/account", "#tokens button"), ("/admin", ".list td"), ("/admin/users", ".list td"), ("/admin/settings", "#part form"), ("/admin/audit", ".list td")):
        await page.goto(browsing.origin + path)
        await expect(page.locator(settled).first).to_be_visible()
        for summary in await page.locator("main summary").all():
            await summary.click()
        await look(path)
        if path == "/account":
            await _in_dialog(page, page.get_by_role("button", name="New token").click, unfold=False)
            await look("New token")
            await page.keyboard.press("Escape")
            await look_at_second_factor(page, portal, look)
        if path == "/admin/users":
            for name in ("Quota: anna", "Add user"):
                await _in_dialog(page, page.get_by_role("button", name=name).click)
                await look(name)
                await page.keyboard.press("Escape")
            for name in ("Remove: anna", "Remove second factor: anna"):
                await page.get_by_role("button", name=name).click()
                await look(name)
                await page.keyboard.press("Escape")
    await page.goto(browsing.origin + "/w/ws-1")
    for name in ("The same by the API", "Share"):
        await page.get_by_role("button", name=name).click()
        await expect(page.get_by_role("dialog")).to_be_visible()
        await look(name)
        await page.keyboard.press("Escape")
    await page.goto(browsing.origin + "/share#" + link.partition("#")[2])
    await expect(page.locator("iframe")).to_have_css("opacity", "1")
    await look("share")
    # Without a secret in the address, and in a page of its own: it says so.
    page = await browsing.page()
    await page.goto(browsing.origin + "/share")
    await expect(page.get_by_role("alert")).to_contain_text("not complete")
    await look("share without a secret")
    assert not found, "\n".join(found)
    await browsing.end()
