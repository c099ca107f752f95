"""Who has control of a workspace and how long it lives, as the pages show and change it."""

from __future__ import annotations

import re

from playwright.async_api import Page, expect

from tests.pages.test_grid import until
from tests.portal.browsing import streams, tile_of
from tests.portal.conftest import Portal
from tests.portal.fake_engine import FakeEngine


async def test_control_is_taken_and_handed_back_and_keys_are_let_go_of(page: Page, engine: FakeEngine, portal: Portal) -> None:
    engine.add()
    frame = await streams(page, "ws-1")
    sent: list[str] = []
    page.on("console", lambda message: sent.append(message.text[6:]) if message.text.startswith("sends ") else None)
    await frame.evaluate("() => { selkiesTransport.send = (text) => console.log(`sends ${text}`); }")
    tile = tile_of(page, "ws-1")
    await tile.get_by_role("button", name="Take control").click()
    await expect(tile.get_by_text("You have control")).to_be_visible()
    await until(lambda: sent == ["kr"], "keys are let go of as control is taken")
    # A reload keeps it.
    await page.reload()
    await expect(tile.get_by_text("You have control")).to_be_visible()
    await tile.get_by_role("button", name="Hand back").click()
    await expect(tile.get_by_text("You have control")).to_be_hidden()
    await expect(tile.get_by_role("button", name="Take control")).to_be_visible()


async def test_control_of_somebody_else_is_taken_after_a_question(page: Page, engine: FakeEngine, portal: Portal) -> None:
    engine.add()
    await streams(page, "ws-1")
    portal.control.feed.state("lease", "ws-1", {"holder": "ada", "epoch": 7, "since": 1.0, "expires": 4e9})
    tile = tile_of(page, "ws-1")
    await expect(tile.get_by_text("ada has control")).to_be_visible()
    await tile.get_by_role("button", name="Take over").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_role("heading", name="Take control from ada?")).to_be_visible()
    await dialog.get_by_role("button", name="Take over").click()
    await expect(tile.get_by_text("You have control")).to_be_visible()


async def test_a_lifetime_is_set_counts_down_and_is_begun_anew(page: Page, engine: FakeEngine) -> None:
    engine.add()
    await streams(page, "ws-1")
    tile = tile_of(page, "ws-1")
    await expect(tile.get_by_text(re.compile("Ends in"))).to_be_hidden()
    await tile.get_by_role("button", name="Lifetime").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_text("Lives until somebody discards it")).to_be_visible()
    await dialog.get_by_label("Discard when unused for").select_option(label="15 min")
    await dialog.get_by_role("button", name="Save").click()
    await expect(tile.get_by_text(re.compile(r"Ends in 1[45] min"))).to_be_visible()
    await tile.get_by_role("button", name="Keep alive").click()
    await expect(tile.get_by_text(re.compile(r"Ends in 15 min"))).to_be_visible()
    await tile.get_by_role("button", name="Lifetime").click()
    await dialog.get_by_label("Discard when unused for").select_option(label="Never")
    await dialog.get_by_role("button", name="Save").click()
    await expect(tile.get_by_text(re.compile("Ends in"))).to_be_hidden()
