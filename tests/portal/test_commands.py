"""Commands that programs run inside by the portal's API. A real one: tests/agents/test_sdk.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.portal.conftest import Client, Portal, answers, program
from tests.portal.fake_engine import FakeEngine
from tests.portal.test_actions import CLICK, ONE


@pytest.fixture
async def agent(portal: Portal, engine: FakeEngine) -> Client:
    engine.add()
    return await program(portal, await portal.login(), "control")


async def test_input_both_outputs_and_the_status(portal: Portal, agent: Client, engine: FakeEngine) -> None:
    async with agent.socket(f"{ONE}/exec") as socket:
        await socket.send_json({"type": "hello", "argv": ["cat"], "env": {"PASSWORD": "hidden-1"}, "cwd": "/tmp"})
        await socket.send_bytes(b"\x00hello")
        await socket.send_bytes(b"\x07not input")
        await socket.send_json({"stdin": "eof"})
        assert await answers(socket) == [{"type": "ready"}, b"\x01hello", b"\x02done", {"type": "exit", "code": 5}]
    (command,) = engine.inside.shells
    assert (command["argv"], command["user"], command["cwd"], command["tty"]) == (["cat"], "@desktop", "/tmp", False)
    entries = await (await (await portal.login()).request("GET", "/api/v1/audit?event=exec")).json()
    assert [(entry["workspace"], entry["account"], entry["outcome"]) for entry in entries] == [("ws-1", "@desktop", "ok")] and "hidden-1" not in json.dumps(entries)


@pytest.mark.parametrize("hello", [{}, {"argv": []}, {"argv": "ls"}, {"argv": ["ls"], "tty": 1}, {"argv": ["ls"], "rows": 0}, {"argv": ["ls"], "more": 1}])
async def test_what_is_no_command(agent: Client, engine: FakeEngine, hello: dict[str, Any]) -> None:
    async with agent.socket(f"{ONE}/exec") as socket:
        await socket.send_json({"type": "hello", **hello})
        (answer,) = await answers(socket)
    assert (answer["type"], answer["error"]["code"]) == ("error", "bad_request") and engine.inside.shells == []


async def test_who_may_and_when(portal: Portal, agent: Client, engine: FakeEngine) -> None:
    person = await portal.login()
    reader = await program(portal, person, "read")
    stranger = await program(portal, await portal.user(person, "other"), "control")
    assert (await person.request("POST", f"{ONE}/lease", {})).status == 200
    for client, code in ((reader, "forbidden"), (stranger, "not_found"), (agent, "held")):
        async with client.socket(f"{ONE}/exec") as socket:
            await socket.send_json({"type": "hello", "argv": ["ls"]})
            (answer,) = await answers(socket)
        assert answer["error"]["code"] == code
    assert answer["error"]["reason"] == "held_by_person" and answer["error"]["lease"]["holder"] == "admin" and engine.inside.shells == []


async def test_commands_have_the_rate_of_actions(portal: Portal, agent: Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine the bucket would fill as fast as it is emptied.
    monkeypatch.setattr(portal.control._rates, "_clock", lambda: 0.0)
    for _ in range(6):
        assert (await agent.request("POST", f"{ONE}/actions", {"actions": [CLICK] * 64})).status == 200
    codes = set()
    for _ in range(17):
        async with agent.socket(f"{ONE}/exec") as socket:
            await socket.send_json({"type": "hello", "argv": ["cat"]})
            await socket.send_json({"stdin": "eof"})
            answer = (await answers(socket))[-1]
            if answer["type"] == "error":
                assert answer["error"]["retry_after"] > 0
            codes.add(answer["code"] if answer["type"] == "exit" else answer["error"]["code"])
        if "limit" in codes:
            break
    assert codes == {5, "limit"}
