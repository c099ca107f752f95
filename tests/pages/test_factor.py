"""Second factors in Chromium: set up on the account page, asked for at the login, removed; and the question who it is before what decides about logins."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from portal import factors
from portal.sessions import FRESH_SECONDS
from tests.portal.browsing import Browsing
from tests.portal.conftest import Portal
from tests.portal.front import Front
from tests.portal.test_factors import App, enrolled


@pytest_asyncio.fixture(loop_scope="module")
async def stranger(browser: Browser, front: Front) -> AsyncIterator[Page]:
    """A page of a browser that nobody is logged in with, at the login."""
    context = await browser.new_context(ignore_https_errors=True)
    browsing = Browsing(context, f"https://tclone.localhost:{front.port}")
    page = await browsing.page()
    await page.goto(f"{browsing.origin}/login")
    yield page
    await browsing.end()


async def log_in(page: Page, password: str, user: str = "admin") -> None:
    await page.get_by_label("User").fill(user)
    await page.get_by_label("Password").fill(password)
    await page.get_by_role("button", name="Log in").click()


def make_stale(portal: Portal) -> None:
    """As if everybody had shown who they are longer ago than it counts."""
    for session in portal.control.sessions._by_id.values():
        session.shown = time.time() - FRESH_SECONDS - 1


async def set_up(page: Page, portal: Portal) -> tuple[App, list[str]]:
    """By the page, as a person without a camera does it: the app and the recovery codes."""
    await page.get_by_role("region", name="Second factor").get_by_role("button", name="Set up").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_have_accessible_name("Set up a second factor")
    await expect(dialog.get_by_role("img", name="QR code")).to_be_visible()
    await dialog.get_by_text("Or type the secret").click()
    app = App(portal, ((await dialog.locator(".secret-text").text_content()) or "").replace(" ", ""))
    await dialog.get_by_label("Code that the app shows").fill(app.code())
    await page.keyboard.press("Enter")
    await expect(dialog.get_by_role("button", name="Done")).to_be_visible()
    await expect(dialog).to_have_accessible_name("Recovery codes")
    codes = (await dialog.get_by_role("textbox").input_value()).split()
    await dialog.get_by_role("button", name="Done").click()
    return app, codes


async def test_one_is_set_up_asked_for_and_removed(page: Page, stranger: Page, portal: Portal) -> None:
    await page.goto(page.url + "account")
    app, codes = await set_up(page, portal)
    part = page.get_by_role("region", name="Second factor")
    await expect(part).to_contain_text(f"{factors.RECOVERY_CODES} recovery codes are left")
    await log_in(stranger, portal.password)
    code = stranger.get_by_label("Code")
    await expect(code).to_be_focused()
    await code.fill(app.wrong())
    await stranger.keyboard.press("Enter")
    await expect(stranger.get_by_role("alert")).to_contain_text("This code is wrong")
    await expect(code).to_have_attribute("aria-invalid", "true")
    await code.fill(codes[0])
    await stranger.keyboard.press("Enter")
    await expect(stranger.locator("#connection")).to_have_attribute("data-state", "live")
    await part.get_by_role("button", name="New recovery codes").click()
    await page.get_by_role("dialog").get_by_role("button", name="New recovery codes").click()
    fresh = page.get_by_role("dialog").get_by_role("textbox")
    await expect(fresh).not_to_have_value("")
    assert not set((await fresh.input_value()).split()) & set(codes)
    await page.get_by_role("button", name="Done").click()
    await part.get_by_role("button", name="Remove").click()
    await page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    await expect(part.get_by_role("button", name="Set up")).to_be_visible()


async def test_before_a_token_is_made_the_person_shows_who_it_is(page: Page, portal: Portal) -> None:
    await page.goto(page.url + "account")
    app, _ = await set_up(page, portal)
    make_stale(portal)
    await page.get_by_role("button", name="New token").click()
    making = page.get_by_role("dialog", name="New token")
    await making.get_by_label("Name").fill("agent")
    await page.keyboard.press("Enter")
    asking = page.get_by_role("dialog", name="Is it you?")
    await expect(asking.get_by_label("Your password")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(asking).to_be_hidden()
    await expect(making.get_by_role("alert")).to_have_text("Nothing was done: you did not show who you are.")
    await making.get_by_role("button", name="New token").click()
    await asking.get_by_label("Your password").fill("wrong")
    await asking.get_by_label("Code").fill(app.code())
    await page.keyboard.press("Enter")
    await expect(asking.get_by_role("alert")).to_have_text("The password is wrong.")
    await asking.get_by_label("Your password").fill(portal.password)
    await page.keyboard.press("Enter")
    await expect(making.get_by_role("button", name="Done")).to_be_visible()
    assert (await making.get_by_role("textbox").input_value()).startswith("tct_")
    await making.get_by_role("button", name="Done").click()
    await expect(page.get_by_role("region", name="API tokens")).to_contain_text("agent")
    # Once is enough for a while.
    await page.get_by_role("button", name="New token").click()
    await making.get_by_label("Name").fill("another")
    await page.keyboard.press("Enter")
    await expect(making.get_by_role("button", name="Done")).to_be_visible()


async def test_who_must_have_one_is_led_to_it_and_then_on(page: Page, stranger: Page, portal: Portal) -> None:
    admin = await portal.login()
    anna = await portal.user(admin, "anna")
    await page.goto(page.url + "admin/settings")
    box = page.get_by_role("checkbox", name="Everybody with a password must have a second factor")
    await box.check()
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("status").filter(has_text="saved")).to_be_visible()
    assert (await anna.request("GET", "/api/v1/workspaces")).status == 403
    await log_in(stranger, "four words of my choosing", "anna")
    await stranger.wait_for_url("**/account")
    await expect(stranger.get_by_role("region", name="Second factor")).to_contain_text("Everybody has to have one here")
    await expect(stranger.get_by_role("heading", level=2)).to_have_text(["Second factor"])
    await set_up(stranger, portal)
    await expect(stranger.get_by_role("heading", name="API tokens")).to_be_visible()
    await expect(stranger.locator("#connection")).to_have_attribute("data-state", "live")


async def test_an_admin_removes_one_after_a_question(page: Page, portal: Portal) -> None:
    anna = await portal.user(await portal.login(), "anna")
    await enrolled(portal, anna)
    await page.goto(page.url + "admin/users")
    row = page.get_by_role("row", name="anna")
    await expect(row).to_contain_text("Enabled, second factor")
    await page.get_by_role("button", name="Remove second factor: anna").click()
    dialog = page.get_by_role("dialog", name="Remove the second factor of anna?")
    await dialog.get_by_role("button", name="Remove second factor").click()
    await expect(row).not_to_contain_text("second factor")
    account = portal.control.access.users.find("anna")
    assert account is not None and not account.factor
