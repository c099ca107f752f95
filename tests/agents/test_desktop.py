"""Mouse, keys, windows and clipboard of a real desktop. Effects are read from inside, not from the answers."""

from __future__ import annotations

import asyncio
import io
import signal

import pytest
from PIL import Image, ImageChops

from engine.client import EngineClient, Screenshot
from engine.errors import BadRequest, Conflict, NotFound, Unavailable
from tests.agents.desk import Desk, eventually
from tests.engine.support import Engine

pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(900)]

WORDS = "The quick <brown> fox @ 10:30 ~ #1 {a|b} \\ ^`´¨ äöüß ÀÉ ñ € Ω жук 日本語 한국어 😀🚀 'q' \"d\" e\u0301 \t|"


def opened(shot: Screenshot) -> Image.Image:
    return Image.open(io.BytesIO(shot.content)).convert("RGB")


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


async def test_what_is_typed_after_a_click_goes_to_what_was_clicked(desk: Desk) -> None:
    await desk.editor()
    await desk.shell("setsid -f xev -geometry 300x200+900+40 -name beside >/dev/null 2>&1")
    beside = await desk.window("beside")
    editor = await desk.listed("text - Mousepad")
    assert editor is not None
    for number in range(20):
        # Never the same place: for the editor, which sees every other click only, it would be a double one, which selects a word.
        middle = {"x": editor["x"] + 100 + 15 * number, "y": editor["y"] + 200}
        await desk.act(
            {"action": "click", "x": beside["x"] + 100, "y": beside["y"] + 100},
            {"action": "click", **middle},
            {"action": "type", "text": f"{number} "},
        )
    assert await desk.saved() == "".join(f"{number} " for number in range(20))


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
    await desk.nothing_is_pressed()
    assert await desk.cursor() == [640, 300]


async def test_what_is_held_stays_until_control_changes_hands(desk: Desk) -> None:
    await desk.act({"action": "key_down", "keys": "shift"}, {"action": "mouse_down", "x": 640, "y": 300})
    await desk.holds([50], [1])
    await desk.client.release(desk.ref)
    await desk.nothing_is_pressed()


async def test_a_change_of_hands_stops_what_is_under_way(desk: Desk) -> None:
    await desk.editor()
    typing = asyncio.ensure_future(desk.client.act(desk.ref, [{"action": "type", "text": "x" * 5000, "delay_ms": 20}]))
    await asyncio.sleep(2)
    await desk.client.release(desk.ref)
    answer = await asyncio.wait_for(typing, 10)
    assert "changed hands" in answer["results"][0]["error"]["message"]
    assert 0 < len(await desk.saved()) < 1000


async def test_a_batch_that_the_engine_was_killed_in_is_not_done_again(desk: Desk, engine: Engine) -> None:
    await desk.watch()
    actions = [{"action": "click", "x": 500, "y": 400}, {"action": "wait", "seconds": 60}, {"action": "click", "x": 500, "y": 400}]
    under_way = asyncio.ensure_future(desk.client.act(desk.ref, actions, request_id="agents-killed"))
    await eventually("the pointer is there", lambda: _is_at(desk, {"x": 500, "y": 400}))
    await engine.stop(signal.SIGKILL)
    with pytest.raises(Unavailable):
        await under_way
    await engine.start()
    again = await desk.client.act(desk.ref, actions, request_id="agents-killed")
    assert again["interrupted"] is True and again["results"] == []
    assert (await desk.events()).count("ButtonPress 1") == 1


async def _is_at(desk: Desk, place: dict[str, int]) -> bool:
    return f"X={place['x']}\nY={place['y']}" in await desk.shell("xdotool getmouselocation --shell")


async def test_a_picture_after_an_action_shows_what_came_of_it(desk: Desk, client: EngineClient) -> None:
    await desk.editor()
    before = await client.screenshot(desk.ref, settle_ms=5000)
    await desk.act({"action": "type", "text": "a line\n"})
    after = await client.screenshot(desk.ref, settle_ms=5000)
    assert before is not None and after is not None
    box = ImageChops.difference(opened(before), opened(after)).getbbox()
    assert box is not None and box[2] - box[0] > 20, "the line is not in the picture"


