"""Two desktops side by side, and input that goes to both."""

from __future__ import annotations

import base64
import io
import re
from typing import Any

from PIL import Image
from playwright.async_api import FloatRect, Frame, Page, expect

from tests.portal.browsing import becomes, streams, tap_control_twice, tile_of
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
    await expect(left.get_by_label("typed")).to_have_value("only here")
    await expect(right.get_by_label("typed")).to_have_value("")
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
    await becomes(edges, [red, red])


async def test_mirrored_input_goes_to_both_alike(page: Page, engine: FakeEngine) -> None:
    left, right = await _mirrored(page, engine)
    box: Any = await page.locator('article[data-workspace="ws-2"] iframe').bounding_box()
    # The middle of the second picture is the middle of both screens.
    await page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    await page.mouse.down(button="right")
    await page.mouse.up(button="right")
    await page.keyboard.press("a")
    await page.keyboard.press("Shift+A")
    await page.keyboard.press("F5")
    await page.mouse.wheel(0, 300)
    for frame in (left, right):
        # The wheel's second message is the last of all.
        await frame.wait_for_function("sent.some((text) => text.endsWith(',0,3'))")
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
    for frame in (left, right):
        # The button that was clicked took the focus away, too: it is said twice that all keys are up.
        assert [text for text in await sent(frame) if text != "kr"] == [], "a key is still held"
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
    await tap_control_twice(page)
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
        await expect(page).to_have_url(re.compile(f"/compare/ws-1/{right}$"))
    await page.get_by_role("combobox", name="Right").select_option("ws-2")
    await streams(page, "ws-2")
    await expect(place).to_have_count(0)


async def _mirrored(page: Page, engine: FakeEngine) -> tuple[Frame, Frame]:
    left, right = await compared(page, engine)
    await page.get_by_role("button", name="Mirror input").click()
    await expect(page.get_by_text("Mouse and keys go to both desktops")).to_be_visible()
    for frame in (left, right):
        # It begins with all keys up.
        await frame.wait_for_function("sent.includes('kr')")
    await clear(left, right)
    return left, right


async def _both(left: Frame, right: Frame, last: str) -> list[str]:
    """What both viewers sent, up to this message; the same in both. Without the sign that keys are held, which has a clock of its own."""
    for frame in (left, right):
        await frame.wait_for_function("last => sent.includes(last)", arg=last)
    both = [[text for text in await sent(frame) if text[:2] != "kh"] for frame in (left, right)]
    assert both[0] == both[1]
    await clear(left, right)
    return both[0]


async def test_text_without_keys_is_mirrored_too(page: Page, engine: FakeEngine) -> None:
    left, right = await _mirrored(page, engine)
    await page.keyboard.insert_text("naïve, 日本語 🙂")
    assert await _both(left, right, "co,end,naïve, 日本語 🙂") == ["co,end,naïve, 日本語 🙂"]
    # An input method: what is being composed is nobody's text yet.
    devtools = await page.context.new_cdp_session(page)
    for text in ("に", "にほ", "にほん"):
        await devtools.send("Input.imeSetComposition", {"text": text, "selectionStart": len(text), "selectionEnd": len(text)})
    await devtools.send("Input.insertText", {"text": "日本"})
    assert await _both(left, right, "co,end,日本") == ["co,end,日本"]
    # A keyboard on a screen: keys without a name, and what they did to a field.
    for kind, key in (("insertLineBreak", 65293), ("deleteContentBackward", 65288)):
        await page.locator(".mirror-text:focus").evaluate("(field, inputType) => field.dispatchEvent(new InputEvent('input', { inputType }))", kind)
        assert await _both(left, right, f"ku,{key}") == [f"kd,{key}", f"ku,{key}"]
    # The desktop in use goes on taking keys as keys.
    await page.keyboard.press("x")
    assert await _both(left, right, "ku,120") == ["kd,120", "ku,120"]


async def test_a_paste_is_the_same_text_in_both(page: Page, engine: FakeEngine) -> None:
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    left, right = await _mirrored(page, engine)
    text = "two\nlines, and ünïcode"
    await page.evaluate("text => navigator.clipboard.writeText(text)", text)
    await page.keyboard.press("Control+v")
    copied = f"cw,{base64.b64encode(text.encode()).decode()}"
    # First the text, then the key: it is pasted by the program that has the keyboard.
    assert await _both(left, right, "ku,65507") == ["kd,65507", copied, "kd,118", "ku,118", "ku,65507"]
    # That of terminals.
    await page.keyboard.press("Control+Shift+v")
    assert await _both(left, right, "ku,65507") == ["kd,65507", "kd,65505", copied, "kd,118", "ku,118", "ku,65505", "ku,65507"]
    await page.evaluate("navigator.clipboard.writeText('x'.repeat(20000))")
    await page.keyboard.press("Control+v")
    await expect(page.locator(".toast.error")).to_contain_text("At most 16384 characters")
    assert "kd,118" not in await _both(left, right, "ku,65507"), "the desktops' own clipboards were pasted"


async def test_no_message_of_the_portal_reaches_the_viewers_own_listeners(page: Page, engine: FakeEngine) -> None:
    left, right = await compared(page, engine)
    for frame in (left, right):
        await frame.evaluate("window.heard = []; window.addEventListener('message', ({ origin, data }) => heard.push({ origin, data }))")
    await page.get_by_role("button", name="Mirror input").click()
    await expect(page.get_by_text("Mouse and keys go to both desktops")).to_be_visible()
    await clear(left, right)
    await page.keyboard.press("a")
    await _both(left, right, "ku,97")
    # Those of its own page still do.
    await left.evaluate("window.postMessage('own', '*')")
    await left.wait_for_function("heard.some(({ data }) => data === 'own')")
    for frame in (left, right):
        assert await frame.evaluate("heard.filter(({ origin }) => origin !== location.origin)") == []
