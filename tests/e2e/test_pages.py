"""The pages with real desktops: keys that are held when the desktop is left or forked, mirrored input, the screen's picture by the API.

The tests are steps on one workspace and its branch, and leave none behind.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.client import EngineClient
from tests.e2e import pictures
from tests.e2e.portal import PANEL_TERMINAL, Portal
from tests.e2e.stack import Stack, in_thread
from tests.e2e.waiting import PATIENCE, until

pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(1200)]

GUEST = Path(__file__).parent / "guest"
DESK, COPY = "keys", "keys-clone"
TERMINAL = "Terminal"
CONTROL_MASK = 4


@pytest.fixture
def ids(stack: Stack) -> dict[str, str]:
    return {name: workspace["id"] for name, workspace in stack.workspaces().items()}


def held(stack: Stack, workspace: str) -> tuple[int, int]:
    """How many keys are down on a desktop, and the modifiers among them."""
    down, modifiers = stack.output(workspace, "DISPLAY=:1 python3 modifiers.py").split()
    return int(down), int(modifiers)


def holds_control(stack: Stack, workspace: str) -> bool:
    return bool(held(stack, workspace)[1] & CONTROL_MASK)


def test_a_desktop_with_a_terminal(portal: Portal, stack: Stack) -> None:
    portal.login(stack.password)
    portal.launch(DESK)
    workspace = stack.workspaces()[DESK]["id"]
    stack.output(workspace, "cat > modifiers.py", stdin=(GUEST / "modifiers.py").read_bytes())
    stack.stop_repeats(workspace)
    tile = portal.tile(workspace)
    tile.wait_live()
    tile.click_icon(*PANEL_TERMINAL)
    tile.click_window(TERMINAL)
    tile.enter("PS1='$ '; clear")
    assert held(stack, workspace) == (0, 0)


def test_the_screens_picture_is_what_the_stream_shows(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    async def ask(engine: EngineClient):
        return await engine.screenshot(ids[DESK]), await engine.screenshot(ids[DESK], width=320, format="jpeg")

    async def both():
        async with EngineClient(stack.config.socket) as engine:
            return await asyncio.wait_for(ask(engine), PATIENCE)

    whole, small = in_thread(both())
    assert whole.screen == small.screen == (1280, 800)
    assert pictures.opened(whole.content).size == (1280, 800) and pictures.opened(small.content).size == (320, 200)
    streamed = portal.tile(ids[DESK]).picture().resize((320, 200))
    grabbed = pictures.opened(small.content)
    # The same but for compression, the pointer and a blinking cursor.
    assert pictures.changed(streamed, grabbed) < 320 * 200 // 20


def test_ctrl_is_released_when_the_desktop_is_left(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    portal.tile(ids[DESK]).click_window(TERMINAL)
    portal.page.keyboard.down("Control")
    until("the desktop has Ctrl down", lambda: holds_control(stack, ids[DESK]))
    portal.page.locator("#tree button").first.focus()
    until("Ctrl is released when another element has the keyboard", lambda: held(stack, ids[DESK]) == (0, 0))
    portal.page.keyboard.up("Control")


def test_ctrl_that_is_held_during_a_fork_is_up_in_the_branch(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    portal.tile(ids[DESK]).click_window(TERMINAL)
    portal.page.keyboard.down("Control")
    until("the desktop has Ctrl down", lambda: holds_control(stack, ids[DESK]))
    stack.fork(DESK, "--name", COPY)
    branch = stack.workspaces()[COPY]["id"]
    until("no key is down in the branch", lambda: held(stack, branch) == (0, 0), within=20)
    portal.page.keyboard.up("Control")
    until("no key is down in the source", lambda: held(stack, ids[DESK]) == (0, 0), within=20)


def test_mirrored_input_reaches_both_desktops(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    portal.compare(ids[DESK], ids[COPY])
    portal.page.get_by_role("button", name="Mirror input").click()
    portal.shot("20-mirrored")
    x, y, width, height = portal.tile(ids[DESK]).window(TERMINAL)
    portal.tile(ids[DESK]).click(x + width // 2, y + height // 2)
    portal.tile(ids[DESK]).enter("echo Both-$((6*7)) > mirrored")
    for name in (DESK, COPY):
        until(f"{name} got the mirrored line", lambda name=name: stack.content(ids[name], "mirrored") == "Both-42\n")
    portal.page.get_by_role("button", name="Stop").click()
    portal.tile(ids[COPY]).click_window(TERMINAL)
    portal.tile(ids[COPY]).enter("echo alone > single")
    until("the branch got what was typed in it", lambda: stack.content(ids[COPY], "single") == "alone\n")
    assert stack.content(ids[DESK], "single") is None, "input is still mirrored"


def test_the_shortcuts_leave_the_desktop_its_keys(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    tile = portal.open_alone(ids[DESK])
    tile.wait_live()
    tile.click_window(TERMINAL)
    tile.type("echo f?n")
    bar = portal.page.get_by_role("dialog", name="Shortcut")

    def tapped() -> bool:
        for _ in range(2):
            portal.page.keyboard.press("Control")
        return bar.is_visible()

    # Two taps that a busy machine lets be too far apart are none.
    until("Ctrl tapped twice opens the shortcuts", tapped, every=1.0)
    portal.shot("21-shortcuts")
    portal.page.keyboard.press("Escape")
    tile.type("d > keys")
    portal.page.keyboard.press("Enter")
    until("the line is whole", lambda: stack.content(ids[DESK], "keys") == "f?nd\n")
    assert held(stack, ids[DESK]) == (0, 0)


def test_nothing_is_left(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    assert portal.errors == []
    stack.tclone("rm", *ids.values())
    assert stack.workspaces() == {}
