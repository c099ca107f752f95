"""The code of the how-tos for agents, as it is printed, on real desktops. Put in place are only the names that a reader puts in place: a workspace's, a port, the engine's socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import textwrap
from pathlib import Path

import pytest
from PIL import Image

from engine.client import EngineClient
from engine.config import REPO
from tests import client as clients
from tests.agents.desk import Desk, eventually
from tests.stream.stack import Stack

pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(900)]

CLIENTS = Path(__file__).parent / "clients"
_BLOCK = re.compile(r"^( *)```([a-z]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SECONDS = 300.0


def blocks(page: str, language: str = "") -> list[str]:
    """The code of a how-to in one language; none is that of the shell."""
    text = (REPO / "docs" / "how-to" / f"{page}.md").read_text()
    return [textwrap.dedent(code) for _, kind, code in _BLOCK.findall(text) if kind == language]


class Reader:
    """Somebody at the shell of the machine, with `tclone` and a home of their own. `puts`: what they write in place of what is printed."""

    def __init__(self, stack: Stack, home: Path) -> None:
        self.home = home
        self.puts = {":8443": f":{stack.port}"}
        programs = home / "programs"
        programs.mkdir()
        (programs / "tclone").write_text(f'#!/bin/sh\nexec {sys.executable} -m engine.cli.main "$@"\n')
        (programs / "tclone").chmod(0o755)
        self._environment = {
            **os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(home), "PYTHONPATH": f"{REPO}:{CLIENTS}", "TCLONE_DATA": str(stack.config.data),
            "TCLONE_RUN": str(stack.config.run), "TCLONE_PORTAL_USER": stack.config.portal_user, "TCLONE_PORTAL_PORT": str(stack.port),
        }  # fmt: skip
        self._environment.pop("XDG_STATE_HOME", None)

    async def shell(self, code: str) -> str:
        """What a block of commands prints, all of which succeed."""
        return await self._run(["bash", "-euo", "pipefail", "-c", self._written(code)])

    async def python(self, code: str, *more: str, client: str = "", **variables: str) -> str:
        """What a block of Python prints, with lines of the reader's own at its end. `client`: in whose environment, else in TClone's."""
        python = sys.executable if not client else str(await asyncio.to_thread(clients.python, client))
        # Stand-ins for a line in the hosts file, and for packages of a gigabyte.
        first = {"mcp": "import names", "osworld": "import osworld_stubs; osworld_stubs.install()"}.get(client, "")
        return await self._run([python, "-c", "\n".join([first, self._written(code), *more])], **variables)

    def size_of(self, picture: str) -> tuple[int, int]:
        with Image.open(self.home / picture) as image:
            return image.size

    def _written(self, code: str) -> str:
        for printed, own in self.puts.items():
            code = code.replace(printed, own)
        return code

    async def _run(self, argv: list[str], **variables: str) -> str:
        pipes = {"stdin": asyncio.subprocess.DEVNULL, "stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
        process = await asyncio.create_subprocess_exec(*argv, env=self._environment | variables, cwd=self.home, start_new_session=True, **pipes)
        try:
            out, err = await asyncio.wait_for(process.communicate(), _SECONDS)
        except TimeoutError:
            pytest.fail(f"it did not end within {_SECONDS:g} s: {argv[-1]}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == 0, f"{argv[-1]}\n{out.decode()}\n{err.decode()[-3000:]}"
        return out.decode()


@pytest.fixture
def reader(stack: Stack, tmp_path: Path) -> Reader:
    return Reader(stack, tmp_path)


async def test_let_a_model_use_a_desktop(reader: Reader, desk: Desk, client: EngineClient) -> None:
    branch = Desk(client, (await client.fork(desk.ref))["branches"][0]["id"])
    reader.puts["ws-3"] = branch.ref
    token, act = blocks("computer-use")
    await reader.shell(token)
    await reader.shell(act)
    assert await eventually("the command was carried out", lambda: branch.shell("cat greeting 2>/dev/null; true")) == "hello\n"
    assert reader.size_of("screen.png") == (1280, 800)
    # Pasted where no error ends the shell, before a workspace that is gone: the second step is never tried, and the whole ends.
    reader.puts["ws-3"] = "ws-999"
    await reader.shell(f"set +e\n{act}\n[ $? = 22 ]")
    reader.puts["ws-3"] = branch.ref
    # Of the place that the model saw in a picture of 1024x768.
    called = {"type": "tool_use", "id": "toolu_1", "name": "computer", "input": {"action": "mouse_move", "coordinate": [1023, 767]}}
    (code,) = blocks("computer-use", "python")
    answer = json.loads(await reader.python(code, f"import json; print(json.dumps(carry_out({called!r})))"))
    assert (answer["type"], answer["tool_use_id"], answer["is_error"]) == ("tool_result", "toolu_1", False)
    assert await branch.cursor() == [1279, 799] and await desk.shell("ls greeting 2>/dev/null; true") == ""


async def test_drive_workspaces_from_python(reader: Reader, client: EngineClient) -> None:
    before = {one["id"] for one in await client.list()}
    (token,) = blocks("sdk")
    await reader.shell(token)
    (code,) = blocks("sdk", "python")
    assert await reader.python(code) == ""
    pictures = [Image.open(reader.home / f"{label}.png") for label in ("bold", "careful", "lazy")]
    # Each has its own word in its editor.
    assert {picture.size for picture in pictures} == {(1280, 800)} and len({picture.crop((0, 0, 1280, 750)).tobytes() for picture in pictures}) == 3
    assert {one["id"] for one in await client.list()} == before


async def test_drive_headless_agents(reader: Reader, client: EngineClient, stack: Stack) -> None:
    reader.puts["/run/tclone/engine.sock"] = str(stack.config.socket)
    before = {one["id"] for one in await client.list()}
    shell = blocks("headless-agents")[0]
    assert sorted(line for line in (await reader.shell(shell)).splitlines() if line.startswith("try")) == [f"try {index}" for index in range(4)]
    (code,) = blocks("headless-agents", "python")
    said = [line.split() for line in (await reader.python(code)).splitlines()]
    assert len(said) == 4 and all(status == "0" and pid.isdecimal() for _, status, pid in said) and len({id for id, _, _ in said}) == 4
    assert {one["id"] for one in await client.list()} == before


async def test_give_a_model_the_tools(reader: Reader, desk: Desk, client: EngineClient, stack: Stack) -> None:
    source = (await client.get(desk.ref))["id"]
    reader.puts["ws-1"] = source
    await reader.shell(blocks("mcp")[0])
    (code,) = blocks("mcp", "python")
    token = (reader.home / ".tclone-token").read_text().strip()
    await reader.python(code, client="mcp", TCLONE_TOKEN=token, TCLONE_CA=str(reader.home / "tclone-ca.pem"))
    branches = [Desk(client, one["id"]) for one in await client.list() if one["parent"] == source]
    assert [await branch.cursor() for branch in branches] == [[53, 780]] * 2


async def test_run_osworlds_agents(reader: Reader, client: EngineClient) -> None:
    launch, snapshot = blocks("osworld")[:2]
    launched = await reader.shell(launch)
    desk = await client.get("desk")
    assert f'"osworld": {desk["osworld"]}' in launched
    reader.puts["23908"] = str(desk["osworld"])

    async def answers() -> bool:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", desk["osworld"])
            writer.close()
            return True
        return False

    await eventually("the server answers", answers)
    controller, vmware, provider = blocks("osworld", "python")
    await reader.python(controller, client="osworld")
    assert reader.size_of("screen.png") == (1280, 800)
    await Desk(client, "desk").window("Terminal")
    await reader.shell(snapshot)
    told = "print(len(env.reset()['screenshot'])); env.close()"
    await reader.python(vmware, "print(env.vm_platform)", client="osworld", PATH=f"{reader.home}/osworld/bin:{os.environ['PATH']}")
    assert int((await reader.python(provider, told, client="osworld")).splitlines()[-1]) > 1000
    # It was stopped; its snapshot is what is left.
    assert [one["label"] for one in await client.list() if one["name"] != "source"] == ["init_state: snapshot of desk"]
