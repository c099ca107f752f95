"""Two desktops side by side, and input that goes to both."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image
from playwright.async_api import FloatRect, Frame, Page, expect

from tests.portal.browsing import streams, tile_of
from tests.portal.fake_engine import FakeEngine


async def compared(page: Page, engine: FakeEngine) -> tuple[Frame, Frame]:
    """A source and its branch, compared by the page's button; their viewers."""
    source = engine.add(name="desk")
    engine.add(name="desk-clone", kind="branch", parent=source["id"], label="another way")
    await page.get_by_role("button", name="Work in desk-clone").click()
    await page.get_by_role("link", name="Compare").click()
    await page.wait_for_url("**/compare/ws-1/ws-2")
    return await streams(page, "ws-1"), await streams(page, "ws-2")


async def sent(frame: Frame) -> list[str]:
    return await frame.evaluate("sent")


async def clear(*frames: Frame) -> None:
    for frame in frames:
        await frame.evaluate("sent.length = 0")


async def test_a_branch_is_compared_with_its_source(page: Page, engine: FakeEngine) -> None:
    await compared(page, engine)
    await expect(page.get_by_role("combobox", name="Left")).to_have_value("ws-1")
    await expect(page.get_by_role("combobox", name="Right")).to_have_value("ws-2")
    await page.get_by_role("button", name="Swap sides").click()
    await page.wait_for_url("**/compare/ws-2/ws-1")
    engine.add(name="third")
    await page.get_by_role("combobox", name="Left").select_option("ws-3")
    await streams(page, "ws-3")
    await expect(page.locator("article.tile")).to_have_count(2)
    await page.reload()
    await streams(page, "ws-3")


async def test_input_is_not_mirrored_unless_asked_for(page: Page, engine: FakeEngine) -> None:
    left, right = await compared(page, engine)
    await expect(page.get_by_role("button", name="Mirror input")).to_have_attribute("aria-pressed", "false")
    await left.get_by_label("typed").click()
    await page.keyboard.type("only here")
    assert await left.get_by_label("typed").input_value() == "only here"
    assert await right.get_by_label("typed").input_value() == ""
    assert [message for message in await sent(right) if message != "kr"] == []


async def test_both_pictures_are_framed_in_red_while_input_is_mirrored(page: Page, engine: FakeEngine) -> None:
    await compared(page, engine)

    async def edges() -> list[tuple[int, ...]]:
        """The colour at the left edge of each picture, as it is on the screen: the frame is above the desktops."""
        found = []
        for identity in ("ws-1", "ws-2"):
            box = await tile_of(page, identity).locator(".tile-body").bounding_box()
            assert box
            clip: FloatRect = {"x": box["x"] + 2, "y": box["y"] + box["height"] / 2, "width": 1, "height": 1}
            found.append(Image.open(io.BytesIO(await page.screenshot(clip=clip))).convert("RGB").getpixel((0, 0)))
        return found

    red = (211, 54, 44)
    assert red not in await edges()
    await page.get_by_role("button", name="Mirror input").click()
    await expect(page.get_by_text("Mouse and keys go to both desktops")).to_be_visible()
    assert await edges() == [red, red]


async def test_mirrored_input_goes_to_both_alike(page: Page, engine: FakeEngine) -> None:
    left, right = await compared(page, engine)
    await page.get_by_role("button", name="Mirror input").click()
    await expect(page.get_by_text("Mouse and keys go to both desktops")).to_be_visible()
    await clear(left, right)
    box: Any = await page.locator('article[data-workspace="ws-2"] iframe').bounding_box()
    # The middle of the second picture is the middle of both screens.
    await page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    await page.mouse.down(button="right")
    await page.mouse.up(button="right")
    await page.keyboard.press("a")
    await page.keyboard.press("Shift+A")
    await page.keyboard.press("F5")
    await page.mouse.wheel(0, 300)
    await right.wait_for_function("sent.some((text) => text.endsWith(',3'))")
    for frame in (left, right):
        messages = await sent(frame)
        presses = [message for message in messages if message.startswith(("kd,", "ku,"))]
        assert [text for text in presses if text not in ("kd,65505", "ku,65505")] == ["kd,97", "ku,97", "kd,65", "ku,65", "kd,65474", "ku,65474"]
        points = [[int(part) for part in message.split(",")[1:]] for message in messages if message.startswith("m,")]
        assert all(abs(x - 640) <= 1 and abs(y - 400) <= 1 for x, y, *_ in points)
        # Right button down and up, then three notches down.
        assert [mask for _, _, mask, _ in points if mask] == [4, 8] and points[-1][2:] == [0, 3]
    assert [text for text in await sent(left) if text[:2] != "kh"] == [text for text in await sent(right) if text[:2] != "kh"]


async def test_what_is_held_is_released_in_both_when_mirroring_ends(page: Page, engine: FakeEngine) -> None:
    left, right = await compared(page, engine)
    await page.get_by_role("button", name="Mirror input").click()
    await page.keyboard.down("Shift")
    await right.wait_for_function("sent.includes('kd,65505')")
    # As long as it is held both servers are told that it is.
    await left.wait_for_function("sent.includes('kh,65505')")
    await clear(left, right)
    await page.get_by_role("button", name="Stop").click()
    for frame in (left, right):
        await frame.wait_for_function("sent.includes('kr')")
    await clear(left, right)
    await page.wait_for_timeout(400)
    assert await sent(left) == await sent(right) == [], "a key is still held"
    await page.keyboard.up("Shift")
    await expect(page.get_by_text("Mouse and keys go to both desktops")).to_be_hidden()


async def test_mirroring_ends_with_one_of_the_two(page: Page, engine: FakeEngine) -> None:
    left, _ = await compared(page, engine)
    engine.add(name="third")
    await page.get_by_role("button", name="Mirror input").click()
    gone = engine.workspaces.pop("ws-2")
    engine.publish("gone", gone["id"], {})
    await expect(page.get_by_text("Mouse and keys go to both desktops")).to_be_hidden()
    await left.wait_for_function("sent.includes('kr')")
    # Its name is left, not another desktop that would take what is typed.
    await expect(page.locator(".tile.missing:visible")).to_contain_text("ws-2 is not here")


async def test_the_keyboard_leaves_a_mirrored_desktop_by_ctrl_twice(page: Page, engine: FakeEngine) -> None:
    await compared(page, engine)
    await page.get_by_role("button", name="Mirror input").click()
    await page.keyboard.press("Control")
    await page.keyboard.press("Control")
    await expect(page.get_by_role("dialog", name="Shortcut")).to_be_visible()
    await page.keyboard.press("m")
    await expect(page.get_by_text("Mouse and keys go to both desktops")).to_be_hidden()


async def test_a_side_that_is_not_there_is_named_and_not_replaced(page: Page, engine: FakeEngine) -> None:
    await compared(page, engine)
    engine.add(name="third")
    engine.add(name="box", desktop=False, image="workspace")
    place = page.locator(".tile.missing:visible")
    for right, told in (("ws-99", "ws-99 is not here"), ("ws-4", "box has no desktop"), ("ws-1", "desk is on the other side already")):
        await page.goto(page.url.rpartition("/")[0] + f"/{right}")
        await streams(page, "ws-1")
        await expect(place).to_contain_text(told)
        await expect(page.locator("article.tile")).to_have_count(1)
        await expect(page.get_by_role("button", name="Mirror input")).to_be_disabled()
        assert page.url.endswith(f"/compare/ws-1/{right}")
    await page.get_by_role("combobox", name="Right").select_option("ws-2")
    await streams(page, "ws-2")
    await expect(place).to_have_count(0)
