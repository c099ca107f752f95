"""Every face by which programs act, in one table: what holds for one of them holds for all.

Each row drives one workspace in its own protocol and says what became of it as HTTP would: 200, 401, 404, 423, 429.
"""

from __future__ import annotations

import base64
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from portal.app import Options
from portal.node import Patience
from portal.osworld.routes import routes
from portal.osworld.server import Ground, application
from tests.portal.conftest import PATIENCE, Client, Portal, program
from tests.portal.fake_engine import FakeEngine
from tests.portal.fake_inside import OSWORLD_RUNNER
from tests.portal.test_control_socket import control, until
from tests.portal.test_e2b import api
from tests.portal.test_mcp import connected

pytestmark = pytest.mark.timeout(60)

CLICK = {"action": "click", "x": 10, "y": 20}
_CODES = {"held": 423, "not_found": 404, "limit": 429, "failed_precondition": 423, "resource_exhausted": 429, "unauthenticated": 401}


@dataclass
class World:
    """A portal, a person, a program of that person's, and the ways in that were opened for ws-1 before anything else happened."""

    portal: Portal
    engine: FakeEngine
    person: Client
    agent: Client
    token: str
    sandbox: dict[str, str] = field(default_factory=dict)
    cua: str = ""
    osworld: dict[str, str] = field(default_factory=dict)

    def one(self, workspace: str) -> str:
        return f"/api/v1/workspaces/{workspace}"

    def acted(self) -> list[tuple[str, str]]:
        """Workspace and action of everything that reached the engine."""
        return [(body["ref"], action["action"]) for verb, body in self.engine.calls if verb == "act" for action in body["actions"]]


def code_of(error: dict[str, Any]) -> int:
    return _CODES[error["code"]]


# Input


async def rest(world: World, workspace: str) -> int:
    return (await world.agent.request("POST", world.one(workspace) + "/actions", {"actions": [CLICK]})).status


async def socket(world: World, workspace: str) -> int:
    async with control(world.agent, world.one(workspace)) as talk:
        await talk.send_json({"type": "act", "id": "a", "actions": [CLICK]})
        while True:
            told = await talk.receive_json(timeout=PATIENCE)
            if told["type"] == "done":
                return 200
            if told["type"] in ("refused", "error", "gone"):
                return code_of(told["error"]) if "error" in told else code_of(told)


async def anthropic(world: World, workspace: str) -> int:
    call = {"type": "tool_use", "id": "t", "name": "computer", "input": {"action": "left_click", "coordinate": [10, 20]}}
    answer = await world.agent.request("POST", world.one(workspace) + "/computer/anthropic", call)
    # What the engine refuses is told to the model, in its own terms.
    told = await answer.json()
    return 404 if answer.status == 200 and told.get("is_error") and "no workspace" in str(told) else answer.status


async def openai(world: World, workspace: str) -> int:
    call = {"type": "computer_call", "call_id": "c", "action": {"type": "click", "button": "left", "x": 10, "y": 20}}
    return (await world.agent.request("POST", world.one(workspace) + "/computer/openai", call)).status


async def gemini(world: World, workspace: str) -> int:
    return (await world.agent.request("POST", world.one(workspace) + "/computer/gemini", {"name": "click_at", "args": {"x": 10, "y": 20}})).status


async def mcp(world: World, workspace: str) -> int:
    async with connected(world.portal, world.token) as client:
        result = await client.call_tool("computer_click", {"branch": workspace, "x": 10, "y": 20})
    return _of_text(" ".join(part.text for part in result.content if part.type == "text")) if result.is_error else 200


def _of_text(text: str) -> int:
    return next(int(code) for code in ("423", "404", "429", "401") if f", {code})" in text)


async def osworld(world: World, workspace: str) -> int:
    return await _osworld(world, workspace, "/setup/activate_window", {"window_name": "Terminal"})


async def _osworld(world: World, workspace: str, path: str, body: dict[str, Any]) -> int:
    async with aiohttp.ClientSession() as session, session.post(world.osworld[workspace] + path, json=body) as answer:
        return answer.status


async def e2b(world: World, workspace: str) -> int:
    return await _e2b(world, workspace, "xdotool click 1")


