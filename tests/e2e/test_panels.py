"""The panels' story: files in and out by the page, what a branch changed, a shell in the page, and a server found, published and reached.

The tests are steps of one story and run in their order; each begins with what the one before left.
"""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from tests.e2e.portal import Portal
from tests.e2e.stack import Stack
from tests.e2e.waiting import PATIENCE, until

pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(1200)]

MS = PATIENCE * 1000
SOURCE, BRANCH = "panels", "panels-clone"
UPLOADED = b"seen from outside\n" * 3


def panel(portal: Portal, name: str) -> Locator:
    """A panel of the page that is open, after a click on its tab."""
    portal.page.get_by_role("tab", name=name).click()
    found = portal.page.get_by_role("tabpanel", name=name)
    expect(found).to_be_visible(timeout=MS)
    return found


def test_a_file_sent_by_the_page_is_in_the_desktop(portal: Portal, stack: Stack, tmp_path: Path) -> None:
    stack.tclone("run", "webtop-xfce", "--name", SOURCE)
    source = stack.workspaces()[SOURCE]["id"]
    portal.login(stack.password)
    portal.open_alone(source).wait_live()
    expect(portal.page.locator(".memory")).to_contain_text("unique", timeout=MS)
    files = panel(portal, "Files")
    expect(files.locator(".crumb[aria-current]")).to_have_text("user", timeout=MS)
    sent = tmp_path / "a file & more.txt"
    sent.write_bytes(UPLOADED)
    files.locator("input[type=file]").set_input_files(sent)
    expect(files.locator(f'tr[data-name="{sent.name}"]')).to_be_visible(timeout=MS)
    assert stack.content(source, f"'{sent.name}'") == UPLOADED.decode()
    assert stack.output(source, f"stat -c %U:%a '{sent.name}'") == "user:644\n"
    stack.output(source, "seq 1 200 > made-inside")
    files.get_by_role("button", name="Refresh").click()
    with portal.page.expect_download() as saving:
        files.get_by_role("button", name="Save made-inside").last.click()
    assert Path(saving.value.path()).read_text() == "".join(f"{number}\n" for number in range(1, 201))
    portal.shot("panels-files")


def test_what_a_branch_changed_is_shown_against_its_parent(portal: Portal, stack: Stack, tmp_path: Path) -> None:
    source = stack.workspaces()[SOURCE]["id"]
    stack.fork(SOURCE)
    branch = stack.workspaces()[BRANCH]["id"]
    portal.open_alone(branch)
    files = panel(portal, "Files")
    new = tmp_path / "only-here.txt"
    new.write_text("one\ntwo\n")
    expect(files.locator('tr[data-name="made-inside"]')).to_be_visible(timeout=MS)
    files.locator("input[type=file]").set_input_files(new)
    expect(files.locator(f'tr[data-name="{new.name}"]')).to_be_visible(timeout=MS)
    stack.output(branch, "sed -i 's/^100$/a hundred/' made-inside; rm 'a file & more.txt'")
    changes = panel(portal, "Changes")
    row = lambda name: changes.locator(".change-list li", has_text=name)  # noqa: E731
    expect(row(f"/home/user/{new.name}")).to_contain_text("only here", timeout=MS)
    expect(row("/home/user/a file & more.txt")).to_contain_text("only in ")
    row("/home/user/made-inside").get_by_role("button").click()
    expect(changes.locator(".diff tr.added")).to_have_text("100+a hundred", timeout=MS)
    expect(changes.locator(".diff tr.deleted")).to_have_text("100−100")
    portal.shot("panels-difference")
    assert stack.content(source, new.name) is None


def test_a_shell_in_the_page_runs_what_is_typed(portal: Portal, stack: Stack) -> None:
    branch = stack.workspaces()[BRANCH]["id"]
    panel(portal, "Terminal")
    screen = portal.page.locator(".xterm-rows")
    expect(screen).to_contain_text("$", timeout=MS)
    portal.page.keyboard.type("cd ~ && echo $((6*7)) $(whoami) $(tput cols) > typed; cat typed\n", delay=20)
    until("the typed line arrived", lambda: (stack.content(branch, "typed") or "").startswith("42 user "))
    assert int(stack.content(branch, "typed").split()[2]) > 40
    expect(screen).to_contain_text("42 user", timeout=MS)
    portal.shot("panels-terminal")


def test_a_server_is_found_published_and_reached(portal: Portal, stack: Stack) -> None:
    portal.page.keyboard.type("mkdir web && cd web && echo from the branch > index.html && python3 -m http.server --bind 127.0.0.1 8123 &\n", delay=10)
    ports = panel(portal, "Ports")
    row = ports.locator(".port-list li", has_text=":8123")
    expect(row).to_contain_text("python3", timeout=MS)
    row.get_by_role("button", name="Publish").click()
    link = row.get_by_role("link")
    expect(link).to_be_visible(timeout=MS)
    address = link.get_attribute("href")
    assert address is not None

    def answer() -> str:
        try:
            with urllib.request.urlopen(address, timeout=20) as found:
                return found.read().decode()
        except OSError:
            return ""

    assert until("the published server answers", answer) == "from the branch\n"
    assert stack.workspaces()[BRANCH]["ports"]["8123"] == int(address.rsplit(":", 1)[1].rstrip("/"))
    portal.shot("panels-ports")
    row.get_by_role("button", name="Unpublish").click()
    expect(row.get_by_role("button", name="Publish")).to_be_visible(timeout=MS)
    assert answer() == ""


def test_the_shell_ended_with_its_page_and_all_is_removed(portal: Portal, stack: Stack) -> None:
    branch = stack.workspaces()[BRANCH]["id"]
    portal.open_home()
    until("the shell of the page has ended", lambda: stack.run(branch, "pgrep -f '[b]ash -l'")[0] == 1)
    assert portal.errors == []
    for name in (BRANCH, SOURCE):
        stack.tclone("rm", name)
    portal.logout()
