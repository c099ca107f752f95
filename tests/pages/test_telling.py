"""What the pages tell: how long things take, names that differ at their end, for whom a link is, that something was saved, what the API has."""

from __future__ import annotations

import re

from playwright.async_api import Page, expect

from tests.pages.names import cut_before
from tests.portal.browsing import tile_of
from tests.portal.conftest import Portal
from tests.portal.fake_engine import FakeEngine


async def test_a_phase_is_shown_with_how_long_it_took(page: Page, engine: FakeEngine) -> None:
    desk = engine.add(name="desk", state="starting")
    for phase, elapsed in (("network", 0.9), ("container", 538.9), ("first command", 5738.9)):
        engine.publish("progress", desk["id"], {"operation": "launch", "phase": phase, "elapsed_ms": elapsed, "detail": ""})
    times = tile_of(page, desk["id"]).locator(".phase-time")
    await expect(times).to_have_count(3)
    for index, took in enumerate(("538 ms", "5.2 s")):
        await expect(times.nth(index)).to_have_text(took)
    # The one that goes on counts from its own beginning.
    await expect(times.last).to_have_text(re.compile(r"^[1-4]\.\d s$"))
    engine.publish("progress", desk["id"], {"operation": "launch", "phase": "ready", "elapsed_ms": 25738.9, "detail": ""})
    await expect(times.nth(2)).to_have_text("20.0 s")


async def test_names_are_cut_before_the_end_that_tells_them_apart(page: Page, engine: FakeEngine) -> None:
    engine.add(name="desk")
    for index in range(2):
        engine.add(name=f"desk-clone-{index}", kind="branch", parent="ws-1")
    for index in range(2):
        name = tile_of(page, f"ws-{index + 2}").locator(".tile-name")
        await name.evaluate("element => (element.style.width = '70px')")
        await cut_before(name, str(index))
        assert await name.inner_text() == f"desk-clone-{index}"
        # With room for all of it, all of it is seen.
        await name.evaluate("element => (element.style.width = '')")
        await expect(name).not_to_have_class(re.compile(r"\bcut\b"))


async def test_a_name_is_read_and_found_as_one_word(page: Page, engine: FakeEngine) -> None:
    engine.add(name="a-desktop-with-a-long-name-of-41-letters1")
    engine.add(name="a-desktop-with-a-long-name-of-41-letters2")
    row = page.locator(".tree-name").nth(1)
    await cut_before(row, "2")
    assert await row.inner_text() == "a-desktop-with-a-long-name-of-41-letters2"
    await expect(page.locator(".tree-item").nth(1)).to_have_accessible_name(re.compile("^a-desktop-with-a-long-name-of-41-letters2 ?ws-2"))


async def test_a_workspace_without_a_desktop_leads_to_its_terminal(page: Page, engine: FakeEngine) -> None:
    engine.add(name="box", desktop=False)
    tile = tile_of(page, "ws-1")
    # Whoever is at a browser need not have the host's command line.
    await expect(tile).not_to_contain_text("tclone shell")
    await tile.get_by_role("link", name="Open its terminal").click()
    await expect(page.get_by_role("tab", name="Terminal")).to_have_attribute("aria-selected", "true")


async def test_who_opens_a_link_sees_for_whom_it_is(page: Page, engine: FakeEngine, portal: Portal) -> None:
    engine.add(name="desk")
    admin = await portal.login()
    made = await (await admin.request("POST", "/api/v1/workspaces/ws-1/shares", {"label": "Anna <b>"})).json()
    await page.goto(page.url + "share#" + made["link"].partition("#")[2])
    await expect(page.locator("#about")).to_contain_text(re.compile("^For Anna <b> · View only, until "))


async def test_settings_that_are_saved_say_so_beside_the_button(page: Page, portal: Portal) -> None:
    await page.goto(page.url + "admin/settings")
    save = page.get_by_role("button", name="Save", exact=True)
    await save.click()
    told = page.locator(".save-row").get_by_role("status")
    await expect(told).to_have_text("The settings are saved")
    await expect(told).to_be_in_viewport()
    await page.get_by_label("Workspaces of all together").fill("many")
    await expect(told).to_have_text("")
    await save.click()
    await expect(page.get_by_role("alert").filter(has_text="Workspaces of all together")).to_be_visible()
    await expect(told).to_have_text("")
    await expect(save).to_be_enabled()


async def test_the_api_has_a_page(page: Page, portal: Portal) -> None:
    await page.get_by_role("link", name="Docs", exact=True).click()
    await expect(page.get_by_role("heading", name="Guides and API", exact=True)).to_be_visible()
    document = await (await portal.client().request("GET", "/api/v1/openapi.json")).json()
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    await expect(page.locator("details.operation")).to_have_count(len(operations))
    await expect(page.get_by_role("link", name="openapi.json")).to_have_attribute("href", "/api/v1/openapi.json")
    fork = page.locator("#post_workspaces_id_fork")
    await fork.locator("summary").click()
    for text in ("/workspaces/{id}/fork", "copies: integer, optional, 1 without it", "Idempotency-Key", "201"):
        await expect(fork).to_contain_text(text)
    # An address that names an operation unfolds it.
    await page.goto(page.url.partition("#")[0] + "#post_workspaces")
    await expect(page.locator("#post_workspaces dl")).to_be_visible()
    # Guides lead to each other, and back.
    await page.get_by_role("link", name="Move files in and out").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Move files in and out")
    await page.get_by_role("link", name="engine", exact=True).click()
    await expect(page.get_by_role("heading", level=1)).to_be_visible()
    await expect(page.locator("#files")).to_be_in_viewport()
    await page.get_by_role("link", name="All guides and the API").click()
    await expect(page.locator("details.operation")).to_have_count(len(operations))