async def _e2b(world: World, workspace: str, script: str) -> int:
    data = json.dumps({"process": {"cmd": "/bin/bash", "args": ["-l", "-c", script]}, "stdin": False}).encode()
    shown: dict[str, str | None] = {"Authorization": None, "X-Access-Token": world.sandbox[workspace], "E2b-Sandbox-Id": workspace, "Content-Type": "application/connect+json"}
    answer = await world.agent.request("POST", "/e2b/process.Process/Start", headers=shown, data=struct.pack(">BI", 0, len(data)) + data)
    assert answer.status == 200
    content, events = (await answer.text("latin-1")).encode("latin-1"), []
    while content:
        (length,) = struct.unpack(">I", content[1:5])
        events.append(json.loads(content[5 : 5 + length]))
        content = content[5 + length :]
    if "error" in events[-1]:
        return code_of(events[-1]["error"])
    end = next(one["event"]["end"] for one in events if "end" in one.get("event", {}))
    # A program that failed: what it said is the refusal.
    said = base64.b64decode("".join(one["event"]["data"].get("stderr", "") for one in events if "data" in one.get("event", {}))).decode()
    return 200 if end["exitCode"] in (0, 5) else 404 if "no workspace" in said else 500


async def cua(world: World, workspace: str) -> int:
    """By a token at the portal."""
    return await _cua(world, workspace, {"command": "left_click", "params": {"x": 10, "y": 20}})


async def _cua(world: World, workspace: str, message: dict[str, Any]) -> int:
    shown: dict[str, str | None] = {"Authorization": None, "X-API-Key": world.token, "X-Container-Name": workspace}
    answer = await world.agent.request("POST", "/cmd", message, headers=shown)
    return _of_line(answer.status, await answer.text())


def _of_line(status: int, text: str) -> int:
    told = json.loads(text.removeprefix("data: "))
    return status if status != 200 else 200 if told["success"] else code_of(told)


async def cua_loopback(world: World, workspace: str) -> int:
    try:
        async with aiohttp.ClientSession() as session, session.post(world.cua, json={"command": "left_click", "params": {"x": 10, "y": 20}}) as answer:
            return _of_line(answer.status, await answer.text())
    except aiohttp.ClientConnectionError:
        return 404  # it closes with its workspace


# Commands and files


async def rest_exec(world: World, workspace: str) -> int:
    return (await world.agent.request("POST", world.one(workspace) + "/exec", {"script": "true"})).status


async def rest_file(world: World, workspace: str) -> int:
    sent: dict[str, str | None] = {"Content-Type": "application/octet-stream"}
    answer = await world.agent.request("PUT", world.one(workspace) + "/file?path=/home/user/a&overwrite=1", headers=sent, data=b"x")
    return 200 if answer.status == 201 else answer.status


async def exec_socket(world: World, workspace: str) -> int:
    async with world.agent.socket(world.one(workspace) + "/exec") as talk:
        await talk.send_json({"type": "hello", "argv": ["true"]})
        while (told := await talk.receive(timeout=PATIENCE)).type is not aiohttp.WSMsgType.CLOSED:
            if told.type is not aiohttp.WSMsgType.TEXT:
                continue
            message = json.loads(told.data)
            if message["type"] == "ready":
                await talk.send_json({"stdin": "eof"})
            if message["type"] in ("exit", "error", "refused"):
                return 200 if message["type"] == "exit" else code_of(message["error"])
    raise AssertionError("it ended without a word")


async def mcp_command(world: World, workspace: str) -> int:
    async with connected(world.portal, world.token) as client:
        result = await client.call_tool("run_command", {"branch": workspace, "command": "true"})
    if not result.is_error:
        return 200
    text = " ".join(part.text for part in result.content if part.type == "text")
    return 404 if f"no workspace {workspace}: it is gone" in text else next(status for code, status in _CODES.items() if f"({code})" in text)


async def e2b_command(world: World, workspace: str) -> int:
    return await _e2b(world, workspace, "true")


async def cua_command(world: World, workspace: str) -> int:
    return await _cua(world, workspace, {"command": "run_command", "params": {"command": "true"}})


async def osworld_command(world: World, workspace: str) -> int:
    return await _osworld(world, workspace, "/execute", {"command": ["true"]})


Act = Callable[[World, str], Awaitable[int]]
INPUT: list[Act] = [rest, socket, anthropic, openai, gemini, mcp, osworld, e2b, cua, cua_loopback]
COMMANDS: list[Act] = [rest_exec, rest_file, exec_socket, mcp_command, osworld_command, e2b_command, cua_command]
# Files are bounded by their size and by how many are under way, not by a rate.
RATED = [act for act in INPUT + COMMANDS if act is not rest_file]


