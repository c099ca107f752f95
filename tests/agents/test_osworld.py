"""OSWorld's own clients, unmodified, drive real desktops; what they did is read inside, and judged by their own getters and metrics. Left out are metrics that need torch and the like."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from PIL import Image, ImageChops

from engine.client import EngineClient
from engine.network.fdclient import FdClient
from portal.control import serving
from portal.stream.ports import PublishedPorts
from tests.agents.conftest import password_of
from tests.agents.desk import Desk, eventually
from tests.engine.support import REPO, Engine
from tests.portal.conftest import Portal

pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
CLIENTS = Path(os.environ.get("TCLONE_CLIENTS", REPO / ".venv-clients"))
LETTER = "Dear Ben, 3 < 4\nsee you on Friday é\n"
PROBE = "ffprobe -v error -show_entries stream=codec_name,width,height -of csv=p=0"


class Server:
    """A workspace with an OSWorld server."""

    def __init__(self, desk: Desk, workspace: dict[str, Any]) -> None:
        self.desk = desk
        self.id = workspace["id"]
        self.port = int(workspace["osworld"])
        self.chromium = int(workspace["ports"]["9222"])

    async def ask(self, method: str, path: str, *, port: int = 0, headers: dict[str, str] | None = None, **options: Any) -> tuple[int, bytes]:
        url = f"http://127.0.0.1:{port or self.port}{path}"
        async with aiohttp.ClientSession() as session, session.request(method, url, headers=headers, **options) as answer:
            return answer.status, await answer.read()

    async def execute(self, *command: str) -> dict[str, Any]:
        status, body = await self.ask("POST", "/execute", json={"command": list(command), "shell": False})
        assert status == 200, body
        return json.loads(body)

    async def picture(self) -> Image.Image:
        return Image.open(io.BytesIO((await self.ask("GET", "/screenshot"))[1])).convert("RGB")


@pytest.fixture
async def portal(engine: Engine) -> AsyncIterator[Portal]:
    """The control process before the real engine, and published ports as the stream process serves them."""
    config = replace(engine.config, portal_user="root")
    password = await password_of(engine)
    async with serving(config) as control:
        descriptors = FdClient(config.fd_socket)
        ports = PublishedPorts(descriptors)
        ports.start()
        following = asyncio.create_task(_follow(control.feed, ports))
        served = Portal(config, password, control)
        yield served
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await ports.stop()
        await descriptors.close()
        await served.close()


async def _follow(feed: Any, ports: PublishedPorts) -> None:
    await feed.listed.wait()
    async with feed.watch(None) as events:
        while await events.get() is not None:
            ports.want({one["id"]: one for one in feed.workspaces()})


@pytest.fixture
async def server(portal: Portal, client: EngineClient, desk: Desk) -> Server:
    """A branch that has got its server while it ran."""
    branch = (await client.fork(desk.ref))["branches"][0]
    assert branch["osworld"] is None
    made = Server(Desk(client, branch["id"]), await client.open_osworld(branch["id"]))
    await answering(made)
    return made


async def answering(server: Server) -> None:
    async def look() -> bool:
        try:
            return (await server.ask("GET", "/platform")) == (200, b"Linux")
        except aiohttp.ClientError:
            return False

    await eventually(f"the server of {server.id} answers", look)


async def forked(server: Server, copies: int) -> list[Server]:
    client = server.desk.client
    branches = (await client.fork(server.id, copies=copies))["branches"]
    made = [Server(Desk(client, branch["id"]), branch) for branch in branches]
    for one in made:
        await answering(one)
    return made


async def client_program(name: str, *arguments: str, **variables: str) -> str:
    """Run a program of tests/agents/clients in the environment of OSWorld's client; its output."""
    python = CLIENTS / "osworld" / "bin" / "python"
    assert python.exists(), f"no {python}; `scripts/setup clients osworld` makes it"
    process = await asyncio.create_subprocess_exec(
        str(python), str(HERE / "clients" / name), *arguments, env={**os.environ, **variables}, cwd=variables.get("HOME"),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, f"{name}: {process.returncode}\n{err.decode()[-3000:]}"
    return out.decode().splitlines()[-1]


async def test_the_controller_does_all_that_it_can(server: Server, tmp_path: Path) -> None:
    desk = server.desk
    await desk.shell(": >Documents/note.txt; setsid -f mousepad Documents/note.txt >/dev/null 2>&1")
    window = await desk.window("note.txt")
    await desk.shell(f"wmctrl -i -r {window['id']} -e 0,400,200,600,400")
    found = json.loads(await client_program("osworld_controller.py", str(server.port), str(tmp_path)))
    assert found["size"] == {"width": 1280, "height": 800} and found["platform"] == "Linux"
    assert found["desktop"] == "/home/user/Desktop" and "<svg" in found["wallpaper"] and found["terminal"] is None
    assert found["python"] == {"status": "error", "message": "it ended with status 3", "need_more": False, "output": "42\n", "error": "bad\n", "return_code": 3}
    assert found["bash"] == {"status": "error", "output": "/usr\nout\nerr\n", "error": "", "returncode": 4}
    assert found["late"]["returncode"] == -1 and "not done after 1 s" in found["late"]["error"]
    assert found["execute"] == {"status": "success", "output": "Size(width=1280, height=800)\n", "error": "", "returncode": 0}
    assert found["position"] == "(77, 99)\n" and await desk.cursor() == [77, 99]
    assert found["file"].removesuffix("\n") == "<b> é 日本 ~@:'\\\n<<X"
    assert await desk.shell("cat Documents/note.txt") == found["file"]
    assert found["listing"] == {"type": "directory", "name": "Documents", "children": [{"type": "file", "name": "note.txt"}]}
    assert abs(found["window"]["width"] - 600) < 20 and "note.txt" in found["tree"] and 'name="main"' in found["tree"]
    await desk.client.write_file(server.id, "/home/user/copy.mp4", (tmp_path / "recording.mp4").read_bytes())
    assert await desk.shell(f"{PROBE} copy.mp4") == "h264,1280,800\n"
    # An image of one's own may lack the program.
    await desk.client.run(server.id, ["mv", "/usr/bin/ffmpeg", "/usr/bin/not-ffmpeg"])
    status, body = await server.ask("POST", "/start_recording")
    assert status == 501 and b"no ffmpeg" in body
    # The pointer is in the picture, and nowhere else than where it is.
    shot = await desk.client.screenshot(server.id)
    assert shot is not None
    difference = ImageChops.difference(Image.open(io.BytesIO(shot.content)).convert("RGB"), Image.open(tmp_path / "screen.png").convert("RGB"))
    left, top, right, bottom = difference.crop((50, 70, 130, 150)).getbbox() or (0, 0, 0, 0)
    assert 20 <= left + 7 and 20 <= top + 7 and 0 < right - left <= 32 and 0 < bottom - top <= 32


async def test_setup_steps_and_a_browser_in_each_branch(server: Server, tmp_path: Path) -> None:
    report = tmp_path / "report.txt"
    report.write_text("figures\n" * 100_000)
    async with serving_letter() as letter:
        assert await client_program("osworld_setup.py", str(server.port), str(server.chromium), str(report), letter) == "done"
    assert await server.desk.shell("cat Downloads/letter.txt") == LETTER
    # The same command again, each time after its answer, is meant again.
    assert await server.desk.shell("cat tries") == "once more\n" * 3
    assert await server.desk.shell("cat 'Documents/new folder/report.txt'") == report.read_text()
    assert await server.desk.shell("stat -c %U 'Documents/new folder/report.txt'") == "user\n"
    assert await server.desk.listed("report.txt") is None
    assert "/usr/share/backgrounds/xfce/xfce-x.svg" in await server.desk.shell("xfconf-query -c xfce4-desktop -p /backdrop/screen0/monitorscreen/workspace0/last-image")
    assert await server.desk.cursor() == [33, 44]
    one, other = await forked(server, 2)
    _, pages = await one.ask("GET", "/json", port=one.chromium)
    assert "file:///usr/" not in [page["url"] for page in json.loads(pages)]
    # Each browser answers by its branch's own port, and what is opened in one is not in the other.
    status, _ = await one.ask("PUT", "/json/new?data:text/html,<title>second tab</title>", port=one.chromium)
    assert status == 200
    await eventually("the second tab is there", lambda: _shows(one, "second"))
    assert await tabs(one) == {"first", "second"} and await tabs(other) == {"first"} == await tabs(server)


@contextlib.asynccontextmanager
async def serving_letter() -> AsyncIterator[str]:
    """The URL of LETTER on this machine."""

    async def letter(_: web.Request) -> web.Response:
        return web.Response(text=LETTER)

    app = web.Application()
    app.router.add_get("/letter.txt", letter)
    async with TestServer(app) as site:
        yield str(site.make_url("/letter.txt"))


async def tabs(server: Server) -> set[str]:
    """Which of the two pages are open there."""
    _, body = await server.ask("GET", "/json", port=server.chromium)
    pages = [page["title"] + page["url"] for page in json.loads(body) if page["type"] == "page"]
    return {word for word in ("first", "second") for page in pages if word in page}


async def _shows(server: Server, word: str) -> bool:
    return word in await tabs(server)


async def test_each_branch_has_a_server_of_its_own_on_the_loopback(server: Server) -> None:
    one, other = await forked(server, 2)
    assert len({one.port, other.port, server.port, one.chromium, other.chromium, server.chromium}) == 6
    before = await other.picture()
    await one.execute("python", "-c", "open('/home/user/mark', 'w').write('one')")
    await one.ask("POST", "/setup/launch", json={"command": "xfce4-terminal --title=only-here"})
    await one.desk.window("only-here")
    assert (await other.execute("ls", "/home/user/mark"))["returncode"] == 2 and (await one.execute("cat", "/home/user/mark"))["output"] == "one"
    pictures = [(await picture).crop((0, 0, 1280, 750)) for picture in (one.picture(), other.picture())]
    assert ImageChops.difference(*pictures).getbbox() is not None
    assert ImageChops.difference(before.crop((0, 0, 1280, 750)), pictures[1]).getbbox() is None
    # What a program started there goes on in a branch of it.
    (grandchild,) = await forked(one, 1)
    assert await grandchild.desk.listed("only-here") is not None
    for port in (one.port, one.chromium):
        for address in {"127.0.0.2", *_addresses()}:
            with socket.socket() as stranger:
                stranger.settimeout(5)
                assert stranger.connect_ex((address, port)) != 0, address
    await one.desk.client.close_osworld(one.id)
    with socket.socket() as late:
        assert late.connect_ex(("127.0.0.1", one.port)) != 0


def _addresses() -> set[str]:
    """This machine's addresses but for the loopback's."""
    return {entry.address for entries in psutil.net_if_addrs().values() for entry in entries if entry.family is socket.AF_INET and not entry.address.startswith("127.")}


async def test_what_was_done_is_not_done_again_when_its_answer_got_lost(server: Server) -> None:
    body = json.dumps({"command": "sleep 1; echo done >>/home/user/count", "shell": True}).encode()
    head = f"POST /execute HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    async def count() -> int:
        return len((await server.desk.shell("cat count 2>/dev/null; true")).split())

    # Twice it breaks off while the command runs; then the client gets the first one's answer.
    for _ in range(2):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head + body)
        await writer.drain()
        await asyncio.sleep(0.2)
        writer.transport.abort()
    await eventually("the command has ended", count)
    status, answer = await server.ask("POST", "/execute", data=body, headers={"Content-Type": "application/json"})
    assert status == 200 and json.loads(answer)["returncode"] == 0
    assert await count() == 1
    # Meant twice: it had its answer.
    await server.ask("POST", "/execute", data=body, headers={"Content-Type": "application/json"})
    assert await count() == 2


