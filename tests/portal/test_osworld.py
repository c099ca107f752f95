"""The OSWorld server by itself: its commands run on this machine in place of a workspace, and what they ask of the desktop is noted. Real desktops and OSWorld's own clients: tests/agents."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from engine.client import Screenshot
from engine.desktop.actions import Action
from engine.tools import install_osworld
from portal.errors import BadAnswer, Held
from portal.osworld import guest
from portal.osworld import server as osworld
from portal.osworld.routes import routes
from portal.osworld.server import Ground, application
from portal.rates import Rates

WINDOWS = [
    {"id": 7, "title": "notes - Editor", "program": "mousepad", "x": 1, "y": 2, "width": 300, "height": 200, "active": True, "hidden": False},
    {"id": 9, "title": "A <page> & \"more\" - Chromium", "program": "Chromium", "x": 0, "y": 0, "width": 640, "height": 480, "active": False, "hidden": True},
]


class Session:
    """What the engine's client gives for a command, over a process of this machine."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(65536):
            yield 1, data
        await self._process.wait()

    def exit_code(self) -> int:
        return self._process.returncode or 0


class Workspace:
    """This machine as a workspace: `home` is its user's, `acted` what was done at its desktop."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.client = self
        self.acted: list[dict[str, Any]] = []
        self.held = False
        self.nodes: list[dict[str, Any]] = [{"parent": None, "role": "desktop frame", "name": "main", "states": []}]
        self.owner: str | None = None
        self.listed = WINDOWS
        # For each reading of what the desktop shows: whether without what is hidden.
        self.read: list[bool] = []

    @contextlib.asynccontextmanager
    async def exec(self, ref: str, argv: list[str], user: str) -> AsyncIterator[Session]:
        assert ref == "ws-1" and user == "@desktop"
        path = f"{self.home}/bin:/usr/bin:/bin"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-IS", str(self.home / "osworld" / "run.py"), cwd=self.home, env={"PATH": path, "HOME": str(self.home), "DISPLAY": ":1"},
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            yield Session(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()

    async def screenshot(self, ref: str, **options: Any) -> Screenshot:
        return Screenshot(json.dumps(options).encode(), "image/png", "", (1280, 800), (1280, 800))

    async def windows(self, ref: str) -> list[dict[str, Any]]:
        return self.listed

    async def accessibility(self, ref: str, showing: bool, nodes: int) -> dict[str, Any]:
        self.read.append(showing)
        return {"nodes": self.nodes, "truncated": False, "silent": 0}

    async def act(self, ref: str, actions: list[dict[str, Any]], *_: Any) -> dict[str, Any]:
        return {"results": [{"action": "cursor", "ok": True, "cursor": [5, 6]}], "screen": [1280, 800], "cursor": [5, 6]}

    async def act_by_key(self, call: Any, actions: list[Action], size: Any, key: Any) -> dict[str, Any]:
        self.refuse(call.principal, call.workspace)
        done = [action.model_dump(exclude_none=True, exclude_defaults=False) for action in actions]
        self.acted += [one for one in done if one["action"] != "cursor"]
        known = {"cursor": {"cursor": [640, 400]}, "get_clipboard": {"text": "copied"}}
        return {"results": [{"action": one["action"], "ok": True, **known.get(one["action"], {})} for one in done], "screen": [1280, 800], "cursor": [640, 400]}

    def refuse(self, principal: Any, workspace: str, asked: str = "") -> None:
        assert not principal.is_person and principal.user == (self.owner or "admin")
        if self.held:
            raise Held("ws-1 is held by admin")


@pytest.fixture
async def workspace(tmp_path: Path) -> Workspace:
    install_osworld(tmp_path / "osworld")
    (tmp_path / "bin").mkdir()
    return Workspace(tmp_path)


@pytest.fixture
async def server(workspace: Workspace) -> AsyncIterator[TestServer]:
    ground = Ground(workspace, None, workspace, SimpleNamespace(act=workspace.refuse), SimpleNamespace(of=lambda _: workspace.owner), SimpleNamespace(enabled=lambda user: None), Rates())  # type: ignore[arg-type]
    async with TestServer(application(routes, ground)("ws-1"), host="127.0.0.1") as served:
        yield served


@pytest.fixture
async def session(server: TestServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(str(server.make_url("/"))) as made:
        yield made


async def said(session: aiohttp.ClientSession, path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    async with session.post(path, json=body) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


async def code(session: aiohttp.ClientSession, text: str) -> dict[str, Any]:
    return await said(session, "/execute", {"command": ["python", "-c", "import pyautogui; pyautogui.PAUSE = 0; " + text]})


async def test_commands_and_what_came_of_them(session: aiohttp.ClientSession, workspace: Workspace) -> None:
    assert await said(session, "/execute", {"command": ["sh", "-c", "echo out; echo err >&2; exit 3"]}) == {"status": "success", "output": "out\n", "error": "err\n", "returncode": 3}
    assert (await said(session, "/setup/execute", {"command": "echo a  b"}))["output"] == "a b\n"
    assert (await said(session, "/execute", {"command": "echo $HOME | wc -l", "shell": True}))["output"] == "1\n"
    assert (await said(session, "/execute", {"command": ["ls", "~/bin"]}))["returncode"] == 0
    assert (await said(session, "/execute", {"command": ["python", "-c", "print('é日')"]}))["output"] == "é日\n"
    # What is left in the background does not hold the answer up; what writes without end is cut.
    assert (await said(session, "/execute", {"command": "sleep 30 & echo here", "shell": True}))["output"] == "here\n"
    much = await said(session, "/execute", {"command": "yes | head -c 9000000", "shell": True})
    assert len(much["output"]) == 4 << 20 and much["returncode"] == 0
    assert "no-such" in (await said(session, "/execute", {"command": ["no-such"]}, 500))["message"]
    python = await said(session, "/run_python", {"code": "import sys\nprint(" + "'x' * 5)\n" + "#" * 200_000})
    assert (python["status"], python["output"], python["return_code"]) == ("success", "xxxxx\n", 0)
    late = await said(session, "/run_bash_script", {"script": "echo begun; sleep 60", "timeout": 0.5})
    assert (late["returncode"], late["output"]) == (-1, "begun\n") and "was ended" in late["error"]
    assert (await said(session, "/run_bash_script", {"script": "pwd >&2", "working_dir": "/usr"}))["output"] == "/usr\n"
    assert "no directory /nowhere" in (await said(session, "/run_bash_script", {"script": "pwd", "working_dir": "/nowhere"}, 500))["message"]
    async with session.post("/setup/launch", json={"command": "touch launched"}) as answer:
        assert await answer.text() == "touch launched launched successfully"
    while not (workspace.home / "launched").exists():
        await asyncio.sleep(0.01)


async def test_a_program_may_have_any_name(session: aiohttp.ClientSession) -> None:
    """All of them are looked at for the desktop's session."""
    name = "open('/proc/self/comm', 'wb').write(b'\\xff\\xfe'); print(flush=True); input()"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", name, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        await process.stdout.readline()
        assert (await said(session, "/execute", {"command": ["echo", "x"]}))["output"] == "x\n"
    finally:
        await process.communicate(b"\n")


