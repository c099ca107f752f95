"""The panels of a workspace's page in Chromium, against the fake engine."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.portal.browsing import Browsing, becomes
from tests.portal.conftest import PATIENCE, Portal
from tests.portal.fake_engine import FakeEngine
from tests.portal.front import Front


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser, portal: Portal, front: Front, engine: FakeEngine) -> AsyncIterator[Page]:
    """The page of a branch, logged in; it fails the test on any script error or breach of the content security policy."""
    engine.add(name="desk")
    engine.add(name="try", kind="branch", parent="ws-1", generation=1)
    browsing, made = await Browsing.login(browser, portal, front, permissions=["clipboard-read", "clipboard-write"])
    await made.goto(f"{browsing.origin}/w/ws-2")
    await expect(made.get_by_role("tab", name="Files")).to_be_visible()
    yield made
    await browsing.end()


async def test_a_disk_limit_is_shown_with_its_use(page: Page, engine: FakeEngine) -> None:
    engine.inside.disk = {"disk_limit": 10 << 30, "disk_counted": 3 << 30}
    await page.reload()
    await expect(page.locator(".memory")).to_contain_text("3.0 GiB of 10.0 GiB written")


async def test_tabs_by_keyboard_and_address(page: Page) -> None:
    await expect(page.locator(".memory")).to_contain_text("Memory 412 MiB unique 88.0 MiB shared 30.0 MiB written")
    await page.get_by_role("tab", name="Desktop").focus()
    for name in ("Terminal", "Files", "Ports", "Changes"):
        await page.keyboard.press("ArrowRight")
        tab = page.get_by_role("tab", name=name)
        await expect(tab).to_have_attribute("aria-selected", "true")
        await expect(page.get_by_role("tabpanel", name=name)).to_be_visible()
        await tab.focus()
    await expect(page).to_have_url(re.compile("#changes$"))
    await page.reload()
    await expect(page.get_by_role("tabpanel", name="Changes")).to_be_visible()
    await page.get_by_role("tab", name="Changes").focus()
    await page.keyboard.press("Home")
    await expect(page.get_by_role("tabpanel", name="Changes")).to_be_hidden()
    await expect(page).to_have_url(re.compile("^[^#]*$"))


async def test_memory_in_the_lineage(page: Page) -> None:
    await page.get_by_role("link", name="TClone, all workspaces").click()
    for name in ("desk", "try"):
        await expect(page.locator(".tree-item", has_text=name)).to_contain_text("412 MiB unique · 88.0 MiB shared")


async def test_terminal(page: Page, engine: FakeEngine) -> None:
    await page.get_by_role("tab", name="Terminal").click()
    screen = page.locator(".xterm-rows")
    await expect(screen).to_contain_text("$")
    await page.keyboard.type("hello \x1b")
    await expect(screen).to_contain_text("hello")
    # Colours of every kind are drawn, which the page's policy allows only without inline styles.
    await page.keyboard.insert_text("\x1b[38;2;10;200;30mgreen\x1b[0m")
    await expect(screen.get_by_text("green").last).to_have_css("color", "rgb(10, 200, 30)")
    rows, cols = engine.inside.shells[0]["rows"], engine.inside.shells[0]["cols"]
    assert rows > 20 and cols > 40
    await page.set_viewport_size({"width": 1280, "height": 500})
    await _until(lambda: bool(engine.inside.sizes) and engine.inside.sizes[-1][0] < rows, page)
    await page.keyboard.press("Control+F6")
    await expect(page.get_by_role("tab", name="Terminal")).to_be_focused()
    await page.locator(".xterm-helper-textarea").focus()
    await page.keyboard.type("exit\r")
    await expect(page.get_by_text("The shell ended with status 3.")).to_be_visible()
    await page.get_by_role("button", name="New shell").click()
    await _until(lambda: len(engine.inside.shells) == 2 and engine.inside.open_shells == 1, page)
    await page.get_by_role("button", name="Log out").click()
    await page.wait_for_url("**/login")
    await _until(lambda: engine.inside.open_shells == 0, page)


async def _until(condition, page: Page) -> None:
    for _ in range(int(PATIENCE * 20)):
        if condition():
            return
        await page.wait_for_timeout(50)
    raise AssertionError("it did not come true")


async def test_files(page: Page, engine: FakeEngine, tmp_path: Path) -> None:
    await page.get_by_role("tab", name="Files").click()
    panel = page.get_by_role("tabpanel", name="Files")
    await expect(panel.locator(".crumb[aria-current]")).to_have_text("user")
    await expect(panel.locator("tbody tr")).to_have_count(4)
    # Up, into a folder, and back by the path.
    await panel.get_by_role("button", name="Documents", exact=True).click()
    await expect(panel.get_by_text("Nothing in here.")).to_be_visible()
    await panel.get_by_role("button", name="user", exact=True).click()
    source = tmp_path / "a & b %41.txt"
    source.write_bytes(b"from outside")
    async with page.expect_file_chooser() as chooser:
        await panel.get_by_role("button", name="Upload").click()
    await (await chooser.value).set_files(source)
    await expect(panel.locator('tr[data-name="a & b %41.txt"]')).to_be_visible()
    assert engine.inside.files[b"/home/user/a & b %41.txt"] == b"from outside"
    # The same name again asks first.
    source.write_bytes(b"again")
    await panel.locator("input[type=file]").set_input_files(source)
    await page.get_by_role("dialog").get_by_role("button", name="Replace").click()
    await _until(lambda: engine.inside.files[b"/home/user/a & b %41.txt"] == b"again", page)
    # One that came to be there meanwhile is asked for, too.
    late = tmp_path / "late.txt"
    late.write_bytes(b"mine")
    engine.inside.files[b"/home/user/late.txt"] = b"theirs"
    await panel.locator("input[type=file]").set_input_files(late)
    await page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert engine.inside.files[b"/home/user/late.txt"] == b"theirs"
    for name, content in (("notes.txt", b"first\nsecond\n"), ("\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}", b"odd")):
        async with page.expect_download() as saving:
            await panel.get_by_role("button", name=f"Save {name}").last.click()
        assert Path(await (await saving.value).path()).read_bytes() == content
    await panel.get_by_role("button", name="New folder").click()
    await page.get_by_role("dialog").get_by_label("Name").fill("made")
    await page.get_by_role("dialog").get_by_role("button", name="Create").click()
    await expect(panel.get_by_role("button", name="made", exact=True)).to_be_visible()
    await panel.get_by_role("button", name="Remove made").click()
    await page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    await expect(panel.get_by_role("button", name="made", exact=True)).to_have_count(0)
    assert b"/home/user/made" not in engine.inside.directories


async def test_a_file_is_dropped_in(page: Page, engine: FakeEngine) -> None:
    await page.get_by_role("tab", name="Files").click()
    await expect(page.locator(".files tbody tr")).to_have_count(4)
    carried = await page.evaluate_handle("() => { const carried = new DataTransfer(); carried.items.add(new File(['dropped'], 'drop.txt')); return carried; }")
    await page.dispatch_event(".files-panel", "dragenter", {"dataTransfer": carried})
    await expect(page.locator(".drop")).to_be_visible()
    await page.dispatch_event(".files-panel", "drop", {"dataTransfer": carried})
    await expect(page.locator('tr[data-name="drop.txt"]')).to_be_visible()
    assert engine.inside.files[b"/home/user/drop.txt"] == b"dropped"
    await expect(page.locator(".drop")).to_be_hidden()


async def test_ports(page: Page, engine: FakeEngine) -> None:
    published = engine.workspaces["ws-2"]["ports"]["3000"]
    await page.get_by_role("tab", name="Ports").click()
    panel = page.get_by_role("tabpanel", name="Ports")
    await expect(panel.locator(".port-list li")).to_have_count(3)
    first, second, stream = (panel.locator(".port-list li").nth(index) for index in range(3))
    await expect(first).to_contain_text("node")
    await expect(first.get_by_role("link")).to_have_attribute("href", f"http://localhost:{published}/")
    await first.get_by_role("button", name="Copy curl").click()
    assert await page.evaluate("navigator.clipboard.readText()") == f"curl http://localhost:{published}/"
    await second.get_by_role("button", name="Publish").click()
    await expect(second.get_by_role("link")).to_have_attribute("href", f"http://localhost:{45000 + 0}/")
    await second.get_by_role("button", name="Unpublish").click()
    await expect(second.get_by_role("button", name="Publish")).to_be_visible()
    await expect(stream.get_by_role("button")).to_have_count(0)
    await panel.get_by_label("Another port").fill("70000")
    await page.keyboard.press("Enter")
    refusal = panel.get_by_text("A port is a number from 1 to 65535.")
    await expect(refusal).to_be_visible()
    # The list that comes anew every few seconds has nothing to do with it.
    async with page.expect_response(lambda answer: answer.url.endswith("/listeners")):
        pass
    await page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    await expect(refusal).to_be_visible()
    await panel.get_by_label("Another port").fill("9100")
    await page.keyboard.press("Enter")
    await expect(panel.locator(".port-list li")).to_have_count(4)
    await expect(panel.locator(".port-list li").last).to_contain_text("nothing listens")


async def test_changes(page: Page) -> None:
    await page.get_by_role("tab", name="Files").click()
    await page.get_by_role("button", name="Changes in notes.txt").click()
    panel = page.get_by_role("tabpanel", name="Changes")
    await expect(panel.locator(".diff tr.added")).to_have_text(re.compile(r"\+<b>second</b>"))
    await expect(panel.locator(".diff tr.deleted .line-number").first).to_have_text("2")
    await panel.get_by_role("button", name="All changes").click()
    await expect(panel.get_by_text("1 only here, 1 different, 1 only in desk.")).to_be_visible()
    await expect(panel.locator(".change-list li")).to_have_count(3)
    # Logs of the desktop itself are counted, and shown when asked for.
    await expect(panel.get_by_text("3 files that the desktop writes by itself")).to_be_visible()
    await panel.get_by_role("button", name="Show", exact=True).click()
    await expect(panel.get_by_text("2 only here, 3 different, 1 only in desk.")).to_be_visible()
    await expect(panel.locator(".change-list li", has_text="stream.log")).to_be_visible()
    # What somebody did stands before them: beyond a length the list is cut.
    await expect(panel.locator(".change-list .change-path")).to_have_text(["/home/user/new.txt", "/home/user/notes.txt", "/home/user/old", re.compile("stream.log"), re.compile("xsession-errors"), re.compile("selkies_web")])
    await panel.get_by_role("button", name="Hide", exact=True).click()
    options = await panel.get_by_label("Compared with").locator("option").all_inner_texts()
    assert options == ["its parent, desk", "its image, webtop-xfce"]
    # The parent goes on, too: what it has made since is not what this one has deleted. An image stays as it is.
    await expect(panel.get_by_text("desk has gone on since the fork")).to_be_visible()
    await panel.get_by_label("Compared with").select_option("image")
    await expect(panel.get_by_text("1 added, 1 changed, 1 deleted.")).to_be_visible()
    await expect(panel.get_by_text("has gone on since the fork")).to_be_hidden()
    await expect(panel.locator(".change-list li")).to_have_count(3)


async def test_chosen_changes_are_promoted(page: Page, engine: FakeEngine) -> None:
    await page.get_by_role("tab", name="Changes").click()
    panel = page.get_by_role("tabpanel", name="Changes")
    promote = panel.get_by_role("button", name="Promote")
    await expect(promote).to_be_disabled()
    await panel.get_by_label("Choose /home/user/new.txt").check()
    await expect(promote).to_have_text("Promote 1…")
    await panel.get_by_label("Choose all that are listed").check()
    await expect(promote).to_have_text("Promote 3…")
    await panel.get_by_label("Choose /home/user/notes.txt").uncheck()
    # What stands against it is told before anything is done, and only asked for it is done all the same.
    engine.inside.conflicts = {"/home/user/new.txt"}
    # With one that is never taken there is nothing to agree to: the list says which, and why.
    engine.inside.refused = {"/home/user/old"}
    await promote.click()
    await expect(page.get_by_role("dialog")).to_contain_text("1 path cannot be promoted; the list says why.")
    await expect(page.get_by_role("dialog").locator("li", has_text="/home/user/old")).to_contain_text("refused /home/user/oldIt is a fifo")
    await expect(page.get_by_role("dialog").get_by_role("button", name="Promote", exact=True)).to_have_count(0)
    await page.keyboard.press("Escape")
    engine.inside.refused = set()
    await promote.click()
    dialog = page.get_by_role("dialog")
    await expect(dialog.get_by_text("desk has changed one of them itself since the two parted.")).to_be_visible()
    submit = dialog.get_by_role("button", name="Promote", exact=True)
    await expect(submit).to_be_disabled()
    assert [body["dry_run"] for _, body in engine.inside.promoted] == [True, True]
    await dialog.get_by_label("Replace what desk has changed, too").check()
    await submit.click()
    await expect(panel.get_by_text("2 paths promoted into desk.")).to_be_visible()
    await expect(dialog).to_be_hidden()
    ref, body = engine.inside.promoted[-1]
    assert (ref, body["into"], body["force"], body["dry_run"]) == ("ws-2", "ws-1", True, False)
    assert "/home/user/new.txt" in body["paths"] and len(body["paths"]) == 2
    # An image takes no files.
    await panel.get_by_label("Compared with").select_option("image")
    await expect(panel.locator(".change-list li")).to_have_count(3)
    await expect(promote).to_be_hidden()


async def test_on_a_phone_a_panel_takes_the_place_of_the_desktop(page: Page) -> None:
    await page.set_viewport_size({"width": 390, "height": 800})
    for name in ("Terminal", "Files", "Ports", "Changes"):
        await page.get_by_role("tab", name=name).click()
        await expect(page.get_by_role("tabpanel", name=name)).to_be_visible()
        await expect(page.locator("#grid")).to_be_hidden()
        await becomes(lambda: page.evaluate("document.documentElement.scrollWidth <= 390"), True, name)
    await page.get_by_role("tab", name="Desktop").click()
    await expect(page.locator("#grid")).to_be_visible()
