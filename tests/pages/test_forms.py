"""Forms: nothing is filled in that nobody asked for, the field at fault is marked, what is to be copied is all there."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from playwright.async_api import Browser, Locator, Page, expect

from tests.portal.browsing import becomes
from tests.portal.conftest import OWN_PASSWORD, Portal
from tests.portal.fake_engine import FakeEngine
from tests.portal.front import Front


async def _faulty(within: Page | Locator, label: str) -> None:
    """Exactly this field is at fault: marked, described by the message, and it has the keyboard."""
    field = within.get_by_label(label, exact=True)
    await expect(field).to_have_attribute("aria-invalid", "true")
    await expect(field).to_be_focused()
    await expect(within.locator("[aria-invalid]")).to_have_count(1)
    described = (await field.get_attribute("aria-describedby") or "").split()
    page = within if isinstance(within, Page) else within.page
    assert [await page.locator(f"#{name}").get_attribute("role") for name in described][0] in ("alert", "status")


async def _pressed(press: Callable[[], Awaitable[None]], within: Page | Locator, label: str) -> None:
    await press()
    await _faulty(within, label)


async def test_the_login_marks_what_is_at_fault(browser: Browser, front: Front, portal: Portal) -> None:
    admin = await portal.login()
    made = await (await admin.request("POST", "/api/v1/users", {"user": "anna", "role": "user"})).json()
    context = await browser.new_context(ignore_https_errors=True)
    page = await context.new_page()
    await page.goto(f"https://tclone.localhost:{front.port}/login")
    log_in = page.get_by_role("button", name="Log in").click
    assert await page.get_by_label("User").input_value() == ""
    await _pressed(log_in, page, "User")
    await page.get_by_label("User").fill("anna")
    await _pressed(log_in, page, "Password")
    await page.get_by_label("Password").fill(made["password"])
    await log_in()
    await page.get_by_label("New password", exact=True).fill("short")
    await page.get_by_label("New password again").fill("shorter")
    await _pressed(log_in, page, "New password again")
    await page.get_by_label("New password again").fill("short")
    await _pressed(log_in, page, "New password")
    await expect(page.get_by_role("alert")).to_contain_text("A password has 12 to")
    await page.get_by_label("New password", exact=True).fill(OWN_PASSWORD)
    await expect(page.locator("[aria-invalid]")).to_have_count(0)
    await context.close()


async def test_a_change_of_password_marks_what_is_at_fault(page: Page, portal: Portal) -> None:
    await page.get_by_role("link", name="Account").click()
    change = page.get_by_role("button", name="Change password").click
    for current, fresh, again, fault in (
        (portal.password, "too short", "too short", "New password"),
        (portal.password, OWN_PASSWORD, "another", "New password again"),
        ("not the password", OWN_PASSWORD, OWN_PASSWORD, "Current password"),
    ):
        await page.get_by_label("Current password").fill(current)
        await page.get_by_label("New password", exact=True).fill(fresh)
        await page.get_by_label("New password again").fill(again)
        await _pressed(change, page.locator("#password"), fault)


async def test_every_dialog_marks_what_is_at_fault(page: Page, engine: FakeEngine) -> None:
    engine.add(name="desk")
    dialog = page.get_by_role("dialog")
    launch = dialog.get_by_role("button", name="Launch").click
    await page.get_by_role("button", name="Launch", exact=True).click()
    await expect(dialog.get_by_role("radio", name="webtop-xfce")).to_be_checked()
    assert await dialog.get_by_label("Ports to publish").input_value() == ""
    await dialog.get_by_label("Ports to publish").fill("eighty")
    await _pressed(launch, dialog, "Ports to publish")
    await dialog.get_by_label("Ports to publish").fill("")
    for name in ("Not A Name", "desk"):
        await dialog.get_by_label("Name (optional)").fill(name)
        await _pressed(launch, dialog, "Name (optional)")
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Fork", exact=True).click()
    await dialog.get_by_label("Name (optional)").fill("-")
    fork = dialog.get_by_role("button", name="Fork").click
    await _pressed(fork, dialog, "Name (optional)")
    await dialog.get_by_label("Name (optional)").fill("desk")
    await _pressed(fork, dialog, "Name (optional)")
    await expect(dialog.get_by_role("alert")).to_contain_text("The name desk is taken")
    # Another try would find it taken again.
    await expect(dialog.get_by_role("button", name="Retry")).to_have_count(0)
    # Of several copies the number that makes the name a taken one is not in the field, the fault is.
    engine.add(name="copy-1")
    await dialog.get_by_role("radio", name="2", exact=True).check()
    await dialog.get_by_label("Name (optional)").fill("copy")
    await _pressed(fork, dialog, "Name (optional)")
    await expect(dialog.get_by_role("alert")).to_contain_text("The name copy-1 is taken")
    await page.keyboard.press("Escape")

    await page.goto(page.url + "account")
    await page.get_by_role("button", name="New token").click()
    create = dialog.get_by_role("button", name="New token").click
    await _pressed(create, dialog, "Name")
    await page.keyboard.press("Escape")

    await page.goto(page.url.removesuffix("account") + "admin/users")
    await page.get_by_role("button", name="Add user").click()
    for name in ("no name", "admin"):
        await dialog.get_by_label("Name", exact=True).fill(name)
        await _pressed(dialog.locator("button[type=submit]").click, dialog, "Name")


async def test_settings_and_panels_mark_what_is_at_fault(page: Page, engine: FakeEngine) -> None:
    engine.add(name="desk")
    await page.goto(page.url + "admin/settings")
    limits = page.locator("form.stack input")
    await limits.nth(1).fill("plenty")
    await page.get_by_role("button", name="Save", exact=True).click()
    await expect(limits.nth(1)).to_have_attribute("aria-invalid", "true")
    await expect(limits.nth(1)).to_be_focused()
    await page.goto(page.url.removesuffix("admin/settings") + "w/ws-1#ports")
    await page.get_by_label("Another port").fill("none")
    await _pressed(page.locator("form.publish button").click, page.locator(".ports-panel"), "Another port")
    await page.get_by_role("tab", name="Files").click()
    await page.get_by_role("button", name="New folder").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name", exact=True).fill("a/b")
    await _pressed(dialog.get_by_role("button", name="Create").click, dialog, "Name")


async def test_a_secret_is_shown_whole(page: Page) -> None:
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.goto(page.url + "account")
    await page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name", exact=True).fill("agent")
    await dialog.get_by_role("button", name="New token").click()
    secret = dialog.locator(".secret")
    await expect(secret).to_have_value(re.compile(r"^tct_.{40}"))
    shown = lambda: secret.evaluate("(box) => [box.scrollWidth <= box.clientWidth, box.scrollHeight <= box.clientHeight]")  # noqa: E731
    await becomes(shown, [True, True], "all of it is in sight, across and down")
