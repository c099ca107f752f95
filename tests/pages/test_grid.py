"""The grid: one desktop streams, the others are still pictures; keys that belong to the page, and those that do not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from playwright.async_api import Browser, Page, expect

from tests.portal.browsing import MS, Browsing, becomes, frame_of, live, shows_still, streams, tap_control_twice, tile_of
from tests.portal.conftest import Portal
from tests.portal.fake_engine import FakeEngine
from tests.portal.front import Front


async def until(look: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + MS / 1000
    while not look():
        assert time.monotonic() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.02)


def pictures(engine: FakeEngine) -> int:
    return sum(verb == "screenshot" for verb, _ in engine.calls)


async def test_one_desktop_streams_and_the_others_are_pictures(page: Page, engine: FakeEngine, front: Front) -> None:
    for _ in range(4):
        engine.add()
    await streams(page, "ws-1")
    for workspace in ("ws-2", "ws-3", "ws-4"):
        await shows_still(page, workspace)
    assert front.entered == ["ws-1"], "a desktop that nobody works in was opened"
    await page.get_by_role("button", name="Work in webtop-xfce-3").click()
    await streams(page, "ws-3")
    await shows_still(page, "ws-1")
    assert front.entered == ["ws-1", "ws-3"]
    await expect(page.locator("article iframe")).to_have_count(1)
    # What is typed now goes to the one that was clicked.
    assert await page.evaluate("document.activeElement.closest('article')?.dataset.workspace") == "ws-3"


async def test_the_last_picture_stays_until_the_first_of_the_stream(page: Page, engine: FakeEngine) -> None:
    engine.add()
    engine.add()
    await streams(page, "ws-1")
    await shows_still(page, "ws-2")
    held = asyncio.Event()

    async def hold(route) -> None:
        await held.wait()
        await route.continue_()

    await page.route("**/ticket", hold)
    await page.get_by_role("button", name="Work in webtop-xfce-2").click()
    tile = tile_of(page, "ws-2")
    await expect(tile.locator("iframe")).to_have_count(1)
    colour = "canvas => [...canvas.getContext('2d').getImageData(5, 5, 1, 1).data]"
    assert (await tile.locator("canvas").evaluate(colour))[3] == 255, "the picture went before there was another"
    await expect(tile.locator("iframe")).to_have_css("opacity", "0")
    await expect(tile.locator(".tile-overlay")).to_be_hidden()
    held.set()
    await streams(page, "ws-2")
    await expect(tile.locator("iframe")).to_have_css("opacity", "1")


async def test_pictures_come_once_a_second_and_at_most_four_at_once(page: Page, engine: FakeEngine) -> None:
    for _ in range(9):
        engine.add()
    await streams(page, "ws-1")
    for number in range(2, 6):
        await shows_still(page, f"ws-{number}")
    engine.screen_delay, engine.most_looking = 0.3, 0
    before, began = pictures(engine), time.monotonic()
    await asyncio.sleep(3)
    seconds, asked = time.monotonic() - began, pictures(engine) - before
    assert 0 < asked <= 8 * (seconds + 1), f"{asked} pictures of 8 tiles in {seconds:.1f} s"
    assert 1 < engine.most_looking <= 4, f"{engine.most_looking} pictures were asked for at once"


async def test_a_picture_changes_with_the_screen_and_costs_nothing_when_it_does_not(page: Page, engine: FakeEngine) -> None:
    engine.add()
    engine.add()
    await shows_still(page, "ws-2")
    statuses: list[int] = []
    page.on("response", lambda response: statuses.append(response.status) if "/ws-2/screenshot" in response.url else None)
    await until(lambda: statuses.count(304) >= 2, "the unchanged picture is not sent again")
    assert 200 not in statuses
    read = "canvas => [...canvas.getContext('2d').getImageData(5, 5, 1, 1).data].join()"
    canvas = tile_of(page, "ws-2").locator("canvas")
    before = await canvas.evaluate(read)
    engine.screens["ws-2"] = 200
    await until(lambda: 200 in statuses, "the changed picture")
    async with asyncio.timeout(MS / 1000):
        while await canvas.evaluate(read) == before:
            await asyncio.sleep(0.05)


async def test_nothing_is_asked_for_while_nobody_can_see_it(page: Page, engine: FakeEngine) -> None:
    engine.add()
    engine.add()
    await shows_still(page, "ws-2")
    # Counted where they are asked for: what was on its way arrives at some time.
    await page.evaluate(
        """() => { const fetches = fetch; window.asked = 0;
            window.fetch = (address, ...rest) => { asked += String(address).includes('/screenshot'); return fetches(address, ...rest); };
            Object.defineProperty(document, 'visibilityState', { get: () => window.seen ?? 'hidden' }); }"""
    )
    await asyncio.sleep(2.5)
    assert await page.evaluate("asked") == 0, "pictures were fetched for a hidden page"
    await page.evaluate("window.seen = 'visible'")
    await page.wait_for_function("() => asked > 0")


async def test_all_live_is_kept_for_this_browser(page: Page, engine: FakeEngine) -> None:
    for _ in range(3):
        engine.add()
    await page.get_by_role("button", name="All live").click()
    for workspace in ("ws-1", "ws-2", "ws-3"):
        await streams(page, workspace)
    await page.reload()
    await expect(page.locator("article iframe")).to_have_count(3)
    await page.get_by_role("button", name="All live").click()
    await expect(page.locator("article iframe")).to_have_count(1)


async def test_ctrl_twice_opens_the_shortcuts_and_takes_nothing_from_the_desktop(page: Page, engine: FakeEngine) -> None:
    engine.add()
    engine.add()
    frame = await streams(page, "ws-1")
    await frame.get_by_label("typed").click()
    await frame.evaluate("window.keys = []; addEventListener('keydown', (event) => keys.push(event.key)); addEventListener('keyup', (event) => keys.push('-' + event.key))")
    await page.keyboard.type("f?n")
    assert await page.locator(".command-bar").count() == 0
    await tap_control_twice(page)
    bar = page.get_by_role("dialog", name="Shortcut")
    await expect(bar).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(bar).to_have_count(0)
    await becomes(lambda: page.evaluate("document.activeElement.tagName"), "IFRAME", "the keyboard did not go back to the desktop")
    await frame.wait_for_function("document.hasFocus()")
    await page.keyboard.type("x")
    down = lambda: frame.evaluate("keys.filter((key) => !key.startsWith('-'))")  # noqa: E731
    await becomes(down, ["f", "?", "n", "Control", "Control", "x"], "the desktop missed a key, or got one of the page's")
    await tap_control_twice(page)
    await expect(bar).to_be_visible()
    await page.keyboard.press("n")
    await streams(page, "ws-2")
    await shows_still(page, "ws-1")


@pytest.mark.parametrize("keys", [["Control+c", "Control+v"], ["Control", "a", "Control"], ["Control+Shift+M", "Control"]])
async def test_other_uses_of_ctrl_open_nothing(page: Page, engine: FakeEngine, keys: list[str]) -> None:
    engine.add()
    frame = await streams(page, "ws-1")
    await frame.get_by_label("typed").click()
    for key in keys:
        await page.keyboard.press(key)
    await asyncio.sleep(0.3)
    assert await page.locator(".command-bar").count() == 0
    assert await frame.evaluate("webrtcInput.shortcutsEnabled") is False, "the viewer's own shortcuts would take keys from the desktop"


async def test_keys_are_let_go_of_when_the_desktop_is_left_and_when_it_is_forked(page: Page, engine: FakeEngine) -> None:
    engine.add()
    engine.add()
    frame = await streams(page, "ws-1")
    # Kept outside of the frame, which goes when the desktop is left.
    sent: list[str] = []
    page.on("console", lambda message: sent.append(message.text[6:]) if message.text.startswith("sends ") else None)
    await frame.evaluate("() => { selkiesTransport.send = (text) => console.log(`sends ${text}`); }")
    await page.get_by_role("button", name="Fork", exact=True).first.click()
    await until(lambda: sent == ["kr"], "keys that are down would be down in every copy")
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Work in webtop-xfce-2").click()
    await until(lambda: sent == ["kr", "kr"], "the desktop that was left lets go of its keys")


async def test_a_viewer_can_do_nothing_to_the_page_or_to_another_one(page: Page, engine: FakeEngine) -> None:
    """What a hostile workspace may post: its own state is believed, the rest has no effect."""
    engine.add()
    engine.add()
    await page.get_by_role("button", name="All live").click()
    one, other = await streams(page, "ws-1"), await streams(page, "ws-2")
    await page.evaluate("document.activeElement.blur()")
    await one.evaluate(
        """() => { const portal = document.querySelector('script[data-portal]').dataset.portal;
            for (const type of ['leader', 'release', 'key', 'point', 'toString', '__proto__', 'quality'])
                top.postMessage({ tclone: type, keysym: 97, down: true, x: 1, y: 1, mask: 1, poor: true }, portal);
            top.postMessage('leader', portal); top.postMessage(null, portal);
            // Past the portal, straight to a sibling.
            for (const type of ['key', 'release']) top.frames[1].postMessage({ tclone: type, keysym: 97, down: true }, '*'); }"""
    )
    await expect(tile_of(page, "ws-1").get_by_text("Poor connection")).to_be_visible()
    await expect(tile_of(page, "ws-2").get_by_text("Poor connection")).to_be_hidden()
    assert await page.locator(".command-bar").count() == 0, "a frame without the keyboard opened the shortcut bar"
    assert await other.evaluate("sent") == [], "a desktop reached its sibling"


async def test_messages_of_the_desktops_own_client_do_not_reach_the_portals_window(page: Page, engine: FakeEngine) -> None:
    engine.add()
    viewer = await streams(page, "ws-1")
    await page.evaluate("window.heard = []; window.addEventListener('message', (event) => window.heard.push(event.data))")
    await viewer.evaluate("window.parent.postMessage({ type: 'stats' }, '*'); window.parent.postMessage({ type: 'stats' }, location.origin)")
    # What our script says comes after them, by the same way.
    await viewer.evaluate("window.stream_client = { connection: 'poor' }")
    await expect(tile_of(page, "ws-1").get_by_text("Poor connection")).to_be_visible()
    await page.wait_for_function("() => heard.some(({ tclone }) => tclone === 'quality')")
    assert [message for message in await page.evaluate("heard") if "tclone" not in message] == []


async def test_twelve_tabs(browser: Browser, portal: Portal, front: Front, engine: FakeEngine) -> None:
    """Browsers give one host six connections: a page that held one for each tab would stop at the seventh."""
    for _ in range(3):
        engine.add()
    browsing, first = await Browsing.login(browser, portal, front)
    pages = [first]
    for _ in range(11):
        page = await browsing.page()
        await page.goto(browsing.origin + "/", wait_until="domcontentloaded")
        pages.append(page)
    for page in pages:
        await page.bring_to_front()
        await live(page)
        await streams(page, "ws-1")
    engine.add(name="news")
    for page in pages:
        await expect(page.get_by_role("heading", name="news")).to_have_count(1)
    await browsing.end()


async def test_a_phone(browser: Browser, portal: Portal, front: Front, engine: FakeEngine) -> None:
    """By touch, at 390 pixels: look, choose, work, fork."""
    for _ in range(3):
        engine.add(ports={str(port): port for port in range(3000, 3004)})
    browsing, page = await Browsing.login(browser, portal, front, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    await streams(page, "ws-1")
    widths = "tiles => tiles.slice(0, 2).map((tile) => tile.offsetWidth)"
    fits = "([large, small]) => large > 350 && small < 190"
    await becomes(lambda: page.locator("article.tile").evaluate_all(f"tiles => ({fits})(({widths})(tiles))"), True, "one tile is as wide as the phone, two others share a line")
    await tile_of(page, "ws-2").get_by_role("button", name="Work in webtop-xfce-2").tap()
    await streams(page, "ws-2")
    await page.get_by_role("button", name="Lineage").tap()
    await page.locator(".tree").get_by_text("webtop-xfce-3").tap()
    await streams(page, "ws-3")
    await tile_of(page, "ws-3").get_by_role("button", name="Fork").tap()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Fork").tap()
    await expect(page.locator("article.tile")).to_have_count(4)
    await becomes(lambda: page.evaluate("document.documentElement.scrollWidth <= innerWidth"), True, "the page is as wide as the phone")
    await browsing.end()


async def test_the_strip_is_made_wider_by_mouse_and_keys(page: Page, engine: FakeEngine) -> None:
    source = engine.add(name="desk")
    for index in range(2):
        engine.add(name=f"desk-clone-{index}", kind="branch", parent=source["id"])
    await shows_still(page, "ws-2")
    line = page.get_by_role("separator", name="Width of the strip")

    async def width() -> int:
        return await tile_of(page, "ws-2").evaluate("tile => tile.offsetWidth")

    before = await width()
    box = await line.bounding_box()
    assert box
    await page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 200)
    await page.mouse.down()
    # Over the desktop that streams: its frame must not take the movement.
    await page.mouse.move(box["x"] - 80 + box["width"] / 2, box["y"] + 220, steps=4)
    await page.mouse.up()
    await becomes(width, before + 80)
    await line.press("ArrowRight")
    await becomes(width, before + 64)
    await expect(line).to_have_attribute("aria-valuenow", str(round(before + 64)))
    await page.reload()
    await shows_still(page, "ws-2")
    await becomes(width, before + 64)
    await line.press("End")
    await becomes(width, await page.locator("#grid").evaluate("(grid) => Math.floor(grid.clientWidth / 2)"))


# A screen as Selkies has one, black at first; `light()` draws on it.
_BLACK_SCREEN = """
  if (location.hostname.startsWith("ws-")) addEventListener("DOMContentLoaded", () => {
    const screen = Object.assign(document.createElement("canvas"), { id: "videoCanvas", width: 1280, height: 800 });
    const context = screen.getContext("2d");
    document.body.append(screen);
    context.fillRect(0, 0, 1280, 800);
    window.light = () => { context.fillStyle = "#2f6f8f"; context.fillRect(0, 0, 1280, 800); };
  });