async def test_a_command_is_ended_with_the_time_it_has(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest, "_GRACE_SECONDS", 0.3)

    async def never(_: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(60)
        return {}

    with pytest.raises(guest.TimedOut):
        await guest.Guest(workspace).run("ws-1", {"argv": ["python", "-c", "import pyautogui; pyautogui.click()"], "seconds": 1.0}, never)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "actions"),
    [
        ("pyautogui.click()", [{"action": "click", "button": "left", "count": 1}]),
        ("pyautogui.click(10.7, 20, clicks=2, button='right')", [{"action": "click", "x": 10, "y": 20, "button": "right", "count": 2}]),
        ("pyautogui.doubleClick((3, 4))", [{"action": "click", "x": 3, "y": 4, "button": "left", "count": 2}]),
        ("pyautogui.moveTo(5000, -3)", [{"action": "move", "x": 1279, "y": 0}]),
        ("pyautogui.moveRel(-10, 5)", [{"action": "move", "x": 630, "y": 405}]),
        ("pyautogui.write('<é>'); pyautogui.press(['enter', '<', '+'])",
         [{"action": "type", "text": "<é>", "delay_ms": 3.0}, *({"action": "key", "keys": keys, "repeat": 1} for keys in ("enter", "<", "plus"))]),
        ("pyautogui.typewrite(['a', 'left'], interval=0.01)", [{"action": "key", "keys": "a", "repeat": 1}, {"action": "key", "keys": "left", "repeat": 1}]),
        ("pyautogui.hotkey('ctrl', 'shift', '+')", [{"action": "key", "keys": "ctrl+shift+plus", "repeat": 1}]),
        ("pyautogui.scroll(-250)", [{"action": "scroll", "dx": 0, "dy": 100}, {"action": "scroll", "dx": 0, "dy": 100}, {"action": "scroll", "dx": 0, "dy": 50}]),
        ("pyautogui.vscroll(2); pyautogui.hscroll(3, 8, 9)", [{"action": "scroll", "dx": 0, "dy": -2}, {"action": "scroll", "x": 8, "y": 9, "dx": 3, "dy": 0}]),
        ("\nwith pyautogui.hold('shift'): pyautogui.press('num5')",
         [{"action": "key_down", "keys": "shift"}, {"action": "key", "keys": "KP_5", "repeat": 1}, {"action": "key_up", "keys": "shift"}]),
        ("import pyperclip; pyperclip.copy(pyperclip.paste() + '!')", [{"action": "get_clipboard"}, {"action": "set_clipboard", "text": "copied!"}]),
    ],
)  # fmt: skip
async def test_pyautogui_becomes_actions(session: aiohttp.ClientSession, workspace: Workspace, text: str, actions: list[dict[str, Any]]) -> None:
    done = await code(session, text)
    assert done["returncode"] == 0, done
    assert workspace.acted == actions


