"""Official clients of the Model Context Protocol, unmodified and in environments of their own, drive a real desktop through the portal's real processes."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from engine.client import EngineClient
from engine.config import REPO
from portal.hosts import PORTAL_HOST
from tests.agents.desk import Desk, eventually
from tests.stream.stack import Stack

pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(600)]

CLIENTS = Path(os.environ.get("TCLONE_CLIENTS", REPO / ".venv-clients"))
PATIENCE = 120.0


class Agent:
    """One client at work."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.hello: dict[str, Any] = {}

    async def line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            text = await self._process.stdout.readline()
        assert text, "the client has ended"
        return json.loads(text)

    async def asked(self, **what: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what).encode() + b"\n")
        return await self.line()

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """A call that must succeed: what it told."""
        result = await self.asked(tool=tool, arguments=arguments)
        assert not result["error"], result["texts"]
        assert json.loads(result["texts"][0]) == result["told"]
        if "branch" in arguments:
            assert result["told"]["branch"] == arguments["branch"]
        return result["told"] | ({"image": result["images"][0]} if result["images"] else {})

    async def refused(self, tool: str, **arguments: Any) -> str:
        result = await self.asked(tool=tool, arguments=arguments)
        assert result["error"], result
        return " ".join(result["texts"])


def opened(image: list[str]) -> Image.Image:
    data = base64.b64decode(image[1], validate=True)
    assert len(image[1]) < 1_000_000
    made = Image.open(io.BytesIO(data))
    assert f"image/{(made.format or '').lower()}" == image[0]
    return made.convert("RGB")


@contextlib.asynccontextmanager
async def agent(stack: Stack, client: str, mode: str = "auto", *scopes: str) -> AsyncIterator[Agent]:
    """The client `client`, connected with a token of its own."""
    setup = await asyncio.to_thread(subprocess.run, [REPO / "scripts/setup", "clients", client], capture_output=True, text=True)
    assert setup.returncode == 0, setup.stderr[-2000:]
    async with stack.login() as person:
        made = await person.request("POST", "/api/v1/tokens", {"name": client, "scopes": list(scopes or ("control", "fork"))})
        secret = (await made.json())["token"]
    environment = {"PATH": os.environ["PATH"], "SSL_CERT_FILE": str(stack.places.ca_certificate), "TCLONE_TOKEN": secret}
    argv = [CLIENTS / client / "bin/python", Path(__file__).parent / "clients" / (client + ("2.py" if client == "mcp" else ".py"))]
    process = await asyncio.create_subprocess_exec(
        *argv, f"https://{PORTAL_HOST}:{stack.port}/mcp", mode, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=16 << 20
    )
    try:
        connected = Agent(process)
        connected.hello = await connected.line()
        yield connected
    finally:
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(PATIENCE):
            status = await process.wait()
    assert status == 0