"""


# One that stays black is shown after two seconds, which pass in no time on a busy machine.
_TIME_STANDS_STILL = """if (location.hostname.startsWith("ws-")) performance.now = () => 0;"""


async def test_the_still_picture_stays_until_the_stream_has_drawn_one(page: Page, engine: FakeEngine) -> None:
    await page.context.add_init_script(_BLACK_SCREEN)
    await page.context.add_init_script(_TIME_STANDS_STILL)
    engine.add()
    engine.add()
    await shows_still(page, "ws-2")
    await page.get_by_role("button", name="Work in webtop-xfce-2").click()
    tile = tile_of(page, "ws-2")
    await expect(tile.locator("iframe")).to_have_count(1)
    await until(lambda: any("//ws-2." in frame.url for frame in page.frames), "the viewer's page")
    frame = frame_of(page, "ws-2")
    # It says that it has decoded something; there is nothing to be seen yet.
    await frame.wait_for_selector("#status-display.hidden", state="attached")
    await asyncio.sleep(0.4)
    assert await tile.get_attribute("data-picture") == "still"
    await expect(tile.locator("iframe")).to_have_css("opacity", "0")
    await frame.evaluate("light()")
    await streams(page, "ws-2")
    await expect(tile.locator("iframe")).to_have_css("opacity", "1")


async def test_a_screen_that_is_black_is_shown_all_the_same(page: Page, engine: FakeEngine) -> None:
    await page.context.add_init_script(_BLACK_SCREEN)
    engine.add()
    await streams(page, "ws-1")


async def _order(page: Page) -> list[str]:
    return await page.locator("article.tile").evaluate_all("tiles => tiles.sort((a, b) => a.style.order - b.style.order).map((tile) => tile.dataset.workspace)")


async def test_tiles_change_places_by_mouse_and_keys(page: Page, engine: FakeEngine) -> None:
    for name in ("one", "two", "three"):
        engine.add(name=name)
    await page.get_by_role("button", name="4 tiles at once").click()
    viewer = await streams(page, "ws-1")
    await becomes(lambda: _order(page), ["ws-1", "ws-2", "ws-3"])
    await tile_of(page, "ws-3").locator(".tile-name").drag_to(tile_of(page, "ws-1").locator(".tile-body"))
    await becomes(lambda: _order(page), ["ws-3", "ws-2", "ws-1"])
    await expect(page.locator("body.dragging-tile, .drop-here")).to_have_count(0)
    assert viewer == frame_of(page, "ws-1"), "the desktop was opened anew"
    await page.reload()
    await streams(page, "ws-1")
    await becomes(lambda: _order(page), ["ws-3", "ws-2", "ws-1"])
    # What is new stands beside what it came from; the lineage has its own order.
    engine.add(name="branch", kind="branch", parent="ws-3")
    await expect(tile_of(page, "ws-4")).to_be_visible()
    await becomes(lambda: _order(page), ["ws-3", "ws-4", "ws-2", "ws-1"])
    await becomes(page.locator(".tree-name").all_text_contents, ["one", "two", "three", "branch"])
    await tile_of(page, "ws-1").locator(".tile-name").click()
    await page.locator("h1").click()
    await tap_control_twice(page)
    await expect(page.get_by_role("dialog", name="Shortcut")).to_be_visible()
    await page.keyboard.press("[")
    await becomes(lambda: _order(page), ["ws-3", "ws-4", "ws-1", "ws-2"])


async def test_one_desktop_is_heard(page: Page, engine: FakeEngine) -> None:
    await page.context.add_init_script(
        "window.muted = []; addEventListener('message', ({ data, origin }) => origin === location.origin && data.type === 'setMute' && muted.push(data.value))"
    )
    engine.add()
    engine.add()
    await page.get_by_role("button", name="All live").click()
    one, other = await streams(page, "ws-1"), await streams(page, "ws-2")
    await other.wait_for_function("muted.at(-1) === true")
    assert await one.evaluate("muted") == []
    await other.get_by_label("typed").click()
    await other.wait_for_function("muted.at(-1) === false")
    await one.wait_for_function("muted.at(-1) === true")