async def test_ways_that_take_time_end_where_they_should(session: aiohttp.ClientSession, workspace: Workspace) -> None:
    for name in ("easeInQuad", "easeOutQuad", "easeInOutQuad", "easeInBounce", "easeOutElastic", "easeInOutBack", "linear"):
        workspace.acted.clear()
        done = await code(session, f"pyautogui.moveTo(100, 700, 0.5, pyautogui.{name}); assert abs(pyautogui.{name}(0.0)) < 1e-3 and abs(pyautogui.{name}(1.0) - 1) < 1e-3")
        assert done["returncode"] == 0, done
        moves = [one for one in workspace.acted if one["action"] == "move"]
        assert len(moves) == 5 and (moves[-1]["x"], moves[-1]["y"]) == (100, 700), name
    workspace.acted.clear()
    assert (await code(session, "pyautogui.dragTo(9, 8, duration=0.3, button='left', mouseDownUp=True)"))["returncode"] == 0
    kinds = [one["action"] for one in workspace.acted]
    assert kinds[0] == "mouse_down" and kinds[-1] == "mouse_up" and kinds.count("move") == 3


async def test_what_the_desktop_refuses_is_an_error_of_the_program(session: aiohttp.ClientSession, workspace: Workspace) -> None:
    assert "no key is called 'florp'" in (await code(session, "pyautogui.press('florp')"))["error"]
    assert "button must be" in (await code(session, "pyautogui.click(button='fourth')"))["error"]
    assert (await code(session, "pyautogui.screenshot('shot.png', region=(1, 2, 30, 40))"))["returncode"] == 0
    assert json.loads((workspace.home / "shot.png").read_text()) == {"region": [1, 2, 31, 42]}
    assert (await code(session, "print(pyautogui.size(), pyautogui.onScreen(1280, 0))"))["output"] == "Size(width=1280, height=800) False\n"
    program = "import os; os.environ.pop('TCLONE_INPUT'); pyautogui.click()"
    assert "only commands of the OSWorld server" in (await code(session, program))["error"]
    workspace.acted.clear()
    workspace.held = True
    assert "held by admin" in (await said(session, "/execute", {"command": ["true"]}, 423))["message"]
    workspace.held, workspace.owner = False, "somebody disabled"
    assert "is disabled" in (await said(session, "/execute", {"command": ["true"]}, 403))["message"]
    assert workspace.acted == []


