"""Commands by the API: their output as it comes, their status, their end."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.portal.conftest import Client, Portal, program
from tests.portal.fake_engine import FakeEngine
from tests.portal.test_forks import entries

EXEC = "/api/v1/workspaces/ws-1/exec"


async def lines(client: Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await client.request("POST", EXEC, body)
    assert answer.status == 200 and answer.content_type == "application/x-ndjson", await answer.text()
    return [json.loads(line) for line in (await answer.text()).splitlines()]


async def test_output_streams_and_the_status_comes_last(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    agent = await program(portal, person, "control")
    engine.inside.says, engine.inside.exits = [(1, b"caf\xc3"), (1, b"\xa9\n"), (2, b"\xff oh\n")], 3
    told = await lines(agent, {"script": "cat", "stdin": "héllo", "env": {"A": "b"}, "cwd": "/tmp"})
    assert told == [{"stdout": "caf"}, {"stdout": "é\n"}, {"stderr": "\ufffd oh\n"}, {"exit": 3}]
    assert engine.inside.told == "héllo".encode()
    asked = engine.inside.shells[-1]
    assert (asked["argv"], asked["user"], asked["env"], asked["cwd"]) == (["/bin/sh", "-c", "cat"], "@desktop", {"A": "b"}, "/tmp")
    told = await lines(agent, {"argv": ["cat"], "encoding": "base64", "user": "root"})
    assert b"".join(base64.b64decode(item["stderr"]) for item in told if "stderr" in item) == b"\xff oh\n"
    assert [(entry["outcome"], entry["exit"]) for entry in await entries(person, "exec")] == [("ok", 3), ("ok", 3)]


async def test_what_does_not_end_is_ended(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    agent = await program(portal, await portal.login(), "control")
    engine.inside.says, engine.inside.exits = [(1, b"hello\n")], None
    told = await lines(agent, {"script": "sleep inf", "timeout": 0.2})
    assert told[0] == {"stdout": "hello\n"} and told[1]["error"]["code"] == "timeout" and len(told) == 2
    assert engine.inside.open_shells == 0


async def test_the_end_of_a_token_ends_its_commands(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    agent = await program(portal, person, "control")
    engine.inside.says, engine.inside.exits = [(1, b"hello\n")], None
    async with agent._session.post(f"http://control{EXEC}", json={"script": "x"}, headers=agent.headers()) as answer:
        assert json.loads(await answer.content.readline()) == {"stdout": "hello\n"}
        token = (await (await person.request("GET", "/api/v1/tokens")).json())[0]["id"]
        assert (await person.request("DELETE", f"/api/v1/tokens/{token}")).status == 204
        assert json.loads(await answer.content.readline())["error"]["code"] == "login"


async def test_refusals(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    agent, reader = await program(portal, person, "control"), await program(portal, person, "read")
    assert (await reader.request("POST", EXEC, {"script": "x"})).status == 403
    for body in ({}, {"script": "x", "argv": ["x"]}, {"argv": []}, {"script": "x", "cwd": "tmp"}, {"script": "x", "timeout": 0}, {"script": "x", "encoding": "hex"}):
        assert (await agent.request("POST", EXEC, body)).status == 400, body
    await person.request("POST", "/api/v1/workspaces/ws-1/lease", {})
    assert (await agent.request("POST", EXEC, {"script": "x"})).status == 423
    assert engine.inside.shells == []