async def test_browsers_are_refused_and_a_person_goes_first(portal: Portal, server: Server) -> None:
    for headers in ({"Origin": "https://example.org"}, {"Sec-Fetch-Site": "cross-site"}, {"Referer": "https://example.org/"}):
        assert (await server.ask("GET", "/platform", headers=headers))[0] == 403
    assert (await server.ask("GET", "/platform", headers={"Host": "rebound.example.org"}))[0] == 421
    assert (await server.ask("POST", "/execute", data=b'{"command":["true"]}', headers={"Content-Type": "text/plain"}))[0] == 415
    for wrong in ({}, {"command": []}, {"command": "'"}, {"command": 5}, {"command": "true", "shell": "yes?"}):
        assert (await server.ask("POST", "/execute", json=wrong))[0] == 400, wrong
    status, body = await server.ask("POST", "/execute", json={"command": ["no-such-program"]})
    assert status == 500 and b"no-such-program" in body
    status, body = await server.ask("POST", "/file", data={"file_path": "/home/user/absent"})
    assert status == 404

    # A command is at work when a person takes control: from then on its programs move nothing.
    script = "import pyautogui, time\nopen('begun', 'w').close()\nfor x in range(600):\n    pyautogui.moveTo(x, 300); time.sleep(0.1)"
    running = asyncio.create_task(server.execute("python", "-c", f"import os; os.chdir('/home/user'); exec({script!r})"))
    await eventually("it began", lambda: server.desk.shell("ls begun 2>/dev/null; true"))
    person = await portal.login()
    assert (await person.request("POST", f"/api/v1/workspaces/{server.id}/lease", {})).status == 200
    ended = await running
    assert ended["returncode"] == 1 and "held by admin" in ended["error"]
    assert (await server.ask("POST", "/execute", json={"command": ["touch", "/home/user/held"]}))[0] == 423
    form = aiohttp.FormData({"file_path": "/home/user/held"}, default_to_multipart=True)
    form.add_field("file_data", b"x", filename="held")
    assert (await server.ask("POST", "/setup/upload", data=form))[0] == 423
    assert (await server.ask("GET", "/screenshot"))[0] == 200
    assert await server.desk.shell("ls held 2>/dev/null; true") == ""


