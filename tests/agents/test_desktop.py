"""Mouse, keys, windows and clipboard of a real desktop. Effects are read from inside, not from the answers."""

from __future__ import annotations

import asyncio

import pytest

from engine.client import EngineClient
from engine.errors import BadRequest, Conflict, NotFound
from tests.agents.desk import Desk

pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(900)]

WORDS = "The quick <brown> fox @ 10:30 ~ #1 {a|b} \\ ^`´¨ äöüß ÀÉ ñ € Ω жук 日本語 한국어 😀🚀 'q' \"d\" e\u0301 \t|"
NOTHING = {"keys": [], "buttons": []}


async def test_places_are_pixels_and_corners_are_exact(desk: Desk) -> None:
    for place in ([0, 0], [1279, 799], [1279, 0], [0, 799], [641, 333]):
        answer = await desk.act({"action": "move", "x": place[0], "y": place[1]})
        assert answer["cursor"] == place and answer["screen"] == [1280, 800]
    for size in ((1024, 768), (1366, 768), (641, 401), (2560, 1600)):
        await desk.act({"action": "move", "x": size[0] - 1, "y": size[1] - 1}, size=size)
        assert await desk.cursor() == [1279, 799], size
        await desk.act({"action": "move", "x": 0, "y": 0}, size=size)
        assert await desk.cursor() == [0, 0], size


async def test_a_place_outside_is_refused_before_anything_is_done(desk: Desk) -> None:
    await desk.act({"action": "move", "x": 5, "y": 6})
    for x, y, size in ((1280, 10, None), (10, 800, None), (1000, 10, (1000, 600))):
        with pytest.raises(BadRequest, match="outside the picture"):
            await desk.client.act(desk.ref, [{"action": "move", "x": 50, "y": 50}, {"action": "click", "x": x, "y": y}], size=size)
    assert await desk.cursor() == [5, 6]


async def test_clicks_wheel_and_modifiers_arrive(desk: Desk) -> None:
    await desk.watch()
    here = {"x": 500, "y": 400}
    await desk.act(
        {"action": "click", **here},
        {"action": "click", "button": "right"},
        {"action": "click", "button": "left", "count": 3},
        {"action": "scroll", "dy": 2, "dx": -1},
        {"action": "click", "button": "middle", "modifiers": "ctrl+shift"},
        {"action": "drag", "path": [[400, 300], [450, 320]]},
    )
    def click(number: int) -> list[str]:
        return [f"ButtonPress {number}", f"ButtonRelease {number}"]

    held = ["KeyPress Control_L", "KeyPress Shift_L", *click(2), "KeyRelease Shift_L", "KeyRelease Control_L"]
    assert await desk.events() == [*click(1), *click(3), *click(1) * 3, *click(5) * 2, *click(6), *held, *click(1)]


async def test_a_repeated_request_clicks_once(desk: Desk) -> None:
    await desk.watch()
    clicks = [{"action": "click", "x": 500, "y": 400}]
    first = await desk.act(*clicks, request_id="agents-click-1")
    again = await asyncio.gather(*(desk.act(*clicks, request_id="agents-click-1") for _ in range(5)))
    assert all(answer == first for answer in again)
    with pytest.raises(Conflict, match="another request"):
        await desk.act({"action": "click", "x": 1, "y": 1}, request_id="agents-click-1")
    assert (await desk.events()).count("ButtonPress 1") == 1


@pytest.mark.parametrize("layout", ["us", "de", "fr", "us,ru"])
async def test_any_text_is_typed_exactly_in_every_layout(desk: Desk, layout: str) -> None:
    await desk.shell(f"setxkbmap {layout}")
    await desk.editor()
    await desk.act({"action": "type", "text": WORDS})
    assert await desk.saved() == WORDS
    # What was borrowed is given back: the layout is as it was.
    before = await desk.shell("xmodmap -pke 2>/dev/null || xkbcomp :1 - 2>/dev/null | grep -v '^//'")
    await desk.act({"action": "type", "text": "Ω日€"})
    assert await desk.shell("xmodmap -pke 2>/dev/null || xkbcomp :1 - 2>/dev/null | grep -v '^//'") == before


