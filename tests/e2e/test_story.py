"""The main story: launch a desktop, work in it, fork it live, drive source and branches side by side, discard, log out.

The tests are steps of one story and run in their order; each begins with what the one before left.
"""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e import pictures
from tests.e2e.portal import PANEL_TERMINAL, Portal
from tests.e2e.stack import Footprint, Stack, lives
from tests.e2e.waiting import until

pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(1800)]

GUEST = Path(__file__).parent / "guest"
SOURCE = "source"
BRANCH, OTHER = "source-clone-0", "source-clone-1"
TERMINAL, COUNTER = "Terminal", "Counter"
# Long enough for a fork to happen in the midst of it.
TYPED = "the quick brown fox jumps over the lazy dog 0123456789 " * 3

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.fixture
def ids(stack: Stack) -> dict[str, str]:
    """Name to id of every workspace there is."""
    return {name: workspace["id"] for name, workspace in stack.workspaces().items()}


def counts(stack: Stack, workspace: str) -> list[int]:
    """What the counter of a workspace has written so far."""
    return [int(line) for line in (stack.content(workspace, "count") or "").split()]


def ask_server(port: int) -> int:
    """The next number of a workspace's development server, asked from the host by its published port."""
    with urllib.request.urlopen(f"http://localhost:{port}/next", timeout=20) as answer:
        return int(answer.read())


def page_title(portal: Portal, workspace: str) -> str:
    """Title of the page that is open in a workspace's Chromium."""
    look = lambda: [title for title in portal.tile(workspace).windows() if "page-" in title]  # noqa: E731
    return until(f"Chromium's page on {workspace}", look)[0].removesuffix(" - Chromium")


def test_a_wrong_password_is_refused(portal: Portal) -> None:
    portal.try_login("not-the-password")
    portal.page.get_by_text("User or password is wrong.").wait_for()
    assert portal.context.cookies() == [], "a refused login left a cookie"
    portal.shot("01-wrong-password")


def test_log_in_with_the_printed_password(portal: Portal, stack: Stack) -> None:
    portal.login(stack.password)
    portal.page.get_by_text("No workspaces yet").wait_for()
    portal.shot("02-empty")


def test_launch_a_desktop(portal: Portal, stack: Stack) -> None:
    phases = portal.launch(SOURCE)
    assert len(phases) >= 3, f"the dialog showed hardly any progress: {phases}"
    source = stack.workspaces()[SOURCE]
    assert source["state"] == "ready" and source["desktop"], source
    portal.tile(source["id"]).wait_live()
    portal.shot("03-launched")