async def machine(server: Server, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """The desktop as a machine of `vmrun`, with the snapshot that it is reset to: its name, and the environment of programs that reach it."""
    client = server.desk.client
    name = (await client.get(server.id))["name"]
    programs = tmp_path / "bin"
    variables = {
        "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(REPO), "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"),
        "TCLONE_RUN": str(client._socket.parent), "TCLONE_COMMAND": str(programs / "tclone"),
    }  # fmt: skip
    programs.mkdir()
    (programs / "tclone").write_text(f'#!/bin/sh\nexec {sys.executable} -m engine.cli.main "$@"\n')
    (programs / "tclone").chmod(0o755)
    await command(variables, "vmrun", "install", str(programs))
    await command(variables, "vmrun", "-T", "ws", "snapshot", f"/branches/{name}", "init_state")
    return name, variables


@pytest.mark.parametrize("way", ["vmrun", "provider"])
async def test_desktop_env_resets_steps_saves_and_reverts(server: Server, tmp_path: Path, way: str) -> None:
    client = server.desk.client
    name, variables = await machine(server, tmp_path)
    snapshots = {one["id"]: one for one in await client.list() if one["label"] == f"init_state: snapshot of {name}"}
    assert [one["osworld"] for one in snapshots.values()] == [None]

    arguments = [name, str(tmp_path)] if way == "vmrun" else ["forking", name, str(tmp_path)]
    told = json.loads(await client_program("osworld_env.py", *arguments, **variables))
    assert told["typed"].removesuffix("\n") == "a < b"
    assert "x" in told["after"] and told["reverted"] == told["typed"]
    assert told["went on"].replace("\n", "") == "a < by"
    assert told["files"] == [] and told["score"] == 1 and told["size"] == {"width": 1280, "height": 800}

    pictures = {path.stem: Image.open(path).convert("RGB").crop((0, 0, 1280, 750)) for path in tmp_path.glob("*.png")}
    assert ImageChops.difference(pictures["reset"], pictures["typed"]).getbbox() is not None
    assert ImageChops.difference(pictures["opened"], pictures["reset"]).getbbox() is not None
    assert ImageChops.difference(pictures["reverted"], pictures["again"]).getbbox() is not None
    # The machine was stopped; what is left are its snapshots, from which it starts again.
    await eventually("the machine is gone", lambda: _gone(client, f"machine {name}"))
    await command(variables, "vmrun", "start", f"/branches/{name}", "nogui")
    address = await command(variables, "vmrun", "getGuestIPAddress", f"/branches/{name}", "-wait")
    again = next(one for one in await client.list() if one["label"] == f"machine {name}")
    assert address.strip() == f"127.0.0.1:{again['osworld']}:{again['ports']['9222']}:0:0"


async def test_tasks_are_judged_by_osworlds_own_getters_and_metrics(server: Server, tmp_path: Path) -> None:
    """Files, commands, directories, tabs by the browser's debugging port, the page in front by the accessibility tree, bookmarks in its profile, a terminal, the clipboard: wrong
    before, right after."""
    name, variables = await machine(server, tmp_path)

    async with serving_letter() as letter:
        told = json.loads(await client_program("osworld_tasks.py", name, str(tmp_path), letter, **variables))
    assert told["scores"] == {task: [0, 1] for task in ("office", "tabs", "front", "bookmark", "terminal")}
    assert "file:///usr/share/" in told["visited"]
    assert {path.stem for path in tmp_path.glob("*.png")} == set(told["scores"])


async def command(variables: dict[str, str], *words: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "engine.cli.main", *words, env={**os.environ, **variables}, cwd=REPO, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def _gone(client: EngineClient, label: str) -> bool:
    return all(one["label"] != label for one in await client.list())