async def _come(about: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not about():
            await asyncio.sleep(0.01)


async def test_an_answer_that_got_lost_is_given_to_whoever_asks_again(server: TestServer, session: aiohttp.ClientSession, workspace: Workspace) -> None:
    body = json.dumps({"command": "sleep 0.5; echo done >>count", "shell": True}).encode()
    head = f"POST /execute HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    count, served = workspace.home / "count", server.runner.server
    assert served is not None
    for number, wait_for_end in ((1, False), (2, True)):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head + body)
        await _come(lambda: served.requests_count == number)
        # OSWorld's client comes back seconds later: the server has seen by then that it went.
        writer.transport.abort()
        await _come(lambda: not served.connections and (count.exists() or not wait_for_end))
    for times in (1, 2):
        async with session.post("/execute", data=body, headers={"Content-Type": "application/json"}) as answer:
            assert (await answer.json())["returncode"] == 0
        assert count.read_text() == "done\n" * times


async def test_verification_looks_until_it_is_there(session: aiohttp.ClientSession) -> None:
    later = {"command": "sleep 0.3; touch there", "shell": True}
    wanted = {"window_exists": "Editor", "command_success": ["ls", "there"]}
    async with session.post("/setup/launch", json=later):
        pass
    good = await said(session, "/execute_with_verification", {"command": "echo x", "verification": wanted, "max_wait_time": 20, "check_interval": 0.1})
    assert good["output"] == "x\n" and all(check["passed"] for check in good["verification"])
    bad = await said(session, "/setup/execute_with_verification", {"command": "true", "verification": {"window_exists": "Absent"}, "max_wait_time": 0.2, "check_interval": 0.1}, 500)
    assert bad["status"] == "error" and bad["verification"] == [{"type": "window_exists", "passed": False}]


async def test_the_desktop_is_told(session: aiohttp.ClientSession, workspace: Workspace) -> None:
    async with session.get("/terminal") as answer:
        assert await answer.json() == {"output": None, "status": "success"}
    for text, states in (("$ other", ["showing"]), ("$ ls\n", ["showing", "focused"]), ("$ hidden", ["focused"])):
        workspace.nodes.append({"parent": 0, "role": "terminal", "name": "shell & <more>", "states": states, "text": text})
    # Only a terminal has one: without its window nothing is read, though DesktopEnv asks at each reset.
    for program in ("Xfce4-terminal", "QTerminal", "org.gnome.Console"):
        workspace.listed = [*WINDOWS, WINDOWS[0] | {"program": program}]
        async with session.get("/terminal") as answer:
            assert await answer.json() == {"output": "$ ls", "status": "success"}
    assert workspace.read == [True] * 3
    for listed in ([], WINDOWS):
        workspace.listed = listed
        async with session.get("/terminal") as answer:
            assert await answer.json() == {"output": None, "status": "success"}
    assert len(workspace.read) == 3
    async with session.get("/accessibility") as answer:
        assert workspace.read.pop() is False
        tree = ElementTree.fromstring((await answer.json())["AT"])
    assert tree.tag == "desktop-frame" and [(child.tag, child.get("name"), child.text) for child in tree][1] == ("terminal", "shell & <more>", "$ ls\n")
    async with session.get("/screenshot") as answer:
        assert await answer.json(content_type="image/png") == {"pointer": 1}
    async with session.post("/window_size", data={"app_class_name": "chromium"}) as answer:
        assert await answer.json() == {"width": 640, "height": 480}
    async with session.post("/setup/activate_window", json={"window_name": "editor"}) as answer:
        assert answer.status == 200 and workspace.acted == [{"action": "activate", "window": 7}]
    for wrong in ({"window_name": "editor", "strict": True}, {"window_name": "editor", "by_class": True}):
        async with session.post("/setup/activate_window", json=wrong) as answer:
            assert answer.status == 404
    for path, expected in (("/screen_size", {"width": 1280, "height": 800}), ("/desktop_path", {"desktop_path": f"{workspace.home}/Desktop"})):
        async with session.post(path) as answer:
            assert await answer.json() == expected