def test_open_a_terminal_by_the_mouse_and_type(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    for name in ("counter.py", "server.py"):
        stack.output(ids[SOURCE], f"cat > {name}", stdin=(GUEST / name).read_bytes())
    stack.stop_repeats(ids[SOURCE])
    tile = portal.tile(ids[SOURCE])
    tile.click_icon(*PANEL_TERMINAL)
    tile.window(TERMINAL)
    # Out of the way of what comes; a person would drag it.
    stack.output(ids[SOURCE], f"wmctrl -r '{TERMINAL}' -e 0,40,420,560,280")
    tile.click_window(TERMINAL)
    tile.wait_moves(lambda: tile.enter("fruit=kiwi-$((6*7)); PS1='$ '; clear"))
    tile.enter("echo $fruit > typed")
    until("the typed line arrived", lambda: stack.content(ids[SOURCE], "typed") == "kiwi-42\n")


def test_start_a_counter_a_server_and_a_page(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    source = ids[SOURCE]
    tile = portal.tile(source)
    tile.enter("python3 server.py &")
    tile.enter(f"xfce4-terminal --title {COUNTER} --geometry 32x12+40+60 -x python3 counter.py &")
    tile.window(COUNTER)
    until("the counter counts", lambda: len(counts(stack, source)) >= 2)
    port = stack.workspaces()[SOURCE]["ports"]["3000"]
    until("the server answers", lambda: stack.run(source, "curl -fsS localhost:3000/")[0] == 0)
    assert ask_server(port) == 1
    tile.click_window(TERMINAL)
    tile.enter("chromium --window-position=640,40 --window-size=600,440 --app=http://localhost:3000/ &")
    assert re.fullmatch(r"page-[a-z0-9]+", page_title(portal, source))
    tile.click_window(TERMINAL)
    tile.enter("clear; echo shell $$ has $fruit")
    tile.wait_moves()
    portal.shot("04-working")


def test_fork_into_two(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    source = ids[SOURCE]
    before = counts(stack, source)
    title = page_title(portal, source)
    phases = portal.fork(source, copies=2)
    assert len(phases) >= 3, f"the dialog showed hardly any progress: {phases}"
    made = {name: workspace["id"] for name, workspace in stack.workspaces().items()}
    everyone = [made[name] for name in (SOURCE, BRANCH, OTHER)]
    with ThreadPoolExecutor() as pool:
        lists = list(pool.map(lambda workspace: portal.tile(workspace).window_list(), everyone))
    looks = [_looks(listed) for listed in lists]
    assert looks[0] == looks[1] == looks[2], "windows, titles or places differ right after the fork:\n" + "\n".join(lists)
    assert title in lists[1], f"Chromium's page {title} is not in the branch:\n{lists[1]}"
    until("source and branches are side by side", lambda: portal.tiles() == everyone)
    for workspace in everyone:
        written = until(f"the counter of {workspace} goes on", lambda: _beyond(counts(stack, workspace), before[-1] + 2))
        assert written == list(range(1, len(written) + 1)), f"the counter of {workspace} lost or repeated a number: {written}"


def _looks(listed: str) -> tuple[list[str], list[list[str]]]:
    """Windows by id, place and title; and the places of the desktop's background. That one is made anew, with another id, three seconds after a desktop's last
    viewer has gone, since the stream server then takes back the monitor that it had defined: a busy machine comes to look later than that."""
    lines = listed.splitlines()
    background = [line.split()[1:6] for line in lines if line.endswith(" Desktop")]
    return [line for line in lines if not line.endswith(" Desktop")], background


def _beyond(written: list[int], number: int) -> list[int]:
    return written if written[-1] > number else []


def test_copies_are_still_pictures_until_they_are_worked_in(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    portal.tile(ids[SOURCE]).wait_live()
    for name in (BRANCH, OTHER):
        portal.tile(ids[name]).wait_still()
    before = portal.tile(ids[BRANCH]).still()
    until("the still picture follows the counter", lambda: pictures.moves(before, portal.tile(ids[BRANCH]).still()))
    portal.shot("05-spotlight")
    portal.choose(ids[OTHER]).wait_live()
    portal.tile(ids[SOURCE]).wait_still()
    portal.all_live()


def test_three_tiles_are_live(portal: Portal, ids: dict[str, str]) -> None:
    for workspace in ids.values():
        portal.tile(workspace).wait_live()
        portal.tile(workspace).wait_moves()
    portal.shot("05-three-tiles")


def test_typing_in_a_branch_changes_nothing_elsewhere(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    tile = portal.tile(ids[BRANCH])
    tile.click_window(TERMINAL)
    tile.enter("echo $fruit-branch > /tmp/proof; history | grep -c kiwi > /tmp/history; echo 1000 > jump")
    until("the line typed in the branch did its work", lambda: stack.content(ids[BRANCH], "/tmp/proof") == "kiwi-42-branch\n")
    assert int(until("the history", lambda: stack.content(ids[BRANCH], "/tmp/history"))) >= 1, "the shell's history was lost"
    for workspace in (ids[SOURCE], ids[OTHER]):
        assert stack.content(workspace, "/tmp/proof") is None, f"typing in {ids[BRANCH]} made a file in {workspace}"
    until("the branch's counter goes its own way", lambda: counts(stack, ids[BRANCH])[-1] > 1000)
    for workspace in (ids[SOURCE], ids[OTHER]):
        assert counts(stack, workspace)[-1] < 1000, f"the counter of {workspace} followed that of {ids[BRANCH]}"


def test_the_page_of_a_branch_is_its_own(portal: Portal, ids: dict[str, str]) -> None:
    title = page_title(portal, ids[SOURCE])
    tile = portal.tile(ids[OTHER])
    x, y, width, height = tile.window(title)
    tile.click(x + width // 2, y + height // 2)
    until("the page in the branch noticed the click", lambda: page_title(portal, ids[OTHER]) == f"{title}-clicked")
    for workspace in (ids[SOURCE], ids[BRANCH]):
        assert page_title(portal, workspace) == title, f"a click in {ids[OTHER]} reached {workspace}"


def test_published_ports_have_state_of_their_own(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    ports = {}
    for name in (SOURCE, BRANCH, OTHER):
        link = portal.tile(ids[name]).element.locator("a.port:not(.more)").get_attribute("href") or ""
        ports[name] = int(link.rpartition(":")[2])
        assert ports[name] == stack.workspaces()[name]["ports"]["3000"], f"the tile of {name} links {link}"
    assert len(set(ports.values())) == 3, f"host ports are shared: {ports}"
    assert [ask_server(ports[BRANCH]) for _ in range(3)] == [2, 3, 4], "the branch's server did not go on from its source's state"
    assert ask_server(ports[SOURCE]) == 2, "asking the branch's server changed the source's"
    assert ask_server(ports[OTHER]) == 2, "asking one branch's server changed the other's"


def test_clipboards_are_apart(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    paste = "timeout 5 xclip -o -selection clipboard 2>/dev/null || true"
    copy = "printf secret-of-one | xclip -i -selection clipboard >/dev/null 2>&1"
    stack.output(ids[BRANCH], copy)
    until("the branch has its clipboard", lambda: stack.output(ids[BRANCH], paste) == "secret-of-one")
    portal.tile(ids[OTHER]).click_window(TERMINAL)
    portal.tile(ids[SOURCE]).click_window(TERMINAL)
    for workspace in (ids[SOURCE], ids[OTHER]):
        assert "secret" not in stack.output(workspace, paste), f"the clipboard of {ids[BRANCH]} shows in {workspace}"
    # What came of the fork goes by itself, as every message.
    portal.page.locator(".toast").wait_for(state="detached")
    portal.shot("grid")


def test_a_branch_of_a_branch(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    portal.fork(ids[BRANCH], copies=1, name="grandchild")
    grandchild = stack.workspaces()["grandchild"]
    assert grandchild["parent"] == ids[BRANCH] and grandchild["generation"] == 2, grandchild
    tile = portal.tile(grandchild["id"])
    tile.wait_live()
    tile.click_window(TERMINAL)
    tile.enter("echo $fruit-grandchild > /tmp/grandchild")
    until("typing works in a branch of a branch", lambda: stack.content(grandchild["id"], "/tmp/grandchild") == "kiwi-42-grandchild\n")
    written = counts(stack, grandchild["id"])
    assert written[-1] > 1000, "the branch of a branch did not go on from the branch's number"
    assert stack.content(ids[BRANCH], "/tmp/grandchild") is None
    portal.shot("06-grandchild")


def until_gone(footprint: Footprint) -> None:
    """Wait until nothing of a workspace is left on the host; the failure names what is."""
    left: list[str] = []

    def gone() -> bool:
        left[:] = footprint.left()
        return not left

    try:
        until(f"all of {footprint.workspace} is gone from the host", gone, every=0.02)
    except AssertionError as failure:
        raise AssertionError(f"{failure}; still there: {left}") from None


def test_discard_leaves_nothing(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    took: dict[str, float] = {}
    for name in ("grandchild", OTHER):
        footprint = Footprint.take(stack, stack.workspaces()[name])
        assert footprint.processes and footprint.cgroups, f"nothing of {name} found on the host"
        there = footprint.left()
        assert len(there) >= len(footprint.processes) + 5, f"hardly anything of {name} found on the host: {there}"
        portal.discard(ids[name])
        clicked = time.monotonic()
        until_gone(footprint)
        took[name] = time.monotonic() - clicked
        portal.page.locator(f'.tile[data-workspace="{ids[name]}"]').wait_for(state="detached")
    # Other work on the machine makes one slower than it is, none faster.
    assert min(took.values()) <= 2.0, f"seconds that discarding took: {took}"
    assert set(stack.workspaces()) == {SOURCE, BRANCH}
    portal.shot("07-discarded")


def test_fork_into_four_while_a_viewer_types(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    tile = portal.open_alone(ids[SOURCE])
    tile.wait_live()
    tile.click_window(TERMINAL)
    # No key repeats (test_open_a_terminal…), as one that is down while the source pauses for over a second would. The question is whether something is lost.
    tile.enter("clear; cat > typed")
    result: dict = {}
    worker = threading.Thread(target=lambda: result.update(stack.fork(ids[SOURCE], "--copies", "4", "--name", "four")))
    worker.start()
    rounds = 0
    # Typed for as long as the fork lasts, a line at a time.
    while worker.is_alive() or rounds == 0:
        tile.enter(TYPED)
        rounds += 1
    worker.join()
    portal.page.keyboard.press("Control+d")
    assert len(result.get("branches", [])) == 4, f"the fork under typing failed: {result}"
    assert [branch["error"] for branch in result["branches"]] == [None] * 4, result["branches"]
    expected = f"{TYPED}\n" * rounds
    until("the end of the typing arrived", lambda: tile.at_prompt("cat"))
    assert stack.content(ids[SOURCE], "typed") == expected, "what was typed during the fork is not what the source got"
    portal.shot("08-typed-through-a-fork")


def test_four_copies_are_live(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    portal.open_home()
    branches = [ids[f"four-{index}"] for index in range(4)]
    for workspace in branches:
        portal.tile(workspace).wait_live()
        portal.tile(workspace).wait_moves()
    portal.shot("09-six-tiles")
    ports = [stack.workspaces()[f"four-{index}"]["ports"]["3000"] for index in range(4)]
    assert [ask_server(port) for port in ports] == [3] * 4, "the copies' servers are not each at the source's state"
    stack.tclone("rm", *branches)
    for workspace in branches:
        portal.page.locator(f'.tile[data-workspace="{workspace}"]').wait_for(state="detached")


def test_a_desktop_is_closed_to_strangers(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    stranger = portal.context.browser.new_context(ignore_https_errors=True)
    try:
        page = stranger.new_page()
        answer = page.goto(stack.desktop_origin(ids[SOURCE]) + "/")
        assert answer is not None and answer.status == 401, "a desktop opened without a login"
        page.screenshot(path=portal.artifacts / "10-stranger.png")
    finally:
        stranger.close()
    desktop = f"{ids[SOURCE]}.tclone.localhost"
    for path in ("/", "/api/websockets", "/api/status", "/src/selkies-core.js"):
        assert stack.status(desktop, path) == 401, f"{path} of the desktop is open"
    origin = {"Origin": stack.desktop_origin(ids[SOURCE])}
    assert stack.status(desktop, "/api/websockets", {**UPGRADE, **origin}) == 401, "the stream is open"
    for path in ("/api/tokens", "/api/screenshot"):
        assert stack.status(desktop, path) in (401, 404), f"{path} of the desktop is open"
    assert stack.status("tclone.localhost", "/api/v1/workspaces") == 401


def test_the_engine_may_be_killed(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    before = {name: (found["id"], found["state"], found["ports"]) for name, found in stack.workspaces().items()}
    engine = stack.engine_process()
    assert engine is not None
    engine.kill()
    until("the supervisor starts another engine", lambda: (now := stack.engine_process()) is not None and now.pid != engine.pid)
    portal.page.locator("#banner").wait_for(state="visible")
    portal.shot("11-engine-down")
    portal.page.locator("#banner").wait_for(state="hidden")
    after = {name: (found["id"], found["state"], found["ports"]) for name, found in stack.workspaces().items()}
    assert after == before, "workspaces were lost or changed by the engine's death"
    for name in (SOURCE, BRANCH):
        tile = portal.tile(ids[name])
        tile.wait_moves()
        tile.click_window(TERMINAL)
        tile.enter("echo $fruit-again > again")
        until(f"typing in {name} works after the restart", lambda: stack.content(ids[name], "again") == "kiwi-42-again\n")
        assert ask_server(stack.workspaces()[name]["ports"]["3000"]) > 2, f"the published port of {name} answers no more"


def test_the_stream_server_may_be_killed(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    """Its token was in its memory only: viewers that came back by themselves met a black picture."""
    find = "pgrep -f '[p]ython3 .*/stream_server.py'"
    before = stack.output(ids[SOURCE], find)
    stack.output(ids[SOURCE], f"kill -9 $({find})")
    until("another stream server runs", lambda: (now := stack.run(ids[SOURCE], find))[0] == 0 and now[1] != before)
    tile = portal.tile(ids[SOURCE])
    # The frame shows the last picture until the server is back; what is typed has to get through, and its picture back.
    tile.wait_live()
    tile.click_window(TERMINAL)

    def typed() -> bool:
        tile.enter("echo $fruit-server > server")
        return stack.content(ids[SOURCE], "server") == "kiwi-42-server\n"

    until("typing works after the stream server's restart", typed, every=1.0)
    tile.wait_moves(lambda: tile.enter("seq 200"))


def test_fork_goes_on_after_the_restart(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    portal.fork(ids[SOURCE], copies=1, name="late")
    late = stack.workspaces()["late"]
    portal.tile(late["id"]).wait_live()
    assert late["state"] == "ready", late


def test_logging_out_closes_the_desktops(portal: Portal, stack: Stack, ids: dict[str, str]) -> None:
    until("the frames have their sockets", lambda: stack.stream_health()["websockets"] >= 3)
    cookies = {name: desk_cookie(portal, stack, ids[name]) for name in (SOURCE, BRANCH)}
    for name, cookie in cookies.items():
        assert stack.status(f"{ids[name]}.tclone.localhost", "/", cookie) == 200, f"the desk cookie of {name} opens nothing"
    portal.logout()
    until("all sockets of the session are closed", lambda: stack.stream_health()["websockets"] == 0, within=5)
    portal.shot("12-logged-out")
    for name, cookie in cookies.items():
        assert stack.status(f"{ids[name]}.tclone.localhost", "/", cookie) == 401, f"the desktop of {name} is open after the logout"
    portal.page.goto(stack.origin + "/")
    portal.page.wait_for_url("**/login")


def desk_cookie(portal: Portal, stack: Stack, workspace: str) -> dict[str, str]:
    """The header by which this browser opens a workspace's desktop."""
    cookies = portal.context.cookies(stack.desktop_origin(workspace))
    return {"Cookie": "; ".join(f"{cookie['name']}={cookie['value']}" for cookie in cookies)}


def test_no_script_error_on_the_portals_pages(portal: Portal) -> None:
    assert portal.errors == []


def test_down_ends_everything(stack: Stack, ids: dict[str, str]) -> None:
    processes = [stack.supervisor(), *stack.supervisor().children()]
    footprints = [Footprint.take(stack, workspace) for workspace in stack.workspaces().values()]
    stack.down()
    left = [line for footprint in footprints for line in footprint.left()]
    assert left == [], "`tclone down` left parts of workspaces"
    assert [process for process in processes if lives(process)] == [], "`tclone down` left processes"
