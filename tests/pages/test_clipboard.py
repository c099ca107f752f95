"""The clipboard of a desktop as a box of text, for browsers that keep theirs to themselves."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect

from tests.portal.browsing import Browsing
from tests.portal.conftest import Portal
from tests.portal.fake_engine import FakeEngine
from tests.portal.front import Front


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser, portal: Portal, front: Front, engine: FakeEngine) -> AsyncIterator[Page]:
    engine.add(name="desk")
    engine.add(name="shell", desktop=False)
    browsing, made = await Browsing.login(browser, portal, front)
    await made.goto(f"{browsing.origin}/w/ws-1")
    yield made
    await browsing.end()


async def _allow(page: Page, *permissions: str) -> None:
    """What the browser lets the page do; everything else is refused from now on."""
    await page.context.clear_permissions()
    await page.context.grant_permissions(list(permissions))


async def test_text_goes_both_ways_whatever_the_browser_allows(page: Page, engine: FakeEngine) -> None:
    await page.get_by_role("button", name="Clipboard").click()
    dialog = page.get_by_role("dialog", name="Clipboard")
    box = dialog.get_by_label("The desktop's clipboard")
    await expect(box).to_have_value("copied")
    await expect(box).to_be_focused()
    await _allow(page, "notifications")
    await dialog.get_by_role("button", name="Copy", exact=True).click()
    await expect(dialog.get_by_role("status")).to_contain_text("does not let pages copy")
    # What remains to be done by hand is prepared.
    assert await box.evaluate("box => box.value.slice(box.selectionStart, box.selectionEnd)") == "copied"
    await _allow(page, "clipboard-read", "clipboard-write")
    await dialog.get_by_role("button", name="Copy", exact=True).click()
    await expect(dialog.get_by_role("status")).to_have_text("Copied.")
    await box.fill("mine: ä\n€")
    await dialog.get_by_role("button", name="Put into the desktop").click()
    await expect(dialog.get_by_role("status")).to_contain_text("It is there")
    acts = [action for verb, body in engine.calls if verb == "act" for action in body["actions"]]
    assert [(action["action"], action.get("text")) for action in acts] == [("get_clipboard", None), ("set_clipboard", "mine: ä\n€")]
    # Each desktop has its own: nothing went to another one. One without a desktop has none.
    await page.goto(page.url.replace("ws-1", "ws-2"))
    await expect(page.get_by_role("tab", name="Files")).to_be_visible()
    await expect(page.get_by_role("button", name="Clipboard")).to_be_hidden()


async def test_a_copy_button_that_the_browser_refuses_leaves_it_to_the_keys(page: Page) -> None:
    """Of a snippet and of a secret: what is to be copied is marked, the button says which keys do it, and they do."""
    await page.get_by_role("button", name="The same by the API").click()
    dialog = page.get_by_role("dialog")
    copy = dialog.get_by_role("button", name=re.compile("^(Copy|Press)"))
    await _refused_and_copied(page, copy, await dialog.locator(".snippet-code").inner_text())
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Share").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Make a link").click()
    secret = await dialog.locator(".secret").input_value()
    assert "/share#" in secret
    await _refused_and_copied(page, dialog.locator(".dialog-foot").get_by_role("button", name=re.compile("^(Copy|Press)")), secret)


async def _refused_and_copied(page: Page, copy: Locator, wanted: str) -> None:
    await _allow(page, "notifications")
    await copy.click()
    await expect(copy).to_have_text("Press Ctrl+C")
    await page.keyboard.press("Control+c")
    await _allow(page, "clipboard-read", "clipboard-write")
    assert await page.evaluate("() => navigator.clipboard.readText()") == wanted


_LOOKS = """box => {
  const line = document.createElement("input");
  box.parentElement.append(line);
  const looks = [box, line].map((one) => ["backgroundColor", "color", "borderTopColor", "borderTopWidth", "borderTopLeftRadius", "fontFamily"].map((name) => getComputedStyle(one)[name]));
  line.remove();
  return looks;
}"""


async def test_the_box_looks_like_other_fields(page: Page) -> None:
    """In the dark, too, where a browser's own box is grey."""
    await page.get_by_role("button", name="Clipboard").click()
    dialog = page.get_by_role("dialog", name="Clipboard")
    box = dialog.get_by_label("The desktop's clipboard")
    await expect(box).to_have_value("copied")
    await dialog.get_by_role("button", name="Copy", exact=True).focus()
    for scheme in ("light", "dark"):
        await page.emulate_media(color_scheme=scheme)
        box_looks, line_looks = await box.evaluate(_LOOKS)
        assert box_looks == line_looks, scheme


async def test_a_refusal_is_told_at_the_box(page: Page, engine: FakeEngine) -> None:
    await page.get_by_role("button", name="Clipboard").click()
    dialog = page.get_by_role("dialog", name="Clipboard")
    await expect(dialog.get_by_label("The desktop's clipboard")).to_have_value("copied")
    await dialog.get_by_label("The desktop's clipboard").fill("x" * 1_100_000)
    await dialog.get_by_role("button", name="Put into the desktop").click()
    await expect(dialog.get_by_role("alert")).to_be_visible()
    await expect(dialog.get_by_role("button", name="Put into the desktop")).to_be_enabled()