async def test_who_waits_for_a_change_hears_of_it_at_once(desk: Desk, client: EngineClient) -> None:
    await desk.act({"action": "move", "x": 1, "y": 1})
    first = await client.screenshot(desk.ref, settle_ms=5000)
    assert first is not None
    waiting = asyncio.ensure_future(client.screenshot(desk.ref, tag=first.tag, wait_change_ms=30_000))
    await asyncio.sleep(1)
    await desk.shell("setsid -f xev -geometry 300x300+100+100 -name watcher >/dev/null 2>&1")
    changed = await asyncio.wait_for(waiting, 20)
    assert changed is not None and changed.tag != first.tag


async def test_a_branch_has_nothing_pressed_and_its_own_clipboard(desk: Desk, client: EngineClient) -> None:
    await desk.act({"action": "set_clipboard", "text": "first ☃"}, {"action": "key_down", "keys": "ctrl"}, {"action": "mouse_down", "x": 640, "y": 300})
    result = await client.fork(desk.ref)
    branch = Desk(client, result["branches"][0]["id"])
    await branch.nothing_is_pressed()
    await desk.holds([37], [1])
    await desk.act({"action": "mouse_up"}, {"action": "key_up", "keys": "ctrl"})
    copied = {"action": "get_clipboard"}
    assert (await branch.act(copied))["results"][0]["text"] == "first ☃"
    await branch.act({"action": "set_clipboard", "text": "second"})
    assert (await desk.act(copied))["results"][0]["text"] == "first ☃"
    assert (await branch.act(copied))["results"][0]["text"] == "second"


async def test_commands_have_the_environment_of_the_session(desk: Desk, client: EngineClient) -> None:
    """Of the desktop's user, in a branch too; what is started as root has nothing of it."""
    result = await client.fork(desk.ref)
    branch = Desk(client, result["branches"][0]["id"])
    for one in (desk, branch):
        told = dict(line.split("=", 1) for line in (await one.shell("env")).splitlines() if "=" in line)
        assert told["DBUS_SESSION_BUS_ADDRESS"] == "unix:path=/run/user/1000/bus" and told["XDG_RUNTIME_DIR"] == "/run/user/1000"
        assert (told["DISPLAY"], told["XDG_CURRENT_DESKTOP"], told["UV_USE_IO_URING"], told["USER"]) == (":1", "XFCE", "0", "user")
        # A notice is taken by the desktop's own service, which gives it a number; settings are found; a file is opened by its program.
        assert int(await one.shell("notify-send --print-id notice")) > 0
        assert "org.gtk.Settings.FileChooser" in await one.shell("gsettings list-schemas")
        await one.shell(": >opened.txt; xdg-open opened.txt")
        await one.window("opened.txt")
        status, out, _ = await client.run(one.ref, ["env"])
        assert status == 0 and b"XDG_RUNTIME_DIR" not in out and b"DBUS_" not in out
        # What the caller says goes before.
        status, out, _ = await client.run(one.ref, ["sh", "-c", "echo $XDG_RUNTIME_DIR"], user="@desktop", env={"XDG_RUNTIME_DIR": "/tmp"})
        assert (status, out) == (0, b"/tmp\n")
    # Each has a bus of its own.
    await branch.shell("xfconf-query -c tests -p /only -n -t string -s here")
    assert await branch.shell("xfconf-query -c tests -p /only") == "here\n"
    assert await desk.shell("xfconf-query -c tests -p /only 2>/dev/null || echo none") == "none\n"
    await desk.shell("rm -f opened.txt; pkill -9 mousepad")


async def test_a_fork_in_the_midst_of_typing(desk: Desk, client: EngineClient) -> None:
    text = "The quick brown fox. " * 40
    await desk.editor()
    typing = asyncio.ensure_future(desk.act({"action": "type", "text": text, "delay_ms": 10}))
    await asyncio.sleep(1.5)
    result = await client.fork(desk.ref)
    branch = Desk(client, result["branches"][0]["id"])
    await typing
    assert await desk.saved() == text
    await branch.nothing_is_pressed()
    begun = await branch.saved()
    assert text.startswith(begun) and begun != text
    await branch.act({"action": "key", "keys": "ctrl+End"}, {"action": "type", "text": "→ on"})
    await branch.act({"action": "key", "keys": "ctrl+s"})
    await asyncio.sleep(1)
    assert await branch.saved() == begun + "→ on"
