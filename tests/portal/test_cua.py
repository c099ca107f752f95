"""cua's computer client, as its users have it, before the portal with an engine that is played. On a real desktop: tests/agents/test_cua.py."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from portal.cua.addresses import Addresses
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
    # `localhost` is where this client looks when it is told nothing.
    made = await agent.request("POST", CUA, {"address": "127.0.0.1"})
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


async def test_places_are_free_ones_or_those_that_were_asked_for(portal: Portal, engine: FakeEngine) -> None:
    for _ in range(4):
        engine.add()
    agent = await program(portal, await portal.login(), "control")

    async def opened(number: int, **wanted: object) -> tuple[str, int]:
        answer = await agent.request("POST", CUA.replace("ws-1", f"ws-{number}"), wanted)
        assert answer.status == 201, await answer.text()
        told = await answer.json()
        return told["address"], told["port"]

    # Two of which nobody says where: each has an address of its own, with the port that the client cannot change.
    first, second = await opened(1), await opened(2)
    assert first[1] == second[1] == 8000 and first[0] != second[0] and all(address.startswith("127.77.") for address, _ in (first, second))
    third, fourth = await opened(3, port=0), await opened(4, address="127.0.0.25", port=0)
    assert third[0] == "127.0.0.1" and fourth[0] == "127.0.0.25" and 8000 not in (third[1], fourth[1])
    for address, port in (first, second, third, fourth):
        async with aiohttp.ClientSession() as session, session.post(f"http://{address}:{port}/cmd", json={"command": "move_cursor", "params": {"x": port % 100, "y": 1}}) as answer:
            assert json.loads((await answer.text())[6:])["success"] is True
    assert len(acted(engine)) == 4
    # One that is taken, by whomever, is refused with the way out; a number that is none is, too.
    assert (await agent.request("DELETE", CUA)).status == 204
    refused = await agent.request("POST", CUA, {"address": third[0], "port": third[1]})
    assert refused.status == 409 and "leave both out" in (await refused.json())["error"]["message"]
    assert (await agent.request("POST", CUA, {"port": 65536})).status == 400
    assert await opened(1, address=first[0], port=first[1]) == first, "who names it knows it"


def test_a_place_that_was_given_back_is_not_chosen_again_for_a_minute() -> None:
    now = 0.0
    one, other = Addresses(lambda: now), Addresses(lambda: now)
    one._next = other._next = 1000  # two portals that go round together
    listeners = [one.bound(None, None), other.bound(None, None), one.bound(None, None)]
    places = [listener.getsockname() for listener in listeners]
    assert len(set(places)) == 3, "one that another program has is passed over"
    for listener in listeners:
        listener.close()
    one.give_back(*places[0])
    one._next = 1000
    with one.bound(None, None) as chosen:
        assert chosen.getsockname() not in places[:1]
    one._next, now = 1000, 61.0
    with one.bound(None, None) as chosen:
        assert chosen.getsockname() == places[0]


async def test_what_the_client_sends_again_because_its_answer_was_lost_is_done_once(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    agent = await program(portal, await portal.login(), "control")
    assert (await agent.request("POST", CUA, {"address": "127.0.0.26"})).status == 201
    click = {"command": "left_click", "params": {"x": 5, "y": 5}}
    engine.behaviour, engine.delay = "slow", 1.0
    body = json.dumps(click).encode()
    head = f"POST /cmd HTTP/1.1\r\nHost: 127.0.0.26:8000\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    _, writer = await asyncio.open_connection("127.0.0.26", 8000)
    writer.write(head + body)
    await writer.drain()
    await asyncio.sleep(0.3)
    writer.transport.abort()
    # By its other way, as it does: once while the first is at work, and a connection that breaks in the midst of that.
    async with aiohttp.ClientSession() as session:
        channel = await session.ws_connect("http://127.0.0.26:8000/ws")
        await channel.send_str(json.dumps({"params": {"y": 5, "x": 5}, "command": "left_click"}))
        await asyncio.sleep(0.1)
        assert channel._response.connection is not None and channel._response.connection.transport is not None
        channel._response.connection.transport.abort()
        await asyncio.sleep(0.1)
        async with session.ws_connect("http://127.0.0.26:8000/ws") as channel:
            await channel.send_json(click)
            assert (await channel.receive_json())["success"] is True
            assert len(acted(engine)) == 1
            # Sent again after its answer, it is meant twice.
            await channel.send_json(click)
            assert (await channel.receive_json())["success"] is True
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
