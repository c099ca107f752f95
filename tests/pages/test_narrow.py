"""A phone: 390 pixels, no pointer that could rest on anything."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, expect

from tests.pages.names import cut_before
from tests.portal.browsing import Browsing, becomes, live, streams, tile_of
from tests.portal.conftest import Portal
from tests.portal.fake_engine import FakeEngine
from tests.portal.front import Front

_WIDTH = 390

# What stands out of the window, or of a part of the page that is moved sideways to see the rest. Code, tables, differences and rows of tabs may be moved.
OUTSIDE = """() => {
  const width = document.documentElement.clientWidth;
  const movable = (element) => element.closest("pre, .files, .diff, .tabs, .scrolls, .terminal") !== null;
  const found = document.documentElement.scrollWidth > width ? ["the page itself"] : [];
  for (const element of document.querySelectorAll("body *")) {
    const box = element.getBoundingClientRect();
    if (!box.width || !box.height || movable(element) || element.closest(".sr-only, .desktop, .skip, canvas")) continue;
    const style = getComputedStyle(element);
    if (style.clipPath !== "none" || element.closest("[style*=clip]")) continue;
    const name = `${element.tagName} ${element.className} ${element.textContent.slice(0, 40)}`;
    if (box.right > width + 0.5 || box.left < -0.5) found.push(`${name}: from ${box.left} to ${box.right}`);
    if (["auto", "scroll"].includes(style.overflowX) && element.scrollWidth > element.clientWidth + 1) found.push(`${name}: ${element.scrollWidth} in ${element.clientWidth}`);
  }
  return found;
}"""


@pytest_asyncio.fixture(loop_scope="module")
async def phone(browser: Browser, portal: Portal, front: Front, engine: FakeEngine) -> AsyncIterator[Page]:
    """A page of a phone, logged in, with a source and branches whose names and labels are long."""
    source = engine.add(name="a-desktop-with-a-long-name-of-41-letters1", ports={str(port): port for port in range(3000, 3005)})
    for index in range(3):
        engine.add(name=f"a-desktop-with-a-long-name-of-34-clone-{index}", kind="branch", parent=source["id"], label="try the new parser on the old data")
    browsing, page = await Browsing.login(browser, portal, front, viewport={"width": _WIDTH, "height": 844}, has_touch=True, is_mobile=True)
    yield page
    await browsing.end()


async def _fits(page: Page, what: str) -> None:
    await becomes(lambda: page.evaluate(OUTSIDE), [], what)


async def test_the_grid_fits_in_every_layout(phone: Page) -> None:
    await streams(phone, "ws-1")
    await _fits(phone, "auto")
    for layout in ("1 tile", "2 tiles", "4 tiles", "9 tiles"):
        await phone.get_by_role("button", name=f"{layout} at once").tap()
        await expect(phone.get_by_role("button", name=f"{layout} at once")).to_have_attribute("aria-pressed", "true")
        await _fits(phone, layout)
    await phone.get_by_role("button", name="Lineage").tap()
    await _fits(phone, "lineage")


async def _in_one_line(actions: Locator, what: str) -> None:
    """Buttons stand beside each other, each as wide as a finger and as its words."""
    await expect(actions).to_be_visible()
    faults = """(row, width) => {
      const buttons = [...row.querySelectorAll(":scope > .button")].filter((one) => one.checkVisibility());
      const boxes = buttons.map((one) => one.getBoundingClientRect());
      const found = buttons.length < 4 ? [`${buttons.length} buttons`] : [];
      boxes.forEach((box, index) => {
        const fault = (words) => found.push(`${buttons[index].textContent || buttons[index].ariaLabel}: ${words}`);
        if (box.top !== boxes[0].top) fault("in another line");
        if (box.width < 43.5 || box.height < 40) fault(`${box.width} by ${box.height}`);
        if (buttons[index].scrollWidth > buttons[index].clientWidth) fault("cut off");
        if (box.right > (boxes[index + 1]?.left ?? width)) fault("too far to the right");
      });
      return found;
    }"""
    await becomes(lambda: actions.evaluate(faults, _WIDTH), [], what)


async def test_what_can_be_done_is_one_line_above_the_picture(phone: Page) -> None:
    await streams(phone, "ws-1")
    await _in_one_line(phone.locator('article[data-workspace="ws-1"] .tile-actions'), "grid")
    await phone.goto(phone.url + "w/ws-1")
    await streams(phone, "ws-1")
    actions = phone.locator(".tile-actions")
    await _in_one_line(actions, "workspace")
    await phone.get_by_role("button", name="Take control").tap()
    await expect(phone.get_by_role("button", name="Hand back")).to_be_visible()
    await _in_one_line(actions, "in control")


async def test_the_names_that_are_compared_have_a_line_of_their_own(phone: Page) -> None:
    await phone.goto(phone.url + "compare/ws-1/ws-2")
    await streams(phone, "ws-1")
    await expect(phone.get_by_role("button", name="Mirror input")).to_be_visible()
    places = """(bar, width) => {
      const [left, right, mirror] = ["select:first-of-type", "select:last-of-type", ".toggle"].map((one) => bar.querySelector(one).getBoundingClientRect());
      return { alike: Math.abs(left.width - right.width) < 1 && left.width > 0.38 * width, level: left.top === right.top, below: mirror.top >= left.bottom };
    }"""
    await becomes(lambda: phone.locator("#toolbar").evaluate(places, _WIDTH), {"alike": True, "level": True, "below": True})
    for number in (1, 2):
        await _in_one_line(phone.locator(f'article[data-workspace="ws-{number}"] .tile-actions'), f"compared, ws-{number}")


async def test_every_dialog_fits_with_its_commands_unfolded(phone: Page) -> None:
    await streams(phone, "ws-1")
    dialog = phone.get_by_role("dialog")
    tile = phone.locator('article[data-workspace="ws-1"]')
    for opener in (phone.locator("#launch"), tile.get_by_role("button", name="Fork", exact=True), tile.get_by_role("button", name="Lifetime"), tile.get_by_role("button", name="Discard")):
        await opener.tap()
        # What folds out stands below the buttons, and does not move them.
        buttons, commands = await dialog.locator(".dialog-actions").bounding_box(), await dialog.locator(".snippet").bounding_box()
        assert buttons and commands and buttons["y"] < commands["y"]
        await dialog.locator("summary").tap()
        for language in ("Python", "curl"):
            await dialog.get_by_role("button", name=language).tap()
            await _fits(phone, await dialog.inner_text())
        await phone.keyboard.press("Escape")
    await phone.goto(phone.url + "w/ws-1")
    await streams(phone, "ws-1")
    for opener in ("The same by the API", "Share", "Clipboard"):
        await phone.get_by_role("button", name=opener, exact=True).tap()
        if opener != "The same by the API":
            await dialog.locator("summary").tap()
        await _fits(phone, opener)
        await phone.keyboard.press("Escape")
    await phone.get_by_role("button", name="Share", exact=True).tap()
    await dialog.get_by_role("button", name="Make a link").tap()
    await expect(dialog.locator(".secret")).to_have_value(re.compile("/share#"))
    await _fits(phone, "a link that is shown once")


async def test_every_page_fits(phone: Page, portal: Portal) -> None:
    await portal.user(await portal.login(), "somebody.with.a.long.name@example.org")
    top = phone.url
    for path in ("w/ws-1", "w/ws-2#files", "w/ws-2#ports", "w/ws-2#changes", "w/ws-2#terminal", "w/ws-77", "compare/ws-1/ws-2", "compare/ws-1/ws-99", "account", "docs", "docs/how-to/operate", "docs/reference/portal"):
        await phone.goto("about:blank")
        await phone.goto(top + path)
        await live(phone)
        await _fits(phone, path)
        if path.endswith("#files"):
            # A name has the room that the buttons leave.
            share = "(name) => name.getBoundingClientRect().width / name.closest('tr').getBoundingClientRect().width > 0.4"
            await becomes(lambda: phone.locator(".files tbody .file-name").last.evaluate(share), True, "the share of a row that its name has")
        if "#" in path:
            # A panel has the page for itself, and says whose it is.
            await expect(phone.locator(".panel-of")).to_have_text("a-desktop-with-a-long-name-of-34-clone-0")
            await expect(phone.locator(".panel-of")).to_be_in_viewport()
    for part in ("workspaces", "users", "settings", "audit"):
        await phone.goto(f"{top}admin/{part}")
        await expect(phone.locator("#part h2")).to_be_visible()
        await _fits(phone, part)
    await phone.goto(top + "nowhere")
    await _fits(phone, "an error")


async def test_a_lone_icon_has_its_words_below_it(phone: Page) -> None:
    await streams(phone, "ws-1")
    lone = phone.locator(".button.icon-only:visible")
    await expect(lone.nth(3)).to_be_visible()
    # At one moment: buttons come and go with what the page hears.
    shown: dict[str | None, str] = dict(await lone.evaluate_all("buttons => buttons.map((button) => [button.getAttribute('aria-label'), button.innerText.trim()])"))
    assert len(shown) >= 4
    # A cross and arrows say by themselves what they do.
    assert {label: text for label, text in shown.items() if not text and label not in ("Dismiss", "Close", "Next tiles", "Previous tiles")} == {}
    # Who speaks to the page says what is read there.
    assert all(text in (label or "") for label, text in shown.items())


async def test_names_lose_their_middle_and_not_their_end(phone: Page) -> None:
    names = [phone.locator(f'article[data-workspace="ws-{number}"] .tile-name') for number in (2, 3, 4)]
    for index, name in enumerate(names):
        await expect(name).to_have_text(f"a-desktop-with-a-long-name-of-34-clone-{index}")
        await cut_before(name, str(index))
        # It stays one text for those who search, copy or hear it.
        assert await name.inner_text() == f"a-desktop-with-a-long-name-of-34-clone-{index}"
        await expect(name).to_have_accessible_name(f"a-desktop-with-a-long-name-of-34-clone-{index}")


# Parts of tiles' heads that lie over each other, or stand out of the head.
_OVERLAPS = """() => {
  const found = [];
  for (const tile of document.querySelectorAll("article.tile")) {
    const head = tile.querySelector(".tile-header");
    const frame = head.getBoundingClientRect();
    const parts = [...head.querySelectorAll(".tile-line > *, .tile-actions > *")].filter((part) => part.checkVisibility() && part.getBoundingClientRect().width > 0);
    const boxes = parts.map((part) => [part.textContent.trim() || part.getAttribute("aria-label"), part.getBoundingClientRect()]);
    boxes.forEach(([name, box], index) => {
      const where = `${tile.dataset.workspace}, ${Math.round(frame.width)} px: ${name}`;
      if (box.left < frame.left - 0.5 || box.right > frame.right + 0.5 || box.top < frame.top - 0.5 || box.bottom > frame.bottom + 0.5) found.push(`${where} stands out`);
      for (const [other, beside] of boxes.slice(index + 1)) {
        if (box.left < beside.right - 1 && beside.left < box.right - 1 && box.top < beside.bottom - 1 && beside.top < box.bottom - 1) found.push(`${where} and ${other}`);
      }
    });
  }
  return found;
}"""


@pytest.mark.parametrize("width", [800, 1024, 1280, 1600])
async def test_heads_of_tiles_do_not_overlap_on_a_wide_screen_that_is_touched(browser: Browser, portal: Portal, front: Front, engine: FakeEngine, width: int) -> None:
    source = engine.add(name="a-desktop-with-a-long-name-of-41-letters1", ports={str(port): port for port in range(3000, 3005)})
    for index in range(3):
        engine.add(name=f"a-desktop-with-a-long-name-of-34-clone-{index}", kind="branch", parent=source["id"], label="try the new parser on the old data")
    await (await portal.login()).request("PUT", "/api/v1/workspaces/ws-1/lifetime", {"idle_seconds": 3600, "lifetime_seconds": None})
    browsing, page = await Browsing.login(browser, portal, front, viewport={"width": width, "height": 900}, has_touch=True, is_mobile=True)
    await streams(page, "ws-1")
    await expect(tile_of(page, "ws-1").get_by_text("Ends in")).to_be_visible()
    await becomes(lambda: page.evaluate(_OVERLAPS), [], "auto")
    for layout in ("1 tile", "2 tiles", "4 tiles", "9 tiles"):
        await page.get_by_role("button", name=f"{layout} at once").tap()
        await expect(page.get_by_role("button", name=f"{layout} at once")).to_have_attribute("aria-pressed", "true")
        await becomes(lambda: page.evaluate(_OVERLAPS), [], layout)
    await page.goto(f"{browsing.origin}/compare/ws-1/ws-2")
    await streams(page, "ws-2")
    await becomes(lambda: page.evaluate(_OVERLAPS), [], "compare")
    await browsing.end()


@pytest.mark.parametrize("width", [800, 1280, 1600])
async def test_heads_of_tiles_do_not_overlap_whatever_they_have_to_say(browser: Browser, portal: Portal, front: Front, engine: FakeEngine, width: int) -> None:
    """With a mouse: who has control and when it ends, and that the connection is poor, beside a long name and ports."""
    source = engine.add(name="a-desktop-with-a-long-name-of-41-letters1", ports={str(port): port for port in range(3000, 3005)})
    for index in range(3):
        engine.add(name=f"a-desktop-with-a-long-name-of-34-clone-{index}", kind="branch", parent=source["id"], label="try the new parser on the old data")
    admin = await portal.login()
    for workspace in engine.workspaces:
        await admin.request("PUT", f"/api/v1/workspaces/{workspace}/lifetime", {"idle_seconds": 3600, "lifetime_seconds": None})
        await admin.request("POST", f"/api/v1/workspaces/{workspace}/lease", {"force": True})
    browsing, page = await Browsing.login(browser, portal, front, viewport={"width": width, "height": 900})
    await streams(page, "ws-1")
    await expect(tile_of(page, "ws-1").get_by_text("You have control")).to_be_visible()
    await page.locator("article .chip.warn:not(.left)").evaluate_all("chips => chips.forEach((chip) => (chip.hidden = false))")
    for layout in (None, "1 tile", "2 tiles", "4 tiles", "9 tiles"):
        if layout:
            await page.get_by_role("button", name=f"{layout} at once").click()
            await expect(page.get_by_role("button", name=f"{layout} at once")).to_have_attribute("aria-pressed", "true")
        await becomes(lambda: page.evaluate(_OVERLAPS), [], str(layout))
        # Whose tile it is, and one of the two, are always to be read.
        for tile in await page.locator("article.tile").all():
            name = await tile.locator(".tile-name").bounding_box()
            assert name and name["width"] >= 40, layout
            assert await tile.locator(".tile-detail > .chip:visible").count() >= 1, layout
    await browsing.end()