async def test_chromium_goes_by_the_name_that_tasks_know_it_by(session: aiohttp.ClientSession, workspace: Workspace) -> None:
    """Tasks bring `Google Chrome` to the front, and evaluators look for its address bar."""
    for name in ("Google Chrome", "Chromium", "google-chrome"):
        by_class = name.islower()
        async with session.post("/setup/activate_window", json={"window_name": name, "by_class": by_class}) as answer:
            assert answer.status == 200 and workspace.acted.pop() == {"action": "activate", "window": 9}
    async with session.post("/setup/activate_window", json={"window_name": 'A <page> & "more" - Google Chrome', "strict": True}) as answer:
        assert answer.status == 200
    async with session.post("/window_size", data={"app_class_name": "Google-chrome"}) as answer:
        assert await answer.json() == {"width": 640, "height": 480}
    wanted = {"command": "true", "verification": {"window_exists": "- Google Chrome"}, "max_wait_time": 0.2}
    assert (await said(session, "/execute_with_verification", wanted))["verification"][0]["passed"]
    workspace.nodes += [
        {"parent": 0, "role": "application", "name": "Chromium", "states": []},
        {"parent": 1, "role": "frame", "name": "Chromium - a book - Chromium", "states": []},
        {"parent": 2, "role": "entry", "name": "Chromium", "states": [], "text": "Chromium"},
    ]
    async with session.get("/accessibility") as answer:
        tree = ElementTree.fromstring((await answer.json())["AT"])
    entry = tree.find("./application[@name='Google Chrome']/frame[@name='Chromium - a book - Google Chrome']/entry[@name='Chromium']")
    assert entry is not None and entry.text == "Chromium"


async def test_chromiums_profile_is_found_by_chromes_name(session: aiohttp.ClientSession, workspace: Workspace) -> None:
    """Evaluators read bookmarks, settings and the history there, and a task's history is laid there before the browser ever ran."""
    config = workspace.home / ".config"
    assert shutil.which("google-chrome", path="/usr/bin:/bin") is None, "this machine's would be taken for the workspace's"
    (workspace.home / "bin" / "chromium").touch(0o755)
    # As before an upload.
    await said(session, "/execute", {"command": ["mkdir", "-p", "~/.config/google-chrome/Default"]})
    assert (config / "chromium" / "Default").is_dir() and (config / "chromium").stat().st_mode & 0o777 == 0o700
    assert (config / "google-chrome").readlink() == Path("chromium")
    # Chrome's, where there is one already, is Chromium's; and with Chrome each has its own.
    shutil.rmtree(config)
    (config / "google-chrome").mkdir(parents=True)
    await said(session, "/execute", {"command": ["true"]})
    assert (config / "chromium").readlink() == Path("google-chrome")
    (config / "chromium").unlink()
    (workspace.home / "bin" / "google-chrome").touch(0o755)
    await said(session, "/execute", {"command": ["true"]})
    assert sorted(config.iterdir()) == [config / "google-chrome"]


async def test_lists_and_downloads(session: aiohttp.ClientSession, workspace: Workspace) -> None:
    top = workspace.home / "docs"
    (top / "inner").mkdir(parents=True)
    (top / "inner" / "a.txt").write_text("a")
    (top / "loop").symlink_to(top)
    tree = (await said(session, "/list_directory", {"path": "~/docs"}))["directory_tree"]
    assert tree == {"type": "directory", "name": "docs", "children": [
        {"type": "directory", "name": "inner", "children": [{"type": "file", "name": "a.txt"}]}, {"type": "file", "name": "loop"}]}  # fmt: skip
    assert "no such directory" in (await said(session, "/list_directory", {"path": "/absent'\"\\"}, 400))["message"]

    async def content(_: web.Request) -> web.Response:
        return web.Response(body=b"bytes" * 1000)

    source = web.Application()
    source.router.add_get("/file", content)
    async with TestServer(source) as other:
        async with session.post("/setup/download_file", json={"url": str(other.make_url("/file")), "path": "~/new/file.bin"}) as answer:
            assert answer.status == 200, await answer.text()
        assert (workspace.home / "new" / "file.bin").read_bytes() == b"bytes" * 1000
        await said(session, "/setup/download_file", {"url": str(other.make_url("/absent")), "path": "~/x"}, 500)
    await said(session, "/setup/download_file", {"url": "file:///etc/passwd", "path": "~/x"}, 400)


