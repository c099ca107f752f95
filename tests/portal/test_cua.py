"""cua's computer client, as its users have it, before the portal with an engine that is played. On a real desktop: tests/agents/test_cua.py."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests import client
from tests.portal.conftest import Portal, program
from tests.portal.fake_engine import FakeEngine

SCRIPT = Path(__file__).parent / "clients/cua_wire.py"
CUA = "/api/v1/workspaces/ws-1/cua"
ACTED = [
    "click", "click", "move", "mouse_down", "move", "mouse_up", "drag", "scroll", "scroll", "type", "set_clipboard", "key", "key", "key",
]  # fmt: skip


def acted(engine: FakeEngine) -> list[dict[str, Any]]:
    return [action for verb, body in engine.calls if verb == "act" for action in body["actions"]]


@pytest.mark.timeout(200)
async def test_the_client_as_it_is_by_loopback(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    engine.inside.says = [(1, b"hello\n")]
    agent = await program(portal, await portal.login(), "control")
    made = await agent.request("POST", CUA, {})
    assert made.status == 201 and await made.json() == {"workspace": "ws-1", "address": "127.0.0.1", "port": 8000}, await made.text()
    assert "ok" in await client.run("cua", SCRIPT, "loopback")
    done = acted(engine)
    assert [action["action"] for action in done] == ACTED
    assert (done[0]["x"], done[0]["y"], done[1]["count"], done[6]["path"]) == (10, 20, 2, [[1, 2], [3, 4]])
    assert (done[7]["dy"], done[8]["dy"], done[10]["text"]) == (3, -2, "café")
    assert [action["keys"] for action in done if action["action"] == "key"] == ["ctrl+v", "enter", "ctrl+shift+t"]


async def test_the_client_as_it_is_by_token(portal: Portal, engine: FakeEngine) -> None:
    """What it sends with a key: its own port is the portal's, so here only the request itself is sent."""
    engine.add()
    agent = await program(portal, await portal.login(), "control")
    token = agent._token  # type: ignore[attr-defined]
    shown: dict[str, str | None] = {"Authorization": None, "X-API-Key": token, "X-Container-Name": "ws-1", "Host": "localhost:8443"}
    answer = await agent.request("POST", "/cmd", {"command": "get_cursor_position", "params": {}}, headers=shown)
    said = await answer.text()
    assert answer.status == 200 and said.startswith("data: ") and json.loads(said[6:])["success"] is True
    refused = json.loads((await (await agent.request("POST", "/cmd", {"command": "left_click", "params": {"x": "a"}}, headers=shown)).text())[6:])
    assert refused["success"] is False and refused["code"] == "bad_request"
    # What is no path is told as such. That the engine is away (below) does not mean that there is no file.
    for path in ("\ud800", "", "a\0b", 7):
        none = json.loads((await (await agent.request("POST", "/cmd", {"command": "write_text", "params": {"path": path, "content": "x"}}, headers=shown)).text())[6:])
        assert (none["success"], none["code"]) == (False, "bad_request"), path
    asked = {"command": "file_exists", "params": {"path": "~/notes.txt"}}
    assert json.loads((await (await agent.request("POST", "/cmd", asked, headers=shown)).text())[6:]) == {"success": True, "exists": True}
    for wrong, status in ((shown | {"X-API-Key": "tct_x"}, 401), (shown | {"X-API-Key": None}, 401), (shown | {"X-Container-Name": "desk"}, 400)):
        assert (await agent.request("POST", "/cmd", {"command": "version"}, headers=wrong)).status == status
    # What a command says is held in memory: not without end.
    engine.inside.says, engine.inside.exits = [(1, b"x" * (1 << 20))] * 9, None
    loud = json.loads((await (await agent.request("POST", "/cmd", {"command": "run_command", "params": {"command": "yes"}}, headers=shown)).text())[6:])
    assert loud["success"] is False and loud["code"] == "limit" and engine.inside.open_shells == 0
    stranger = await program(portal, await portal.user(await portal.login(), "other"), "control")
    theirs: dict[str, str | None] = {**shown, "X-API-Key": stranger._token}  # type: ignore[attr-defined]
    assert (await stranger.request("POST", "/cmd", {"command": "version"}, headers=theirs)).status == 404
    for behaviour, code in (("bad", "bad_answer"), ("away", "unavailable")):
        engine.behaviour = behaviour
        if behaviour == "away":
            await engine.stop()
        lost = json.loads((await (await agent.request("POST", "/cmd", asked, headers=shown)).text())[6:])
        assert (lost["success"], lost["code"]) == (False, code)