def named(act: Act) -> str:
    return act.__name__


@contextlib.asynccontextmanager
async def osworld_server(portal: Portal, workspace: str) -> AsyncIterator[str]:
    """The server as the portal makes it, at a port of the test's."""
    parts = portal.control
    ground = Ground(parts.node, parts._inside, parts._actions, parts._router, parts.owners, parts.access.users, parts._rates)
    async with TestServer(application(routes, ground)(workspace), host="127.0.0.1") as server:
        yield str(server.make_url("")).rstrip("/")


@pytest.fixture
def options() -> Options:
    """Patient: none of this is about a slow engine."""
    return Options(patience=Patience(read=20.0, work=20.0))


@pytest.fixture
async def world(portal: Portal, engine: FakeEngine) -> AsyncIterator[World]:
    engine.add()
    engine.inside.says = []
    engine.inside.replies[OSWORLD_RUNNER] = ([(1, b'{"done": {"returncode": 0, "output": "", "error": ""}}\n')], 0)
    person = await portal.login()
    agent = await program(portal, person, "control", "fork")
    made = World(portal, engine, person, agent, agent._token)  # type: ignore[attr-defined]
    made.sandbox["ws-1"] = (await (await agent.request("POST", "/e2b/sandboxes/ws-1/connect", {}, headers=api(agent))).json())["envdAccessToken"]
    place = await (await agent.request("POST", made.one("ws-1") + "/cua", {})).json()
    made.cua = f"http://{place['address']}:{place['port']}/cmd"
    async with osworld_server(portal, "ws-1") as made.osworld["ws-1"]:
        yield made


async def entries(world: World) -> list[dict[str, Any]]:
    """What is in the audit log of what a program did or was refused, the oldest first."""
    told = (await (await world.person.request("GET", "/api/v1/audit?limit=200")).json())[::-1]
    return [one for one in told if one["event"] in ("action", "exec", "command", "upload", "refused")]


@pytest.mark.parametrize("act", INPUT + COMMANDS, ids=named)
async def test_while_a_person_has_control_nothing_is_done_and_then_it_goes_on(world: World, act: Act) -> None:
    assert (await world.person.request("POST", world.one("ws-1") + "/lease", {})).status == 200
    assert await act(world, "ws-1") == 423
    assert world.acted() == [] and world.engine.inside.shells == [] and b"/home/user/a" not in world.engine.inside.files
    # Looking goes on.
    assert (await world.agent.request("GET", world.one("ws-1") + "/screenshot?width=64")).status == 200
    (refused,) = await entries(world)
    assert (refused["outcome"], refused["workspace"], refused["user"]) == ("held", "ws-1", "admin") and refused["token"]
    assert (await world.person.request("DELETE", world.one("ws-1") + "/lease")).status == 204
    assert await act(world, "ws-1") == 200


@pytest.mark.parametrize("act", INPUT + COMMANDS, ids=named)
async def test_what_is_done_is_on_record_with_branch_token_and_outcome(world: World, act: Act) -> None:
    tokens = {one["id"] for one in await (await world.person.request("GET", "/api/v1/tokens")).json()}
    assert await act(world, "ws-1") == 200
    told = await entries(world)
    expected = "osworld-ws-1" if "osworld" in act.__name__ else tokens.pop()
    assert told and {(one["workspace"], one["token"]) for one in told} == {("ws-1", expected)}
    # OSWorld's command says how it ended.
    assert {one["outcome"] for one in told} == ({"0"} if act is osworld_command else {"ok"})


@pytest.mark.parametrize("act", INPUT + COMMANDS, ids=named)
async def test_a_branch_that_is_gone_is_an_error_and_never_another_one(world: World, act: Act) -> None:
    world.engine.add()
    assert (await world.person.request("DELETE", world.one("ws-1"))).status == 204
    assert await act(world, "ws-1") == 404
    assert world.acted() == [] and world.engine.inside.shells == []


@pytest.mark.parametrize("act", RATED, ids=named)
async def test_each_token_goes_on_only_so_fast(world: World, act: Act) -> None:
    rates = world.portal.control._rates
    rates._burst, rates._per_second = 0, 0.001
    assert await act(world, "ws-1") == 429
    assert world.acted() == [] and world.engine.inside.shells == []
    assert [one["outcome"] for one in await entries(world)] == ["limit"]


