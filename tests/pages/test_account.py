"""The account page and share links in Chromium, against the fake engine."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, expect

from tests.pages.test_accessibility import barriers
from tests.portal.browsing import becomes
from tests.portal.conftest import OWN_PASSWORD, PATIENCE, Portal
from tests.portal.fake_engine import FakeEngine
from tests.portal.front import Front

MS = PATIENCE * 1000
expect.set_options(timeout=MS)


class Visitor:
    """Opens pages in a browser context of its own; `complaints` are script errors and breaches of the content security policy."""

    def __init__(self, context: BrowserContext, front: Front) -> None:
        self._context = context
        self._front = front
        self.complaints: list[str] = []

    async def open(self, path: str) -> Page:
        page = await self._context.new_page()
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self.complaints.append(message.text) if "Content Security Policy" in message.text else None)
        await page.goto(f"https://tclone.localhost:{self._front.port}{path}")
        return page

    async def login(self, password: str, user: str = "admin") -> Page:
        page = await self.open("/login")
        await page.get_by_label("User").fill(user)
        await page.get_by_label("Password").fill(password)
        await page.get_by_role("button", name="Log in").click()
        return page


@pytest_asyncio.fixture(loop_scope="module")
async def visitor(browser: Browser, front: Front) -> AsyncIterator[Visitor]:
    context = await browser.new_context(ignore_https_errors=True, viewport={"width": 1280, "height": 800}, permissions=["clipboard-read", "clipboard-write"])
    context.set_default_timeout(MS)
    made = Visitor(context, front)
    yield made
    assert made.complaints == []
    await context.close()


async def test_an_admin_adds_a_user_who_chooses_a_password(visitor: Visitor, browser: Browser, portal: Portal, front: Front) -> None:
    page = await visitor.login(portal.password)
    await page.get_by_role("link", name="Admin").click()
    await page.get_by_role("link", name="Users").click()
    await page.get_by_role("button", name="Add user").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill("anna")
    await dialog.get_by_role("button", name="Add user").click()
    await expect(dialog.get_by_role("button", name="Done")).to_be_visible()
    password = await dialog.get_by_role("textbox").input_value()
    await dialog.get_by_role("button", name="Done").click()
    await expect(page.get_by_role("row", name="anna")).to_contain_text("Has to choose a password")
    context = await browser.new_context(ignore_https_errors=True)
    anna = Visitor(context, front)
    theirs = await anna.login(password, "anna")
    await theirs.get_by_label("New password", exact=True).fill(OWN_PASSWORD)
    await theirs.get_by_label("New password again").fill(OWN_PASSWORD + "x")
    await theirs.get_by_role("button", name="Log in").click()
    await expect(theirs.get_by_role("alert")).to_have_text("The two new passwords differ.")
    await theirs.get_by_label("New password again").fill(OWN_PASSWORD)
    await theirs.get_by_role("button", name="Log in").click()
    await theirs.get_by_role("link", name="Account").click()
    await expect(theirs.get_by_role("heading", name="Logged in as anna (user)")).to_be_visible()
    await expect(theirs.locator("#connection")).to_have_attribute("data-state", "live")
    await expect(theirs.get_by_role("link", name="Admin")).to_be_hidden()
    # What ends something is asked first.
    await page.get_by_role("button", name="New password: anna").click()
    await expect(dialog).to_contain_text("The old one and its sessions end at once.")
    await dialog.get_by_role("button", name="Cancel").click()
    await expect(theirs.locator("#connection")).to_have_attribute("data-state", "live")
    await page.get_by_role("button", name="Disable: anna").click()
    await dialog.get_by_role("button", name="Disable").click()
    await expect(theirs).to_have_url(f"https://tclone.localhost:{front.port}/login")
    await context.close()
    assert anna.complaints == []


async def test_a_token_is_made_shown_once_and_revoked(visitor: Visitor, portal: Portal) -> None:
    page = await visitor.login(portal.password)
    await page.get_by_role("link", name="Account").click()
    await page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Name").fill('ci <img src=x onerror="window.hacked=1">')
    await dialog.get_by_label("fork:").check()
    await dialog.get_by_role("button", name="New token").click()
    await expect(dialog.get_by_role("button", name="Done")).to_be_visible()
    secret = await dialog.get_by_role("textbox").input_value()
    assert (await portal.program(secret).request("GET", "/api/v1/me")).status == 200
    await dialog.get_by_role("button", name="Done").click()
    assert secret not in await page.content()
    await page.reload()
    row = page.get_by_role("row", name="ci")
    await expect(row).to_contain_text("fork, read")
    # Two of one name are told apart by what the command line and the audit log call them.
    admin = await portal.login()
    [token] = await (await admin.request("GET", "/api/v1/tokens")).json()
    await expect(row).to_contain_text(token["id"])
    await row.get_by_role("button").click()
    await expect(page.get_by_text("No tokens yet.")).to_be_visible()
    assert (await portal.program(secret).request("GET", "/api/v1/me")).status == 401
    assert await page.evaluate("window.hacked") is None


async def test_the_password_is_changed_and_another_browser_logged_out(visitor: Visitor, portal: Portal) -> None:
    other = await portal.login()
    page = await visitor.login(portal.password)
    await page.get_by_role("link", name="Account").click()
    await expect(page.locator("#sessions tbody tr")).to_have_count(2)
    await page.get_by_label("Current password").fill(portal.password)
    await page.get_by_label("New password", exact=True).fill(OWN_PASSWORD)
    await page.get_by_label("New password again").fill(OWN_PASSWORD)
    await page.get_by_role("button", name="Change password").click()
    await expect(page.get_by_text("The password is changed")).to_be_visible()
    assert (await other.request("GET", "/api/v1/me")).status == 401


async def test_a_link_shows_the_desktop_and_its_secret_is_nowhere(visitor: Visitor, portal: Portal, engine: FakeEngine, front: Front) -> None:
    engine.add(name="desk")
    client = await portal.login()
    made = await (await client.request("POST", "/api/v1/workspaces/ws-1/shares", {})).json()
    secret = made["link"].partition("#")[2]
    page = await visitor.open(f"/share#{secret}")
    await expect(page.frame_locator("iframe").get_by_text("File Manager")).to_be_visible()
    await expect(page.get_by_role("heading", name="desk")).to_be_visible()
    assert front.entered == ["ws-1"]
    await expect(page).to_have_url(f"https://tclone.localhost:{front.port}/share")
    assert secret not in await page.title()
    assert not any(secret in line or "code=" in line for line in front.requests)
    await page.reload()
    await expect(page.frame_locator("iframe").get_by_text("File Manager")).to_be_visible()
    await client.request("DELETE", f"/api/v1/workspaces/ws-1/shares/{made['id']}")
    await page.reload()
    await expect(page.get_by_role("alert")).to_contain_text("expired or was revoked")


async def test_a_link_says_how_far_it_is_until_there_is_a_picture(visitor: Visitor, portal: Portal, engine: FakeEngine, front: Front) -> None:
    engine.add(name="desk")
    made = await (await (await portal.login()).request("POST", "/api/v1/workspaces/ws-1/shares", {})).json()
    front.sends.clear()
    front.draws = False
    page = await visitor.open("/share#" + made["link"].partition("#")[2])
    await page.clock.install()
    current = page.locator("#progress li.current .phase-name")
    await page.reload()
    await expect(current).to_have_text("Connecting to the desktop")
    await expect(page.locator("#progress li")).to_have_count(2)
    assert await page.locator("iframe").evaluate("(frame) => getComputedStyle(frame).opacity") == "0"
    front.sends.set()
    await expect(current).to_have_text("Waiting for its picture")
    # A page that speaks is not taken for one that does not tell of its picture, however long that takes.
    await page.clock.run_for(16_000)
    await expect(page.locator("#progress").get_by_role("status")).to_contain_text("takes longer than it should")
    assert await page.locator("iframe").evaluate("(frame) => getComputedStyle(frame).opacity") == "0"
    for width in (1280, 390):
        await page.set_viewport_size({"width": width, "height": 800})
        assert await barriers(page, f"a share that waits, {width} wide") == []
    drawing = 'document.getElementById("status-display").classList'
    desktop = next(frame for frame in page.frames if frame != page.main_frame)
    await desktop.evaluate(f'() => {drawing}.add("hidden")')
    await expect(page.locator("#progress")).to_be_hidden()
    await expect(page.locator("iframe")).to_have_css("opacity", "1")
    # When the stream stops, it says so again.
    await desktop.evaluate(f'() => {drawing}.remove("hidden")')
    await expect(page.locator("#progress")).to_contain_text("The picture has stopped")
    front.draws = True
    await page.clock.run_for(16_000)
    assert await barriers(page, "a share that has stopped") == []
    await page.get_by_role("button", name="Retry").click()
    await expect(page.frame_locator("iframe").get_by_text("File Manager")).to_be_visible()
    await expect(page.locator("#progress")).to_be_hidden()


async def test_a_viewer_that_tells_nothing_is_shown_after_a_while(visitor: Visitor, portal: Portal, engine: FakeEngine, front: Front) -> None:
    engine.add(name="desk")
    made = await (await (await portal.login()).request("POST", "/api/v1/workspaces/ws-1/shares", {})).json()
    front.tells = False
    page = await visitor.open("/share#" + made["link"].partition("#")[2])
    await expect(page.frame_locator("iframe").get_by_text("File Manager")).to_be_attached()
    # From here on no time passes but by what follows.
    await page.clock.install()
    await page.clock.pause_at(time.time() + 3600)
    await page.reload()
    await expect(page.frame_locator("iframe").get_by_text("File Manager")).to_be_attached()
    await expect(page.locator("#progress li.current .phase-name")).to_have_text("Connecting to the desktop")
    await page.clock.run_for(4_000)
    await expect(page.locator("iframe")).to_have_css("opacity", "0")
    await becomes(lambda: _after_a_while(page), True, "the desktop is shown")


async def _after_a_while(page: Page) -> bool:
    """Whether the desktop is shown once the time of a viewer that is silent is over; it begins when its page has loaded."""
    await page.clock.run_for(5_000)
    return await page.locator("iframe").evaluate("(frame) => getComputedStyle(frame).opacity") == "1"


async def test_half_a_link_is_said_to_be_half_a_link(visitor: Visitor) -> None:
    page = await visitor.open("/share")
    await expect(page.get_by_role("alert")).to_contain_text("not complete")


async def test_the_share_dialog_makes_a_link_shows_its_viewers_and_revokes_it(visitor: Visitor, portal: Portal, engine: FakeEngine) -> None:
    engine.add(name="desk")
    page = await visitor.login(portal.password)
    await expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    await page.goto(page.url.rpartition("/")[0] + "/w/ws-1")
    await page.get_by_role("button", name="Share").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Who is it for?").fill("review")
    await dialog.get_by_role("button", name="Make a link").click()
    await expect(dialog.get_by_role("button", name="Done")).to_be_visible()
    link = await dialog.get_by_role("textbox").input_value()
    await dialog.get_by_role("button", name="Done").click()
    share = portal.control.access.shares.of("ws-1")[0]
    portal.control.viewers.report("a worker", [(share.id, "ws-1", 2)])
    await page.get_by_role("button", name="Share").click()
    await expect(page.get_by_role("dialog")).to_contain_text("review")
    await expect(page.get_by_role("dialog")).to_contain_text("2 viewers")
    portal.control.viewers.report("a worker", [(share.id, "ws-1", 1)])
    await expect(page.get_by_role("dialog")).to_contain_text("1 viewer")
    await page.get_by_role("button", name="Revoke the link review").click()
    await expect(page.get_by_role("dialog")).to_contain_text("nobody can watch")
    assert portal.control.access.shares.find(link.partition("#")[2]) is None


async def test_a_user_sees_what_it_has_and_may_have(visitor: Visitor, portal: Portal, engine: FakeEngine) -> None:
    gib = 1 << 30
    admin = await portal.login()
    anna = await portal.user(admin, "anna")
    wanted = {"quota": {"workspaces": 3, "memory": 10 * gib, "disk": None}}
    assert (await admin.request("PATCH", "/api/v1/users/anna", wanted)).status == 200
    assert (await anna.request("POST", "/api/v1/workspaces", {"image": "webtop-xfce", "name": "annas", "memory": 4 * gib})).status == 201
    page = await visitor.login(OWN_PASSWORD, "anna")
    await page.get_by_role("link", name="Account").click()
    part = page.get_by_role("region", name="What you have")
    await expect(part.locator("dd")).to_have_text(["1 of 3", "4 GiB of 10 GiB", "10 GiB, no limit", "2, no limit"])
    assert await part.get_by_role("meter", name="Memory").evaluate("meter => meter.value / meter.max") == 0.4
    await expect(part).not_to_contain_text("All users together")
    # It is so at any time, not only when the page was opened.
    assert (await anna.request("POST", "/api/v1/workspaces", {"image": "webtop-xfce", "name": "more", "memory": 4 * gib})).status == 201
    await expect(part.locator("dd").first).to_have_text("2 of 3")
    await page.get_by_role("button", name="Launch", exact=True).click()
    await expect(page.get_by_role("dialog")).to_contain_text("You have 2 of 3 workspaces, 8 GiB of 10 GiB of memory.")
    await page.keyboard.press("Escape")
    await page.get_by_role("link", name="TClone, all workspaces").click()
    await page.locator("article.tile").first.get_by_role("button", name="Fork", exact=True).click()
    await expect(page.get_by_role("dialog")).to_contain_text("You have 2 of 3 workspaces")


async def test_an_admin_sees_what_all_have_together(visitor: Visitor, portal: Portal, engine: FakeEngine) -> None:
    engine.add(memory_limit=2 << 30)
    admin = await portal.login()
    settings = await (await admin.request("GET", "/api/v1/settings")).json()
    assert (await admin.request("PUT", "/api/v1/settings", {**settings, "all_workspaces": 4})).status == 200
    page = await visitor.login(portal.password)
    await page.get_by_role("link", name="Account").click()
    await expect(page.locator(".quotas").nth(1).locator("dd").first).to_have_text("1 of 4")
    await expect(page.locator(".quotas").first.locator("dd").first).to_have_text("0, no limit")
