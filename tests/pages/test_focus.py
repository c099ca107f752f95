"""Where the keyboard is: what is typed goes where a person expects it, whatever viewers do by themselves."""

from __future__ import annotations

from playwright.async_api import Frame, Page, expect

from tests.portal.browsing import becomes, streams, tap_control_twice
from tests.portal.fake_engine import FakeEngine

_TAKES_FOCUS = "document.querySelector('input').focus()"


async def _frame_is_focused(page: Page, viewer: Frame) -> None:
    await expect(page.locator("article iframe").first).to_be_focused()
    # The browser has heard of it, too, and keys go there.
    await viewer.wait_for_function("document.hasFocus()")


async def test_a_terminal_opened_by_address_keeps_the_keyboard(page: Page, engine: FakeEngine) -> None:
    engine.add()
    await page.goto(page.url + "w/ws-1#terminal")
    screen = page.locator(".xterm-rows")
    await expect(screen).to_contain_text("$")
    viewer = await streams(page, "ws-1")
    await expect(page.locator(".xterm-helper-textarea")).to_be_focused()
    # As viewers do when they have loaded.
    await viewer.evaluate(_TAKES_FOCUS)
    await expect(page.locator(".xterm-helper-textarea")).to_be_focused()
    await page.keyboard.type("hello")
    await expect(screen).to_contain_text("hello")
    # What a person clicks at has it.
    await viewer.get_by_label("typed").click()
    await _frame_is_focused(page, viewer)
    await page.keyboard.type("there")
    await expect(viewer.get_by_label("typed")).to_have_value("there")


async def test_a_frame_gives_the_keyboard_back_to_nothing_when_nothing_had_it(page: Page, engine: FakeEngine) -> None:
    engine.add()
    engine.add()
    viewer = await streams(page, "ws-1")
    await page.locator("#launch").focus()
    await page.locator(".toolbar-title").click()
    await viewer.evaluate(_TAKES_FOCUS)
    await expect(page.locator("article iframe")).not_to_be_focused()
    await expect(page.locator("#launch")).not_to_be_focused()


async def test_after_a_fork_the_keyboard_is_in_the_desktop_again(page: Page, engine: FakeEngine) -> None:
    engine.add()
    viewer = await streams(page, "ws-1")
    await viewer.get_by_label("typed").click()
    await page.get_by_role("button", name="Fork", exact=True).click()
    await page.locator("dialog button[type=submit]").click()
    await expect(page.locator("article.tile")).to_have_count(2)
    await _frame_is_focused(page, viewer)
    await viewer.evaluate("window.keys = []; addEventListener('keydown', ({ key }) => keys.push(key))")
    await page.keyboard.type("on")
    await becomes(lambda: viewer.evaluate("keys"), ["o", "n"])


async def test_a_dialog_of_a_shortcut_gives_the_keyboard_back_to_the_desktop(page: Page, engine: FakeEngine) -> None:
    engine.add()
    viewer = await streams(page, "ws-1")
    await viewer.get_by_label("typed").click()
    for command in ("f", "d", "l", "?"):
        await tap_control_twice(page)
        await expect(page.get_by_role("dialog", name="Shortcut")).to_be_visible()
        await page.keyboard.press(command)
        await expect(page.locator("dialog[open]")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.locator("dialog[open]")).to_have_count(0)
        await _frame_is_focused(page, viewer)
