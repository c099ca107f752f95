"""The portal as a person at a browser uses it: pages, dialogs, and the desktops in their tiles with real mouse and keyboard."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from tests.e2e import pictures
from tests.e2e.stack import Stack
from tests.e2e.waiting import PATIENCE, until

_MILLISECONDS = 1000
# The size of the desktop in the image.
SCREEN = (1280, 800)
# Between two keys; a quick typist.
_KEY_DELAY_MS = 25
# A desktop repeats a key that is down for a second (the image's keyboards.xml). A busy machine can let go of one as late, which doubled a letter in one run
# of many: a line with such a key is typed anew, as a person would.
_LONGEST_PRESS_SECONDS = 0.5
_TRIES = 10
# Half an icon's size.
_ICON = 12
# Buttons in the desktop's panel, by desktop coordinates.
PANEL_TERMINAL = (53, 780)


class Portal:
    """One tab, logged in or not. Screenshots go to `artifacts`."""

    def __init__(self, stack: Stack, browser: Browser, artifacts: Path) -> None:
        self.stack = stack
        self.artifacts = artifacts
        self.context: BrowserContext = browser.new_context(
            ignore_https_errors=True, viewport={"width": 1280, "height": 800}, color_scheme="light"
        )
        self.context.set_default_timeout(PATIENCE * _MILLISECONDS)
        self.page: Page = self.context.new_page()
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def close(self) -> None:
        self.context.close()

    def shot(self, name: str) -> Image.Image:
        """A screenshot of the tab, kept as an artifact."""
        png = self.page.screenshot(path=self.artifacts / f"{name}.png")
        return pictures.opened(png)

    def try_login(self, password: str) -> None:
        self.page.goto(self.stack.origin + "/")
        self.page.wait_for_url("**/login")
        self.page.get_by_label("User").fill("admin")
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Log in").click()

    def login(self, password: str) -> None:
        self.try_login(password)
        self.page.wait_for_url(self.stack.origin + "/")
        expect(self.page.locator("#connection")).to_have_attribute("data-state", "live", timeout=PATIENCE * _MILLISECONDS)

    def logout(self) -> None:
        self.page.get_by_role("button", name="Log out").click()
        self.page.wait_for_url("**/login")

    def open_home(self) -> None:
        self.page.goto(self.stack.origin + "/")
        expect(self.page.locator("#connection")).to_have_attribute("data-state", "live", timeout=PATIENCE * _MILLISECONDS)

    def open_alone(self, workspace: str) -> "Tile":
        self.page.goto(f"{self.stack.origin}/w/{workspace}")
        return Tile(self, workspace)

    def layout(self, label: str) -> None:
        """How many tiles at once: "Auto", "1", "2", "4", "9"."""
        self.page.locator(".layouts button", has_text=re.compile(f"^{label}$")).click()

    def all_live(self) -> None:
        """Let every desktop on the page stream, not only the one in use."""
        self.page.get_by_role("button", name="All live").click()

    def choose(self, workspace: str) -> "Tile":
        """Click on the still picture of a desktop, which brings it to life."""
        self.tile(workspace).element.locator(".wake").click()
        return self.tile(workspace)

    def compare(self, left: str, right: str) -> None:
        """The page with two desktops side by side, both streaming."""
        self.page.goto(f"{self.stack.origin}/compare/{left}/{right}")
        for workspace in (left, right):
            self.tile(workspace).wait_live()

    def launch(self, name: str) -> list[str]:
        """Launch the desktop image by the dialog; the phases that it showed, once the dialog has closed."""
        self.page.locator("#launch").click()
        dialog = self.page.locator("dialog[open]")
        dialog.get_by_role("radio", name=re.compile("webtop-xfce")).check()
        dialog.get_by_label("Name (optional)").fill(name)
        dialog.get_by_label("Ports to publish").fill("3000")
        dialog.get_by_role("button", name="Launch").click()
        return self._follow(dialog)

    def fork(self, source: str, copies: int, name: str = "") -> list[str]:
        """Fork by the button of a tile and its dialog; the phases that it showed."""
        self.tile(source).element.get_by_role("button", name="Fork").click()
        dialog = self.page.locator("dialog[open]")
        dialog.locator(".segments label", has_text=re.compile(f"^{copies}$")).click()
        dialog.get_by_label("Name (optional)").fill(name)
        dialog.locator("button[type=submit]").click()
        return self._follow(dialog)

    def _follow(self, dialog: Locator) -> list[str]:
        phases: list[str] = []

        def ended() -> bool:
            texts = dialog.locator(".phase-name").all_inner_texts()
            phases.extend(text for text in texts if text not in phases)
            failure = dialog.locator(".error:visible, .failures").all_inner_texts()
            assert not failure, f"the dialog says: {failure}"
            return dialog.count() == 0

        until("the dialog closes by itself", ended)
        return phases

    def discard(self, workspace: str) -> None:
        """Discard by the button of a tile, and confirm; returns as the confirmation was clicked."""
        self.tile(workspace).element.get_by_role("button", name="Discard").first.click()
        self.page.locator("dialog[open]").get_by_role("button", name="Discard").click()

    def tile(self, workspace: str) -> "Tile":
        return Tile(self, workspace)

    def tiles(self) -> list[str]:
        """Ids of the tiles in the grid, in the order in which they are shown."""
        found = self.page.locator(".tile").evaluate_all(
            "tiles => tiles.map(tile => [Number(tile.style.order), tile.dataset.workspace]).sort((a, b) => a[0] - b[0])"
        )
        return [workspace for _, workspace in found]


class Tile:
    """A workspace's tile and the desktop in its frame."""

    def __init__(self, portal: Portal, workspace: str) -> None:
        self.portal = portal
        self.workspace = workspace
        self.element = portal.page.locator(f'.tile[data-workspace="{workspace}"]')
        # One that is on its way out stays in place for a moment, inert.
        self.stream = self.element.locator("iframe.desktop:not([inert])")
        self.frame = self.stream.content_frame

    def picture(self) -> Image.Image:
        """What the frame shows now."""
        return pictures.opened(self.stream.screenshot())

    def still(self) -> Image.Image:
        """The still picture, while there is no stream."""
        return pictures.opened(self.element.locator("canvas").screenshot())

    def wait_still(self) -> None:
        """Wait until a still picture is there and no stream."""
        self.element.locator("iframe").wait_for(state="detached")
        until(f"the tile of {self.workspace} shows a still picture", lambda: pictures.has_picture(self.still()))

    def wait_live(self) -> None:
        """Wait until the frame shows a picture which moves."""
        expect(self.element).to_have_attribute("data-state", "ready", timeout=PATIENCE * _MILLISECONDS)
        self._area()
        until(f"the tile of {self.workspace} shows a picture", lambda: pictures.has_picture(self.picture()))

    def wait_moves(self, cause: Callable[[], object] | None = None) -> None:
        """Wait until the picture is another than now, or than before `cause`."""
        before = self.picture()
        if cause is not None:
            cause()
        until(f"the picture of {self.workspace} moves", lambda: pictures.moves(before, self.picture()))

    def click(self, x: int, y: int) -> None:
        """Click at a place of the desktop, in its own coordinates."""
        area = self._area()
        page = self.portal.page
        page.mouse.move(area["x"] + x * area["width"] / SCREEN[0], area["y"] + y * area["height"] / SCREEN[1], steps=3)
        page.mouse.down()
        page.mouse.up()

    def click_icon(self, x: int, y: int) -> None:
        """Click on an icon of the panel, once there is one: the session draws the panel after the desktop's background, and a desktop is live before."""
        until(f"an icon at {x}, {y} of {self.workspace}", lambda: pictures.contrast(self._around(x, y)) >= pictures.ICON)
        self.click(x, y)

    def _around(self, x: int, y: int) -> Image.Image:
        """What the frame shows around a place of the desktop, as large as an icon."""
        picture = self.picture()
        across, down = picture.width / SCREEN[0], picture.height / SCREEN[1]
        return picture.crop(
            (int((x - _ICON) * across), int((y - _ICON) * down), math.ceil((x + _ICON) * across), math.ceil((y + _ICON) * down))
        )

    def click_window(self, title: str) -> None:
        """Click into the middle of the window whose title starts so, so that it has the keyboard."""
        x, y, width, height = self.window(title)
        self.click(x + width // 2, y + height // 2)
        until(f"the window {title!r} of {self.workspace} has the keyboard", lambda: self._active().startswith(title))

    def type(self, text: str) -> bool:
        """Whether every key was let go of at once, so that the desktop repeated none of them."""
        at_once = True
        for character in text:
            began = time.monotonic()
            self.portal.page.keyboard.type(character)
            at_once = at_once and time.monotonic() - began < _LONGEST_PRESS_SECONDS
            self.portal.page.wait_for_timeout(_KEY_DELAY_MS)
        return at_once

    def enter(self, line: str) -> None:
        """Type a whole line of a terminal and Enter. Raises AssertionError on a machine that is too busy for keys."""
        for _ in range(_TRIES):
            if self.type(line):
                self.portal.page.keyboard.press("Enter")
                return
            self.portal.page.keyboard.press("Control+u")
        raise AssertionError(f"in {_TRIES} tries keys were down for more than {_LONGEST_PRESS_SECONDS} s while {line!r} was typed")

    def at_prompt(self, command: str) -> bool:
        """Whether the command that the terminal ran has ended."""
        return self.portal.stack.run(self.workspace, f"pgrep -x {command}")[0] == 1

    def windows(self) -> dict[str, tuple[int, int, int, int]]:
        """Title to (x, y, width, height) of every window on the desktop."""
        found = {}
        for line in self.window_list().splitlines():
            _, _, x, y, width, height, _, title = line.split(None, 7)
            found[title] = (int(x), int(y), int(width), int(height))
        return found

    def window_list(self) -> str:
        """The window manager's list: ids, places, titles."""
        return self.portal.stack.output(self.workspace, "wmctrl -lG")

    def window(self, title: str) -> tuple[int, int, int, int]:
        """Place of the window whose title starts so, once it is there."""
        look = lambda: [place for name, place in self.windows().items() if name.startswith(title)]  # noqa: E731
        return until(f"a window {title!r} on {self.workspace}", look)[0]

    def _active(self) -> str:
        return self.portal.stack.run(self.workspace, "xdotool getactivewindow getwindowname")[1]

    def _area(self) -> dict[str, float]:
        """Where in the tab the picture is. The frame has the desktop's size, scaled as a whole to its place in the tile."""
        self.frame.locator("#overlayInput").wait_for(state="visible")
        frame, body = self.stream, self.element.locator(".tile-body")

        def settled() -> dict[str, float] | None:
            shown = self.frame.locator("#overlayInput").evaluate("area => [area.clientWidth, area.clientHeight]")
            box, place = frame.bounding_box(), body.bounding_box()
            if shown != list(SCREEN) or not box or not place:
                return None
            inside = all(
                place[start] - 1 <= box[start] and box[start] + box[size] <= place[start] + place[size] + 1
                for start, size in (("x", "width"), ("y", "height"))
            )
            return dict(box) if inside else None

        return until(f"the tile of {self.workspace} shows all of its desktop", settled)