async def test_each_address_is_one_workspaces_and_closes_with_it_and_with_the_token(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    engine.add()
    person = await portal.login()
    agent, other = await program(portal, person, "control", "fork"), await program(portal, person, "control")
    second = CUA.replace("ws-1", "ws-2")
    assert (await agent.request("POST", CUA, {"address": "127.0.0.21"})).status == 201
    assert (await agent.request("POST", second, {"address": "127.0.0.21"})).status == 409
    assert (await other.request("POST", second, {"address": "127.0.0.22"})).status == 201
    for address in ("0.0.0.0", "10.0.0.1", "localhost", "::1"):
        assert (await agent.request("POST", CUA, {"address": address})).status == 400, address
    assert (await (await agent.request("GET", second)).json())["address"] == "127.0.0.22"
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect("http://127.0.0.22:8000/ws") as channel:
            await channel.send_json({"command": "move_cursor", "params": {"x": 7, "y": 8}})
            assert (await channel.receive_json())["success"] is True
        # No page of a browser on this machine gets in.
        url, message = "http://127.0.0.21:8000/cmd", {"command": "version"}
        for headers in ({"Origin": "http://127.0.0.21:8000"}, {"Host": "rebound.example:8000"}):
            async with session.post(url, json=message, headers=headers) as answer:
                assert answer.status == 403, headers
        async with session.post(url, data=json.dumps(message), headers={"Content-Type": "text/plain"}) as answer:
            assert answer.status == 415
        await person.request("POST", "/api/v1/workspaces/ws-1/lease", {})
        async with session.post(url, json={"command": "left_click", "params": {"x": 1, "y": 1}}) as answer:
            told = json.loads((await answer.text())[6:])
            assert told["success"] is False and told["code"] == "held"
    await person.request("DELETE", "/api/v1/workspaces/ws-1/lease")
    assert [action["x"] for action in acted(engine)] == [7]
    assert (await agent.request("DELETE", "/api/v1/workspaces/ws-1")).status == 204
    await _closed("127.0.0.21")
    token = next(one for one in await (await person.request("GET", "/api/v1/tokens")).json() if one["scopes"] == ["control"])
    assert (await person.request("DELETE", f"/api/v1/tokens/{token['id']}")).status == 204
    await _closed("127.0.0.22")
    assert (await person.request("GET", second)).status == 404


async def test_who_comes_by_loopback_is_a_program_with_no_more_right_than_its_opener_has_now(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    engine.add()
    person = await portal.login()
    assert (await person.request("POST", CUA, {"address": "127.0.0.23"})).status == 201
    click = {"command": "left_click", "params": {"x": 5, "y": 5}}
    async with aiohttp.ClientSession() as session:

        async def said(address: str) -> dict[str, Any]:
            async with session.post(f"http://{address}:8000/cmd", json=click) as answer:
                text = await answer.text()
                return json.loads(text[6:] if text.startswith("data: ") else text)

        assert (await said("127.0.0.23"))["success"] is True
        await person.request("POST", "/api/v1/workspaces/ws-1/lease", {})
        assert (await said("127.0.0.23"))["code"] == "held", "although a person opened it"
        anna = await portal.user(person, "anna", "admin")
        agent = await program(portal, anna, "control")
        assert (await agent.request("POST", CUA.replace("ws-1", "ws-2"), {"address": "127.0.0.24"})).status == 201
        async with session.ws_connect("http://127.0.0.24:8000/ws") as channel:
            await channel.send_json(click)
            assert (await channel.receive_json())["success"] is True
            # As if it had not begun to listen for the end of that right, which would close the address.
            opened = portal.control._cua._opened["ws-2"]
            assert opened.watch is not None
            opened.watch.cancel()
            assert (await person.request("PATCH", "/api/v1/users/anna", {"role": "user"})).status == 200
            await channel.send_json(click)
            assert (await channel.receive_json())["code"] == "not_found"
        assert (await said("127.0.0.24"))["error"]["code"] == "not_found"
    assert len(acted(engine)) == 2


async def test_a_path_that_is_none_is_told(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    agent = await program(portal, await portal.login(), "control")
    shown: dict[str, str | None] = {"Authorization": None, "X-API-Key": agent._token, "X-Container-Name": "ws-1"}  # type: ignore[attr-defined]
    for path in ("\ud800", "a\0b", "", "x" * 4001, None, 5):
        answer = await agent.request("POST", "/cmd", {"command": "read_text", "params": {"path": path}}, headers=shown)
        assert answer.status == 200 and json.loads((await answer.text())[6:])["code"] == "bad_request", path
    answer = await agent.request("POST", "/cmd", {"command": "read_text", "params": {"path": "Documents/../notes.txt"}}, headers=shown)
    assert json.loads((await answer.text())[6:])["content"] == "first\nsecond\n"


async def _closed(address: str) -> None:
    async with asyncio.timeout(30):
        while True:
            with socket.socket() as one:
                if one.connect_ex((address, 8000)) != 0:
                    return
            await asyncio.sleep(0.05)
