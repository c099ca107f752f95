"""The admins' pages in Chromium."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.async_api import Browser, Page, expect

from tests.pages.test_grid import until
from tests.portal.browsing import Browsing, live
from tests.portal.conftest import Portal
from tests.portal.fake_engine import FakeEngine
from tests.portal.front import Front


async def _open(page: Page, part: str) -> None:
    await page.get_by_role("link", name="Admin").click()
    await page.get_by_role("navigation", name="Administration").get_by_role("link", name=part).click()
    await expect(page.get_by_role("heading", name=part, level=2)).to_be_visible()


async def test_everybodys_workspaces_are_seen_and_discarded(page: Page, engine: FakeEngine, portal: Portal) -> None:
    admin = await portal.login()
    anna = await portal.user(admin, "anna")
    await anna.request("POST", "/api/v1/workspaces", {"image": "webtop-xfce", "name": "annas"})
    engine.add(name="desk <img src=x onerror='window.hacked=1'>")
    portal.control.viewers.report("worker", [("session", "ws-1", 2)])
    await _open(page, "Workspaces")
    row = page.get_by_role("row", name="annas")
    for text in ("anna", "Ready", "412 MiB unique · 88.0 MiB shared", "just now"):
        await expect(row).to_contain_text(text)
    await expect(row.get_by_role("cell").nth(4)).to_have_text("2")
    await page.get_by_label("Owner").select_option(label="Admins")
    await expect(row).to_be_hidden()
    await page.get_by_label("Owner").select_option(label="anna")
    await row.get_by_role("button", name="Discard annas").click()
    await page.get_by_role("dialog").get_by_role("button", name="Discard").click()
    await expect(row).to_be_hidden()
    await until(lambda: ("remove", "ws-1") in engine.calls, "the workspace of another user is discarded")
    # What appears meanwhile appears here, too.
    await expect(page.get_by_role("status").filter(has_text="1 workspace")).to_be_visible()


async def test_a_quota_is_set_and_taken_back(page: Page, portal: Portal) -> None:
    await portal.user(await portal.login(), "anna")
    await _open(page, "Users")
    row = page.get_by_role("row", name="anna")
    await row.get_by_role("button", name="Quota: anna").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Workspaces").fill("many")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("Workspaces: a number of 0 or more")
    await dialog.get_by_label("Workspaces").fill("3")
    await dialog.get_by_label("Memory, GiB").fill("1.5")
    await dialog.get_by_label("Disk, GiB").fill("20")
    await dialog.get_by_label("Processors").fill("2.5")
    await dialog.get_by_text("The same by the API").click()
    await expect(dialog.locator(".snippet-code")).to_contain_text('"memory":1610612736')
    await dialog.get_by_role("button", name="Save").click()
    await expect(row).to_contain_text("0 of 3")
    await expect(row).to_contain_text("of 20 GiB")
    await expect(row).to_contain_text("0 of 2.5")
    account = portal.control.access.users.find("anna")
    assert account is not None and account.quota() == {"workspaces": 3, "memory": 3 << 29, "disk": 20 << 30, "cpus": 2.5}
    await row.get_by_role("button", name="Quota: anna").click()
    for label in ("Workspaces", "Memory, GiB", "Disk, GiB", "Processors"):
        await dialog.get_by_label(label).fill("")
    await dialog.get_by_role("button", name="Save").click()
    await expect(row).not_to_contain_text("of 3")


async def test_settings_are_changed_for_all(page: Page, portal: Portal) -> None:
    await _open(page, "Settings")
    await page.get_by_label("Discard when unused for").select_option(label="8 h")
    await page.get_by_label("Workspaces of each user").fill("5")
    await page.get_by_label("Memory of all together, GiB").fill("32")
    await page.get_by_label("Disk of each user, GiB").fill("50")
    await page.get_by_label("Processors of all together").fill("7.5")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_text("The settings are saved")).to_be_visible()
    now = portal.control.settings.now
    assert (now.idle_seconds, now.user_workspaces, now.all_memory, now.user_memory, now.user_disk, now.all_disk) == (8 * 3600, 5, 32 << 30, None, 50 << 30, None)
    assert (now.user_cpus, now.all_cpus) == (None, 7.5)
    await page.reload()
    await expect(page.get_by_label("Memory of all together, GiB")).to_have_value("32")


async def test_the_audit_log_is_filtered_paged_and_saved(page: Page, engine: FakeEngine, portal: Portal, tmp_path: Path) -> None:
    engine.add()
    admin = await portal.login()
    await portal.user(admin, "anna")
    for _ in range(120):
        await admin.request("POST", "/api/v1/workspaces/ws-1/keepalive")
    await _open(page, "Audit log")
    rows = page.locator(".list tbody tr")
    await expect(rows).to_have_count(100)
    await page.get_by_label("Workspace", exact=True).fill("ws-1")
    await page.get_by_label("What").select_option(label="Kept alive")
    await page.get_by_role("button", name="Show").click()
    await expect(rows).to_have_count(100)
    await page.get_by_role("button", name="Older").click()
    await expect(rows).to_have_count(120)
    await expect(page.get_by_role("button", name="Older")).to_be_hidden()
    await page.reload()
    await expect(page.get_by_label("Workspace", exact=True)).to_have_value("ws-1")
    await page.get_by_label("Workspace", exact=True).fill("")
    await page.get_by_label("What").select_option(label="Added a user")
    await page.get_by_role("button", name="Show").click()
    await expect(rows).to_have_count(1)
    await expect(rows.first).to_contain_text("name: anna · role: user")
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Save as a file").click()
    await (await download.value).save_as(tmp_path / "audit.jsonl")
    saved = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(line["event"], line["name"]) for line in saved] == [("user-add", "anna")]
    await page.get_by_label("User", exact=True).fill("two words")
    await page.get_by_role("button", name="Show").click()
    await expect(page.locator(".toast")).to_contain_text("User must be 1 to 100")


async def test_a_user_finds_no_way_to_the_admins_pages(browser: Browser, portal: Portal, front: Front) -> None:
    made = await (await (await portal.login()).request("POST", "/api/v1/users", {"user": "anna"})).json()
    await portal.client().login(made["password"], "anna", new_password="four words of my choosing")
    context = await browser.new_context(ignore_https_errors=True)
    browsing = Browsing(context, f"https://tclone.localhost:{front.port}")
    page = await browsing.page()
    await page.goto(browsing.origin + "/login")
    await page.get_by_label("User").fill("anna")
    await page.get_by_label("Password").fill("four words of my choosing")
    await page.get_by_role("button", name="Log in").click()
    await live(page)
    await page.goto(browsing.origin + "/account")
    await expect(page.get_by_role("heading", name="Logged in as anna (user)")).to_be_visible()
    await expect(page.get_by_role("link", name="Admin")).to_be_hidden()
    answer = await page.goto(browsing.origin + "/admin/audit")
    assert answer is not None and answer.status == 403
    await expect(page.get_by_role("heading", name="Not for you")).to_be_visible()
    await browsing.end()