async def test_only_programs_of_this_machine_are_answered(server: TestServer, session: aiohttp.ClientSession, workspace: Workspace) -> None:
    for headers in ({"Origin": "null"}, {"Referer": "https://example.org/"}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Mode": "no-cors"}):
        async with session.post("/execute", json={"command": ["touch", "x"]}, headers=headers) as answer:
            assert answer.status == 403
    for host in ("example.org", "127.0.0.1.example.org", "localhost.", ""):
        async with session.get("/platform", headers={"Host": host}) as answer:
            assert answer.status in (400, 421), host
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        async with session.post("/execute", data=b'{"command":["touch","x"]}', headers={"Content-Type": kind}) as answer:
            assert answer.status == 415
    for wrong in ([], {"command": []}, {"command": ""}, {"command": "'"}, {"command": [1]}, {"shell": True}):
        async with session.post("/execute", json=wrong) as answer:
            assert answer.status == 400, wrong
    assert not (workspace.home / "x").exists()
    assert os.listdir(workspace.home / "bin") == []


async def test_a_path_that_does_not_end_is_not_taken(session: aiohttp.ClientSession) -> None:
    form = aiohttp.FormData()
    form.add_field("file_path", "x" * (1 << 20))
    form.add_field("file_data", b"data", filename="x")
    async with session.post("/setup/upload", data=form) as answer:
        assert answer.status == 413


async def test_lies_of_a_workspace_are_errors(session: aiohttp.ClientSession, workspace: Workspace) -> None:
    python = workspace.home / "bin" / "python3"
    for lie in ("no json", "[" * 100_000):
        python.write_text(f"#!/bin/sh\necho '{lie}'\n")
        python.chmod(0o755)
        assert "makes no sense" in (await said(session, "/list_directory", {"path": "~"}, 502))["message"]

    class Told:
        """A command whose runner writes this."""

        def __init__(self, *pieces: bytes) -> None:
            self._pieces = pieces

        async def output(self) -> AsyncIterator[tuple[int, bytes]]:
            for piece in self._pieces:
                yield 1, piece

    async def messages(*pieces: bytes) -> list[dict[str, Any]]:
        return [message async for message in guest._messages(Told(*pieces), bytearray())]  # type: ignore[arg-type]

    assert await messages(b'{"a"', b":1", b'}\n{"b":2}\n{', b'"c":3}', b"\n") == [{"a": 1}, {"b": 2}, {"c": 3}]
    for wrong in ((b"[1]\n",), (b"[" * 100_000 + b"\n",), (b"x" * (1 << 20),) * 13):
        with pytest.raises(BadAnswer):
            await messages(*wrong)
    for output in ("*", "YQ", "é"):
        with pytest.raises(BadAnswer):
            guest._done({"returncode": 0, "output": output, "error": "", "base64": True})
    assert guest._done({"returncode": 0, "output": "w6n/", "error": "", "base64": True}).output == "é\ufffd"


@pytest.fixture
def one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before there is a server."""
    monkeypatch.setattr(osworld, "MOST_REQUESTS", 1)


async def test_only_so_many_requests_go_on(one_request: None, session: aiohttp.ClientSession, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0

    async def windows(_: str) -> list[dict[str, Any]]:
        nonlocal looked
        looked += 1
        return []

    monkeypatch.setattr(workspace, "windows", windows)
    wanted = {"command": "true", "verification": {"window_exists": "Absent"}, "max_wait_time": 2.0, "check_interval": 0.000001}

    async def status() -> int:
        async with session.get("/platform") as answer:
            return answer.status

    first = asyncio.ensure_future(said(session, "/execute_with_verification", wanted, 500))
    async with asyncio.timeout(30):
        while not looked:
            await asyncio.sleep(0.01)
        assert await status() == 429
        assert (await first)["status"] == "error"
        assert await status() == 200
    assert looked <= 42, "it does not look all the time"