@pytest.mark.parametrize(("client_name", "mode", "version"), [("mcp", "auto", "2026-07-28"), ("mcp1", "legacy", "2025-11-25")])
async def test_a_client_forks_acts_in_the_branch_and_discards_it(stack: Stack, desk: Desk, client: EngineClient, client_name: str, mode: str, version: str) -> None:
    source = (await client.get(desk.ref))["id"]
    await desk.editor()
    async with agent(stack, client_name, mode) as model:
        assert model.hello["version"] == version and "computer_click" in model.hello["tools"]
        assert source in [one["branch"] for one in (await model.call("branch_list"))["branches"]]
        forked = await model.call("branch_fork", branch=source, count=1, labels=["a try"])
        branch = forked["branches"][0]["branch"]
        there = Desk(client, branch)

        # What is done in the branch is in the branch alone: in its file and on its screen.
        shown = opened((await model.call("computer_screenshot", branch=branch, settle_ms=5000))["image"])
        done = await model.call("computer_type", branch=branch, text="só <dělá> 日本\n", screenshot=True)
        assert shown.size == (1280, 800) and done["screen"] == [1280, 800]
        typed = opened(done["image"])
        assert typed.tobytes() != shown.tobytes()
        await model.call("computer_key", branch=branch, keys="ctrl+s")
        assert await eventually("the text was saved", lambda: there.shell("cat text")) == "só <dělá> 日本\n"
        assert await desk.shell("cat text") == ""
        other = opened((await model.call("computer_screenshot", branch=source, settle_ms=5000))["image"])
        assert other.tobytes() != typed.tobytes()

        # Places of a picture that was scaled are given back with its size.
        small = await model.call("computer_screenshot", branch=branch, max_edge=640, format="jpeg")
        assert opened(small["image"]).size == (640, 400) == tuple(small["picture"]) and small["screen"] == [1280, 800]
        await model.call("computer_move", branch=branch, x=639, y=399, size=small["picture"])
        assert await there.cursor() == [1279, 799] and await desk.cursor() != [1279, 799]
        zoomed = await model.call("computer_zoom", branch=branch, region=[0, 760, 320, 800], max_edge=1280)
        assert opened(zoomed["image"]).size == (1280, 160)

        ran = await model.call("run_command", branch=branch, command="cat text; echo to >&2; exit 3")
        assert (ran["status"], ran["stdout"], ran["stderr"]) == (3, "só <dělá> 日本\n", "to\n")
        assert "did not end by itself" in await model.refused("run_command", branch=branch, command="sleep 60", seconds=1)
        await model.call("file_write", branch=branch, path="/home/user/made", content="by the model")
        assert await there.shell("cat made") == "by the model" and await desk.shell("ls made 2>&1 || true") != "made\n"
        assert (await model.call("file_read", branch=branch, path="/home/user/made"))["content"] == "by the model"
        changed = {change["path"]: change["change"] for change in (await model.call("branch_diff", branch=branch))["changes"]}
        assert changed["/home/user/made"] == "added" and "/home/user/text" in changed
        await model.call("computer_clipboard_set", branch=branch, text="its own")
        assert (await model.call("computer_clipboard_get", branch=branch))["text"] == "its own"
        assert any("text" in window["title"] for window in (await model.call("computer_windows", branch=branch))["windows"])
        for name in (branch, (await client.get(branch))["name"]):
            screen = await model.asked(uri=f"branch://{name}/screen")
            assert opened([screen["kind"], screen["blob"]]).size == (1280, 800)

        await model.call("branch_discard", branch=branch)
        assert f"no workspace {branch}: it is gone" in await model.refused("computer_click", branch=branch, x=5, y=5)
        assert f"no workspace {branch}: it is gone" in await model.refused("run_command", branch=branch, command="true")
    assert await desk.shell("cat text") == ""


async def test_a_person_takes_the_desktop_out_of_a_models_hands(stack: Stack, desk: Desk, client: EngineClient) -> None:
    source = (await client.get(desk.ref))["id"]
    await desk.act({"action": "move", "x": 7, "y": 7})
    # A hold is a page's: without one open it ends.
    async with agent(stack, "mcp") as model, stack.login() as person, person.socket() as page:
        await page.send_json({"type": "hello", "key": person.key, "since": None})
        assert (await page.receive_json())["type"] == "snapshot"
        assert (await person.request("POST", f"/api/v1/workspaces/{source}/lease", {})).status == 200
        try:
            for tool, more in (("computer_move", {"x": 100, "y": 100}), ("run_command", {"command": "touch acted"}), ("file_write", {"path": "/home/user/acted", "content": ""})):
                said = await model.refused(tool, branch=source, **more)
                assert f"{source} is held by admin: nothing was done" in said, tool
            await model.call("computer_screenshot", branch=source)
            assert await desk.cursor() == [7, 7] and await desk.shell("ls acted 2>/dev/null || true") == ""
        finally:
            assert (await person.request("DELETE", f"/api/v1/workspaces/{source}/lease")).status == 204
        await model.call("computer_move", branch=source, x=100, y=100)
        assert await desk.cursor() == [100, 100]
