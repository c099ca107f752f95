"""The Model Context Protocol at `/mcp`, by the official client: who may, what is told of a branch, and what a hostile or broken client gets."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import pytest
from aiohttp import web
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._context_streams import create_context_streams
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import CallToolResult, ImageContent, TextContent, jsonrpc_message_adapter
from PIL import Image

from portal.mcp import http, stdio
from portal.mcp.asked import Asked
from portal.mcp.caller import Caller, Output, Refused
from portal.mcp.inside import _text
from tests.portal.conftest import HOST, PATIENCE, Portal, token_of
from tests.portal.fake_engine import FakeEngine
from tests.portal.fake_inside import CHANGES, MADE
from tests.portal.front import Front

# The modern protocol, which has no handshake, and the last one that has.
MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])
HANDSHAKES = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
CLICK = {"branch": "ws-1", "x": 10, "y": 20}


@contextlib.asynccontextmanager
async def connected(portal: Portal, secret: str, mode: str = "auto") -> AsyncIterator[Client]:
    transport = httpx2.AsyncHTTPTransport(uds=str(portal.places.control_socket))
    headers = {"Authorization": f"Bearer {secret}", "Host": HOST}
    async with httpx2.AsyncClient(transport=transport, headers=headers, timeout=PATIENCE) as connection:
        async with Client(streamable_http_client("http://control/mcp", http_client=connection), mode=mode) as client:
            yield client


def told(result: CallToolResult) -> dict[str, Any]:
    """What a tool that succeeded tells, as data and, the same, as text."""
    assert not result.is_error, result.content
    assert isinstance(result.content[0], TextContent) and result.structured_content is not None
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


def refusal(result: CallToolResult) -> str:
    assert result.is_error
    return " ".join(part.text for part in result.content if isinstance(part, TextContent))


def picture(result: CallToolResult) -> Image.Image:
    assert isinstance(result.content[1], ImageContent)
    return Image.open(io.BytesIO(base64.b64decode(result.content[1].data, validate=True)))


def acted(engine: FakeEngine) -> list[dict[str, Any]]:
    return [action for verb, body in engine.calls if verb == "act" for action in body["actions"]]


@MODES
async def test_tools_act_on_the_branch_that_they_name_and_say_which(portal: Portal, engine: FakeEngine, mode: str) -> None:
    engine.add()
    async with connected(portal, await token_of(await portal.login(), "control", "fork"), mode) as client:
        assert client.protocol_version == ("2026-07-28" if mode == "auto" else "2025-11-25")
        assert [one["branch"] for one in told(await client.call_tool("branch_list"))["branches"]] == ["ws-1"]
        made = told(await client.call_tool("branch_fork", {"branch": "ws-1", "count": 2, "labels": ["a", "b"]}))
        assert made["branch"] == "ws-1" and [one["branch"] for one in made["branches"]] == ["ws-2", "ws-3"]
        clicked = await client.call_tool("computer_click", {"branch": "ws-3", "x": 10, "y": 20, "count": 2, "screenshot": True})
        assert told(clicked)["branch"] == "ws-3" and told(clicked)["results"] == [{"action": "click", "ok": True}]
        assert picture(clicked).size == (1280, 800)
        assert acted(engine)[-1] == {"action": "click", "x": 10, "y": 20, "button": "left", "count": 2}
        told(await client.call_tool("branch_discard", {"branch": "ws-3"}))
        # Never another branch in place of the one that is gone.
        assert "no workspace ws-3: it is gone" in refusal(await client.call_tool("computer_click", {"branch": "ws-3", "x": 1, "y": 1}))
        assert len(acted(engine)) == 1 and set(engine.workspaces) == {"ws-1", "ws-2"}


async def test_every_tool_asks_the_engine_for_what_its_name_says(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    one = {"branch": "ws-1"}
    calls: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("computer_move", {"x": 1, "y": 2, "size": [640, 400]}, {"action": "move", "x": 1, "y": 2}),
        ("computer_drag", {"path": [[1, 2], [3, 4]]}, {"action": "drag", "path": [[1, 2], [3, 4]], "button": "left"}),
        ("computer_scroll", {"direction": "up", "amount": 4, "x": 5, "y": 6}, {"action": "scroll", "x": 5, "y": 6, "dx": 0, "dy": -4}),
        ("computer_scroll", {"direction": "right"}, {"action": "scroll", "dx": 3, "dy": 0}),
        ("computer_type", {"text": "<é>"}, {"action": "type", "text": "<é>", "delay_ms": 3.0}),
        ("computer_key", {"keys": "ctrl+c"}, {"action": "key", "keys": "ctrl+c", "repeat": 1}),
        ("computer_key", {"keys": "a", "hold_seconds": 1.5}, {"action": "hold_key", "keys": "a", "seconds": 1.5}),
        ("computer_wait", {"seconds": 1}, {"action": "wait", "seconds": 1.0}),
        ("computer_activate", {"window": 7}, {"action": "activate", "window": 7}),
        ("computer_clipboard_set", {"text": "x"}, {"action": "set_clipboard", "text": "x"}),
    ]
    async with connected(portal, await token_of(await portal.login(), "control", "fork")) as client:
        for tool, more, action in calls:
            assert told(await client.call_tool(tool, one | more))["branch"] == "ws-1", tool
            assert acted(engine)[-1] == action, tool
        batch = [{"action": "key_down", "keys": "shift"}, {"action": "click", "x": 1, "y": 1}]
        told(await client.call_tool("computer_batch", one | {"actions": batch, "size": [640, 400]}))
        assert [action["action"] for action in acted(engine)[-2:]] == ["key_down", "click"] and engine.calls[-1][1]["size"] == [640, 400]
        assert told(await client.call_tool("computer_clipboard_get", one)) == {"branch": "ws-1", "text": "copied"}
        assert told(await client.call_tool("computer_windows", one))["windows"][0]["id"] == 7
        assert 'button "Save" at 50,20' in told(await client.call_tool("computer_read", one))["shown"]
        assert told(await client.call_tool("branch_get", one))["state"] == "ready"
        assert {image["name"] for image in told(await client.call_tool("image_list"))["images"]} == {"webtop-xfce", "workspace"}
        assert [item["port"] for item in told(await client.call_tool("branch_ports", one))["listeners"]] == [3000, 8000, 8080]
        assert told(await client.call_tool("branch_publish", one | {"port": 8000}))["container"] == 8000
        assert "tmux" in told(await client.call_tool("branch_log", one))["log"]
        diff = told(await client.call_tool("branch_diff", one))
        assert [change["path"] for change in diff["changes"]] == [change["path"] for change in MADE] and not diff["truncated"]
        assert [change["path"] for change in told(await client.call_tool("branch_diff", one | {"own": True}))["changes"]] == [change["path"] for change in CHANGES]
        assert "+<b>second</b>" in told(await client.call_tool("branch_diff", one | {"path": "/home/user/notes.txt"}))["diff"]
        for resume in (False, True):
            assert told(await client.call_tool("branch_pause", one | {"resume": resume}))["paused"] is not resume
        launched = told(await client.call_tool("branch_launch", {"image": "workspace", "name": "w"}))
        assert launched["state"] == "ready" and launched["branch"] == "ws-2"


async def test_files(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    async with connected(portal, await token_of(await portal.login(), "control")) as client:
        path = {"branch": "ws-1", "path": "/home/user/ü & #1.txt"}
        told(await client.call_tool("file_write", path | {"content": "žluť\n"}))
        assert engine.inside.files["/home/user/ü & #1.txt".encode()] == "žluť\n".encode()
        assert "exists already" in refusal(await client.call_tool("file_write", path | {"content": "again"}))
        told(await client.call_tool("file_write", path | {"content": "AAH/", "encoding": "base64", "overwrite": True}))
        read = told(await client.call_tool("file_read", path))
        assert (read["content"], read["encoding"], read["size"]) == ("AAH/", "base64", 3)
        assert "not what encoding=base64 says" in refusal(await client.call_tool("file_write", path | {"content": "é", "encoding": "base64"}))
        names = [entry["name"] for entry in told(await client.call_tool("file_list", {"branch": "ws-1", "path": "/home/user"}))["entries"]]
        assert "ü & #1.txt" in names
        told(await client.call_tool("file_remove", path))
        assert "not_found" in refusal(await client.call_tool("file_read", path))


async def test_a_command(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    async with connected(portal, await token_of(await portal.login(), "control")) as client:
        ran = await client.call_tool("run_command", {"branch": "ws-1", "command": "echo hi", "directory": "/tmp", "user": "root"})
        assert told(ran) == {"branch": "ws-1", "status": 5, "stdout": "", "stderr": "done"}
        assert engine.inside.shells[-1]["argv"] == ["sh", "-c", "echo hi"] and engine.inside.shells[-1]["user"] == "root"
        gone = refusal(await client.call_tool("run_command", {"branch": "ws-7", "command": "true"}))
        assert "no workspace ws-7: it is gone" in gone


async def test_who_may(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    async with connected(portal, await token_of(person, "read")) as client:
        told(await client.call_tool("computer_screenshot", {"branch": "ws-1"}))
        assert "this needs the scope control" in refusal(await client.call_tool("computer_click", CLICK))
        assert "this needs the scope fork" in refusal(await client.call_tool("branch_fork", {"branch": "ws-1"}))
    async with connected(portal, await token_of(await portal.user(person, "other"), "control", "fork")) as client:
        assert told(await client.call_tool("branch_list"))["branches"] == []
        assert "no workspace ws-1" in refusal(await client.call_tool("computer_click", CLICK))
        with pytest.raises(MCPError, match="no workspace ws-1"):
            await client.read_resource("branch://ws-1/screen")
    assert acted(engine) == []


async def test_a_person_in_control_is_named_and_nothing_is_done(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    async with connected(portal, await token_of(person, "control")) as client:
        assert (await person.request("POST", "/api/v1/workspaces/ws-1/lease", {})).status == 200
        for tool, more in (("computer_click", CLICK), ("run_command", {"branch": "ws-1", "command": "true"})):
            assert "ws-1 is held by admin: nothing was done" in refusal(await client.call_tool(tool, more)), tool
        told(await client.call_tool("computer_screenshot", {"branch": "ws-1"}))
        assert acted(engine) == []
        assert (await person.request("DELETE", "/api/v1/workspaces/ws-1/lease")).status == 204
        told(await client.call_tool("computer_click", CLICK))


async def test_an_action_that_fails_is_an_error(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    engine.action_fails = "activate"
    async with connected(portal, await token_of(await portal.login(), "control", "fork")) as client:
        failed = await client.call_tool("computer_activate", {"branch": "ws-1", "window": 7, "screenshot": True})
        assert "no window 7" in refusal(failed) and failed.structured_content["branch"] == "ws-1"
        engine.launch_fails = "its first command ended with 1"
        assert "ws-2 did not start: its first command" in refusal(await client.call_tool("branch_launch", {"image": "workspace"}))
        engine.refuse("fork", "refused", "the process mpv uses a device that cannot be carried over")
        assert "the process mpv" in refusal(await client.call_tool("branch_fork", {"branch": "ws-1"}))


async def test_arguments_that_make_no_sense_reach_nothing(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    engine.calls.clear()
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("computer_click", {"x": 1, "y": 1}), ("computer_click", {"branch": "ws-1/../ws-2", "x": 1, "y": 1}), ("computer_click", {"branch": "ws-1", "x": -1, "y": 1}),
        ("computer_click", {"branch": "ws-1", "x": 1, "y": 1, "button": "third"}), ("branch_fork", {"branch": "ws-1", "count": 9}),
        ("file_read", {"branch": "ws-1", "path": "relative"}), ("computer_batch", {"branch": "ws-1", "actions": [{"action": "fly"}]}), ("no_such_tool", {}),
    ]  # fmt: skip
    async with connected(portal, await token_of(await portal.login(), "control", "fork")) as client:
        for tool, more in wrong:
            try:
                assert (await client.call_tool(tool, more)).is_error, (tool, more)
            except MCPError as error:
                assert tool == "no_such_tool", error
    assert [verb for verb, _ in engine.calls if verb in ("act", "fork")] == []


async def test_a_branch_may_be_named_and_the_answer_has_its_id(portal: Portal, engine: FakeEngine) -> None:
    engine.add(name="desk")
    engine.add(name="other")
    person = await portal.login()
    async with connected(portal, await token_of(person, "control", "fork")) as client:
        assert told(await client.call_tool("branch_get", {"branch": "other"}))["branch"] == "ws-2"
        assert told(await client.call_tool("computer_click", {"branch": "desk", "x": 1, "y": 1}))["branch"] == "ws-1"
        assert told(await client.call_tool("branch_diff", {"branch": "other", "base": "desk"}))["base"] == "ws-1"
        assert "no branch has the id or name 'Desk'" in refusal(await client.call_tool("branch_get", {"branch": "Desk"}))
    async with connected(portal, await token_of(await portal.user(person, "stranger"), "control")) as client:
        # Names of others' branches are not there, as their ids are not.
        assert "no branch has the id or name 'desk'" in refusal(await client.call_tool("branch_get", {"branch": "desk"}))


async def test_arguments_that_do_not_fit_are_told_in_plain_words(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    async with connected(portal, await token_of(await portal.login(), "control", "fork")) as client:
        for tool, more, words in (
            ("computer_click", {"x": 1, "y": 1}, "computer_click was not called: branch: field required"),
            ("branch_fork", {"branch": "ws-1", "count": 9}, "branch_fork was not called: count: input should be less than or equal to 8"),
            ("branch_get", {"branch": "x" * 201}, "branch: string should have at most 200 characters"),
        ):
            said = refusal(await client.call_tool(tool, more))
            assert words in said and "pydantic" not in said and "ValidationError" not in said, said


async def test_resources(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    async with connected(portal, await token_of(await portal.login(), "read")) as client:
        templates = (await client.list_resource_templates()).resource_templates
        assert {template.uri_template for template in templates} >= {"branch://{branch}/screen", "branch://{branch}/log"}
        screen = (await client.read_resource("branch://ws-1/screen")).contents[0]
        assert screen.mime_type == "image/jpeg" and Image.open(io.BytesIO(base64.b64decode(screen.blob))).size == (1280, 800)
        assert "tmux" in (await client.read_resource("branch://ws-1/log")).contents[0].text
        # By name, as tools take them; what is no branch's name becomes no part of an address.
        name = engine.workspaces["ws-1"]["name"]
        for kind in ("screen", "log"):
            assert str((await client.read_resource(f"branch://{name}/{kind}")).contents[0].uri) == f"branch://{name}/{kind}"
        for wrong in ("branch://ws-9/screen", "branch://..%2Fusers/log", "branch://ws-1%2F..%2F..%2Fusers/log", "branch://ws-1/other", "branch://nobody/screen", f"branch://{'x' * 300}/log"):
            with pytest.raises(MCPError):
                await client.read_resource(wrong)


async def test_what_is_done_is_in_the_audit_log_with_its_token(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    async with connected(portal, await token_of(person, "control")) as client:
        await client.call_tool("computer_click", CLICK)
    async with asyncio.timeout(PATIENCE):
        # A thread of its own writes them down.
        while not (done := [entry for entry in await (await person.request("GET", "/api/v1/audit?limit=20")).json() if entry["event"] == "action"]):
            await asyncio.sleep(0.02)
    tokens = await (await person.request("GET", "/api/v1/tokens")).json()
    assert [(one["workspace"], one["action"], one["outcome"], one["token"]) for one in done] == [("ws-1", "click", "ok", tokens[0]["id"])]


# Without the client


def message(method: str, **parameters: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}


def initialize(version: str) -> dict[str, Any]:
    return message("initialize", protocolVersion=version, capabilities={}, clientInfo={"name": "test", "version": "1"})


ACCEPT: dict[str, str | None] = {"Accept": "application/json, text/event-stream"}


async def said(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    """The one message of an answer."""
    assert answer.status == 200, await answer.text()
    text = await answer.text()
    if answer.content_type == "application/json":
        return json.loads(text)
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return json.loads(lines[-1])


@pytest.mark.parametrize("version", HANDSHAKES)
async def test_the_version_of_a_handshake_is_the_clients(portal: Portal, engine: FakeEngine, version: str) -> None:
    agent = portal.program(await token_of(await portal.login(), "read"))
    hello = await said(await agent.request("POST", "/mcp", initialize(version), ACCEPT))
    assert hello["result"]["protocolVersion"] == version and hello["result"]["serverInfo"]["name"] == "tclone"
    tools = await said(await agent.request("POST", "/mcp", message("tools/list"), ACCEPT | {"MCP-Protocol-Version": version}))
    assert {"branch_fork", "computer_click", "computer_screenshot"} <= {tool["name"] for tool in tools["result"]["tools"]}


async def test_without_a_token_nobody_gets_as_far_as_the_protocol(portal: Portal, engine: FakeEngine) -> None:
    person = await portal.login()
    nobody = portal.program("tct_" + "0" * 43)
    refused = await nobody.request("POST", "/mcp", initialize(HANDSHAKES[-1]), ACCEPT)
    assert refused.status == 401 and refused.headers["WWW-Authenticate"] == "Bearer"
    # A person acts by its page; a page of another site, by nothing.
    assert (await person.request("POST", "/mcp", initialize(HANDSHAKES[-1]), ACCEPT)).status == 401
    agent = portal.program(await token_of(person, "read"))
    for changes, status in (({"Origin": "https://evil.example"}, 403), ({"Host": "evil.example"}, 421), ({"Host": "127.0.0.1:8443"}, 421), ({"Origin": f"https://{HOST}"}, 200)):
        answer = await agent.request("POST", "/mcp", initialize(HANDSHAKES[-1]), ACCEPT | changes)
        assert answer.status == status, changes


async def test_a_token_that_was_revoked_ends_at_once(portal: Portal, engine: FakeEngine) -> None:
    person = await portal.login()
    agent = portal.program(await token_of(person, "read"))
    assert (await agent.request("POST", "/mcp", initialize(HANDSHAKES[-1]), ACCEPT)).status == 200
    tokens = await (await person.request("GET", "/api/v1/tokens")).json()
    assert (await person.request("DELETE", f"/api/v1/tokens/{tokens[0]['id']}")).status == 204
    assert (await agent.request("POST", "/mcp", message("tools/list"), ACCEPT)).status == 401


async def test_what_is_no_request_of_the_protocol(portal: Portal, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = portal.program(await token_of(await portal.login(), "read"))
    for method in ("GET", "DELETE"):
        assert (await agent.request(method, "/mcp")).status == 405
    assert (await agent.request("POST", "/mcp", ["not", "a", "message"], ACCEPT)).status == 400
    assert (await agent.request("POST", "/mcp", initialize(HANDSHAKES[-1]), {"Accept": "text/html"})).status == 406
    sent = {"data": b"{", "headers": ACCEPT | {"Content-Type": "application/json"}}
    assert (await agent.request("POST", "/mcp", **sent)).status == 400
    sent["headers"] = ACCEPT | {"Content-Type": "text/plain"}
    assert (await agent.request("POST", "/mcp", **sent)).status == 415
    nested = b"[" * 200_000
    assert (await agent.request("POST", "/mcp", data=nested, headers=ACCEPT | {"Content-Type": "application/json"})).status == 400
    monkeypatch.setattr(http, "_MOST_BODY", 1000)
    assert (await agent.request("POST", "/mcp", initialize("x" * 2000), ACCEPT)).status == 413
    assert (await agent.request("POST", "/mcp", initialize(HANDSHAKES[-1]), ACCEPT)).status == 200


async def test_one_token_cannot_hold_all_of_it(portal: Portal, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.add()
    person = await portal.login()
    agent, other = portal.program(await token_of(person, "read")), portal.program(await token_of(person, "read"))
    monkeypatch.setattr(http, "_MOST_AT_ONCE", 0)
    refused = await agent.request("POST", "/mcp", initialize(HANDSHAKES[-1]), ACCEPT)
    assert refused.status == 429 and refused.headers["Retry-After"] == "1"
    monkeypatch.setattr(http, "_MOST_AT_ONCE", 1)
    for program in (agent, other, agent):
        assert (await program.request("POST", "/mcp", initialize(HANDSHAKES[-1]), ACCEPT)).status == 200


async def test_a_server_that_ended_by_a_defect_is_replaced(portal: Portal, engine: FakeEngine) -> None:
    agent = portal.program(await token_of(await portal.login(), "read"))
    assert (await agent.request("POST", "/mcp", initialize(HANDSHAKES[-1]), ACCEPT)).status == 200
    runner = next(task for task in asyncio.all_tasks() if task.get_name() == "mcp")
    runner.cancel()
    await asyncio.wait({runner})
    assert (await agent.request("POST", "/mcp", initialize(HANDSHAKES[-1]), ACCEPT)).status == 200


# On stdin and stdout


async def test_the_command_serves_a_client_that_starts_it(portal: Portal, front: Front, engine: FakeEngine, tmp_path: Path) -> None:
    engine.add()
    secret = tmp_path / "token"
    secret.touch(0o600)
    secret.write_text(await token_of(await portal.login(), "control") + "\n")
    words = ["-m", "engine.cli.main", "mcp", "--url", f"https://tclone.localhost:{front.port}", "--token-file", str(secret), "--ca", str(portal.places.ca_certificate)]
    async with Client(StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))) as client:
        clicked = await client.call_tool("computer_click", CLICK)
        assert told(clicked)["branch"] == "ws-1" and acted(engine)[-1]["action"] == "click"
        assert told(await client.call_tool("run_command", {"branch": "ws-1", "command": "true"}))["status"] == 5
        assert "no workspace ws-4: it is gone" in refusal(await client.call_tool("branch_get", {"branch": "ws-4"}))


async def test_what_was_asked_before_the_client_said_no_more_is_answered(portal: Portal, front: Front, engine: FakeEngine, tmp_path: Path) -> None:
    """As `printf … | tclone mcp` does: all of it is in the pipe, and the pipe is closed, before the first answer."""
    engine.add()
    engine.behaviour, engine.delay = "slow", 1.0
    secret = tmp_path / "token"
    secret.touch(0o600)
    secret.write_text(await token_of(await portal.login(), "control") + "\n")
    words = ["-m", "engine.cli.main", "mcp", "--url", f"https://tclone.localhost:{front.port}", "--token-file", str(secret), "--ca", str(portal.places.ca_certificate)]
    clicks = [{"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": "computer_click", "arguments": CLICK}} for number in (2, 3)]
    said = [initialize(HANDSHAKES[-1]), {"jsonrpc": "2.0", "method": "notifications/initialized"}, *clicks]
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    async with asyncio.timeout(PATIENCE):
        out, _ = await process.communicate(b"".join(json.dumps(one).encode() + b"\n" for one in said))
    answers = {one["id"]: one["result"] for one in map(json.loads, out.splitlines()) if "id" in one}
    assert process.returncode == 0 and sorted(answers) == [1, 2, 3]
    assert all(answers[number]["structuredContent"]["branch"] == "ws-1" and not answers[number]["isError"] for number in (2, 3))
    assert [action["action"] for action in acted(engine)] == ["click", "click"]


async def test_a_line_that_is_no_message_is_answered_and_the_next_is_served(portal: Portal, front: Front, engine: FakeEngine, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.touch(0o600)
    secret.write_text(await token_of(await portal.login(), "read") + "\n")
    words = ["-m", "engine.cli.main", "mcp", "--url", f"https://tclone.localhost:{front.port}", "--token-file", str(secret), "--ca", str(portal.places.ca_certificate)]
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    async with asyncio.timeout(PATIENCE):
        out, _ = await process.communicate(b'this is no JSON\n{"no": "message"}\n' + json.dumps(initialize(HANDSHAKES[-1])).encode() + b"\n")
    answers = [json.loads(line) for line in out.splitlines()]
    assert [(one["id"], one["error"]["code"]) for one in answers if "error" in one] == [(None, -32700), (None, -32600)]
    assert process.returncode == 0 and [one["id"] for one in answers if "result" in one] == [1]


async def test_answers_are_waited_for_so_long_and_not_for_what_was_taken_back() -> None:
    def sent(**fields: object) -> SessionMessage:
        return SessionMessage(jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", **fields}))

    sending, said = create_context_streams[SessionMessage | Exception](10)
    told, receiving = create_context_streams[SessionMessage](10)
    for seconds, more, least, most in ((0.3, None, 0.3, 5), (60, {"method": "notifications/cancelled", "params": {"requestId": 7}}, 0, 5)):
        asked = Asked(said, told, seconds)
        asked.note(sent(id="7", method="tools/list").message)
        asked.note(sent(id=8, method="tools/list").message)
        await asked.told.send(sent(id=8, result={}))
        if more is not None:
            asked.note(sent(**more).message)
        began = asyncio.get_running_loop().time()
        await asked.done()
        assert least <= asyncio.get_running_loop().time() - began < most
    for stream in (sending, said, told, receiving):
        stream.close()


def test_what_the_command_cannot_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("TCLONE_TOKEN", raising=False)
    monkeypatch.setenv("TCLONE_TOKEN_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("TCLONE_CA", str(tmp_path / "ca.pem"))
    token = tmp_path / "token"
    token.write_text("tct_x")
    for words, said in (([], "no token"), (["--token-file", str(token), "--url", "http://desks.example.org"], "use https"), (["--token-file", str(token)], "no certificate authority")):
        assert stdio.main(words) == 2
        assert said in capsys.readouterr().err, words


# Parts


async def test_what_is_asked_again_because_its_answer_was_lost_has_the_same_key(tmp_path: Path) -> None:
    keys: list[str] = []

    async def lost(request: web.Request) -> web.Response:
        keys.append(request.headers["Idempotency-Key"])
        if len(keys) == 1:
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"done": True})

    app = web.Application()
    app.add_routes([web.post("/api/v1/workspaces/ws-1/actions", lost)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "portal.sock")).start()
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(tmp_path / "portal.sock"))) as session:
        caller = Caller(session, "http://control", {})
        for _ in range(2):
            assert await caller.json("POST", "/workspaces/ws-1/actions", {}) == {"done": True}
    await runner.cleanup()
    assert keys[0] == keys[1] != keys[2] and len(keys) == 3


def test_of_a_long_output_the_beginning_and_the_end_are_told() -> None:
    output = Output()
    for _ in range(10):
        output.add(b"a" * 10_000)
    output.add(b"the end")
    text = output.text()
    assert text.startswith("aaa") and text.endswith("the end") and f"[… {100_007 - 2 * (32 << 10)} bytes left out …]" in text
    short = Output()
    short.add(b"one")
    assert short.text() == "one"


def test_text_that_ends_in_the_midst_of_a_character_is_text() -> None:
    assert _text("aé".encode()[:2], False) == ("a", "utf-8", 1) and _text(b"", True) == ("", "utf-8", 0)
    for other, is_end in ((b"\xff\xfe", False), (b"a\0b", False), ("aé".encode()[:2], True)):
        assert _text(other, is_end)[1:] == ("base64", len(other))


def test_a_refusal_is_what_a_tool_raises() -> None:
    assert str(Refused(404, "no workspace ws-3")) == "no workspace ws-3"