async def test_what_opens_a_workspace_opens_no_child_of_it(world: World) -> None:
    forked = await world.agent.request("POST", world.one("ws-1") + "/fork", {"count": 1})
    assert [one["workspace"]["id"] for one in (await forked.json())["results"]] == ["ws-2"]
    # The key of the parent's sandbox; the child has one of its own at once.
    child: dict[str, str | None] = {"Authorization": None, "E2b-Sandbox-Id": "ws-2"}
    assert (await world.agent.request("GET", "/e2b/health", headers=child | {"X-Access-Token": world.sandbox["ws-1"]})).status == 401
    own = (await (await world.agent.request("POST", "/e2b/sandboxes/ws-2/connect", {}, headers=api(world.agent))).json())["envdAccessToken"]
    assert own != world.sandbox["ws-1"]
    assert (await world.agent.request("GET", "/e2b/health", headers=child | {"X-Access-Token": own})).status == 204
    # The parent's places without a login lead to the parent; the child has none.
    assert await cua_loopback(world, "ws-1") == await osworld(world, "ws-1") == 200
    assert world.acted() == [("ws-1", "click"), ("ws-1", "activate")]
    assert (await world.agent.request("GET", world.one("ws-2") + "/cua")).status == 404
    assert (await (await world.agent.request("GET", world.one("ws-2"))).json())["osworld"] is None
    # A person's hold of the parent is none of the child, and a program of the parent's connection acts on the parent.
    assert (await world.person.request("POST", world.one("ws-1") + "/lease", {})).status == 200
    for act in (rest, socket, mcp, cua):
        assert await act(world, "ws-2") == 200 and await act(world, "ws-1") == 423, act.__name__
    assert {workspace for workspace, _ in world.acted()[2:]} == {"ws-2"}


@pytest.mark.parametrize("path, body", [
    ("/actions", {"actions": [CLICK]}),
    ("/computer/anthropic", {"type": "tool_use", "id": "t", "name": "computer", "input": {"action": "left_click", "coordinate": [10, 20]}}),
    ("/computer/openai", {"type": "computer_call", "call_id": "c", "action": {"type": "click", "button": "left", "x": 10, "y": 20}}),
    ("/computer/gemini", {"name": "click_at", "args": {"x": 10, "y": 20}}),
])  # fmt: skip
async def test_what_is_asked_again_under_one_key_is_done_once(world: World, path: str, body: dict[str, Any]) -> None:
    keyed: dict[str, str | None] = {"Idempotency-Key": "once"}
    answers = [await world.agent.request("POST", world.one("ws-1") + path, body, headers=keyed) for _ in range(3)]
    assert {answer.status for answer in answers} == {200} and len({await answer.text() for answer in answers}) == 1
    assert [action for _, action in world.acted()].count("click") == 1


async def test_what_is_asked_again_over_another_control_socket_is_done_once(world: World) -> None:
    for _ in range(2):
        async with control(world.agent, world.one("ws-1")) as talk:
            await talk.send_json({"type": "act", "id": "a", "key": "once", "actions": [CLICK]})
            while (await talk.receive_json(timeout=PATIENCE))["type"] != "done":
                pass
    assert world.acted() == [("ws-1", "click")]


async def test_what_a_connection_holds_is_let_go_of_when_it_ends(world: World) -> None:
    """By the connections that there are; a request that stands for itself holds until control changes hands, as `left_mouse_down` means it."""
    async with control(world.agent, world.one("ws-1")) as talk:
        await talk.send_json({"type": "act", "id": "a", "actions": [{"action": "key_down", "keys": "ctrl"}, {"action": "mouse_down"}]})
        while (await talk.receive_json(timeout=PATIENCE))["type"] != "done":
            pass
    async with aiohttp.ClientSession() as session, session.ws_connect(world.cua.replace("/cmd", "/ws")) as talk:
        for message in ({"command": "key_down", "params": {"key": "shift"}}, {"command": "mouse_down", "params": {}}):
            await talk.send_json(message)
            assert (await talk.receive_json())["success"] is True
    released = ["mouse_up", "key_up"]
    wanted = ["key_down", "mouse_down", *released] * 2
    await until(lambda: len(world.acted()) == len(wanted))
    assert [action for _, action in world.acted()] == wanted