async def test_text_is_the_same_with_caps_lock_on(desk: Desk) -> None:
    await desk.editor()
    await desk.act({"action": "key", "keys": "Caps_Lock"}, {"action": "type", "text": "aBc Ä é Жж 1"}, {"action": "key", "keys": "Caps_Lock"})
    assert await desk.saved() == "aBc Ä é Жж 1"


async def test_ten_thousand_characters(desk: Desk) -> None:
    # In lines: an editor lays out one endless line anew for each character.
    text = ((WORDS + "\n") * 200)[:10_000]
    await desk.editor()
    await desk.act({"action": "type", "text": text})
    assert await desk.saved() == text


async def test_a_failure_releases_what_is_held_and_skips_the_rest(desk: Desk) -> None:
    answer = await desk.client.act(
        desk.ref,
        [
            {"action": "key_down", "keys": "ctrl"},
            {"action": "mouse_down", "x": 640, "y": 300},
            {"action": "activate", "window": 1},
            {"action": "move", "x": 1, "y": 1},
        ],
    )
    assert [result["ok"] for result in answer["results"]] == [True, True, False, False]
    assert answer["results"][2]["error"]["code"] == NotFound.code and answer["results"][3]["skipped"] is True
    assert await desk.pressed() == NOTHING and await desk.cursor() == [640, 300]


async def test_what_is_held_stays_until_control_changes_hands(desk: Desk) -> None:
    await desk.act({"action": "key_down", "keys": "shift"}, {"action": "mouse_down", "x": 640, "y": 300})
    assert await desk.pressed() == {"keys": [50], "buttons": [1]}
    await desk.client.release(desk.ref)
    assert await desk.pressed() == NOTHING


async def test_a_change_of_hands_stops_what_is_under_way(desk: Desk) -> None:
    await desk.editor()
    typing = asyncio.ensure_future(desk.client.act(desk.ref, [{"action": "type", "text": "x" * 5000, "delay_ms": 20}]))
    await asyncio.sleep(2)
    await desk.client.release(desk.ref)
    answer = await asyncio.wait_for(typing, 10)
    assert "changed hands" in answer["results"][0]["error"]["message"]
    assert 0 < len(await desk.saved()) < 1000


async def test_a_branch_has_nothing_pressed_and_its_own_clipboard(desk: Desk, client: EngineClient) -> None:
    await desk.act({"action": "set_clipboard", "text": "first ☃"}, {"action": "key_down", "keys": "ctrl"}, {"action": "mouse_down", "x": 640, "y": 300})
    result = await client.fork(desk.ref)
    branch = Desk(client, result["branches"][0]["id"])
    assert await branch.pressed() == NOTHING
    assert await desk.pressed() == {"keys": [37], "buttons": [1]}
    await desk.act({"action": "mouse_up"}, {"action": "key_up", "keys": "ctrl"})
    copied = {"action": "get_clipboard"}
    assert (await branch.act(copied))["results"][0]["text"] == "first ☃"
    await branch.act({"action": "set_clipboard", "text": "second"})
    assert (await desk.act(copied))["results"][0]["text"] == "first ☃"
    assert (await branch.act(copied))["results"][0]["text"] == "second"


async def test_a_fork_in_the_midst_of_typing(desk: Desk, client: EngineClient) -> None:
    text = "The quick brown fox. " * 40
    await desk.editor()
    typing = asyncio.ensure_future(desk.act({"action": "type", "text": text, "delay_ms": 10}))
    await asyncio.sleep(1.5)
    result = await client.fork(desk.ref)
    branch = Desk(client, result["branches"][0]["id"])
    await typing
    assert await desk.saved() == text
    assert await branch.pressed() == NOTHING
    begun = await branch.saved()
    assert text.startswith(begun) and begun != text
    await branch.act({"action": "key", "keys": "ctrl+End"}, {"action": "type", "text": "→ on"})
    await branch.act({"action": "key", "keys": "ctrl+s"})
    await asyncio.sleep(1)
    assert await branch.saved() == begun + "→ on"
