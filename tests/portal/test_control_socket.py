"""The control socket: acknowledgements, order, once only, the rules of REST, pictures that a slow reader holds up, and nothing left pressed."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from portal import control_session
from portal.control_session import MOST_WAITING
from portal.pictures import WINDOW
from tests.portal.conftest import PATIENCE, Client, Portal
from tests.portal.fake_engine import FakeEngine
from tests.portal.test_actions import CLICK, ONE, acted, program

Socket = aiohttp.ClientWebSocketResponse


@asynccontextmanager
async def control(client: Client, path: str = ONE, **hello: Any) -> AsyncIterator[Socket]:
    async with client.socket(f"{path}/control") as socket:
        await socket.send_json({"type": "hello", **hello})
        yield socket


async def told(socket: Socket, kind: str) -> dict[str, Any]:
    """The next message of a kind; others before it are passed over."""
    async with asyncio.timeout(PATIENCE):
        while True:
            message = await socket.receive()
            assert message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY), message
            found = json.loads(message.data) if message.type is aiohttp.WSMsgType.TEXT else picture(message.data)[0]
            if found["type"] == kind:
                return found


def picture(data: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack_from(">I", data)
    return json.loads(data[4 : 4 + length]), data[4 + length :]


def act(identity: str, *actions: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "act", "id": identity, "actions": list(actions or (CLICK,)), **more}


@pytest.fixture
async def agent(portal: Portal, engine: FakeEngine) -> Client:
    engine.add()
    return await program(portal, await portal.login(), "control")


async def until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def test_each_batch_is_answered_in_order_when_it_is_done(agent: Client, engine: FakeEngine) -> None:
    async with control(agent) as socket:
        assert await told(socket, "ready") == {"type": "ready", "workspace": "ws-1", "lease": None}
        for number in range(5):
            await socket.send_json(act(f"step-{number}", {"action": "move", "x": number, "y": 8.0}, size=[1024, 768]))
        answers = [await told(socket, "done") for _ in range(5)]
    assert [answer["id"] for answer in answers] == [f"step-{number}" for number in range(5)]
    assert answers[0]["results"] == [{"action": "move", "ok": True}] and answers[0]["cursor"] == [3, 4]
    sent = [body for verb, body in engine.calls if verb == "act"]
    assert [body["actions"][0]["x"] for body in sent] == list(range(5)) and sent[0]["size"] == [1024, 768] and sent[0]["actions"][0]["y"] == 8


async def test_a_key_makes_it_once_over_all_connections(agent: Client, engine: FakeEngine) -> None:
    for _ in range(2):
        async with control(agent) as socket:
            for identity in ("a", "b"):
                await socket.send_json(act(identity, key="step-1"))
            assert [(await told(socket, "done"))["id"] for _ in range(2)] == ["a", "b"]
    assert len(acted(engine)) == 1
    async with control(agent) as socket:
        await socket.send_json(act("c", key="é"))
        assert (await told(socket, "refused"))["error"]["code"] == "bad_request"


async def test_a_program_without_the_right_is_refused(portal: Portal, agent: Client, engine: FakeEngine) -> None:
    person = await portal.login()
    reader = await program(portal, person, "read")
    async with control(reader) as socket:
        await socket.send_json(act("x"))
        refusal = await told(socket, "refused")
        assert (refusal["id"], refusal["error"]["code"]) == ("x", "forbidden")
        await socket.send_json({"type": "watch"})
        assert (await told(socket, "frame"))["screen"] == [1280, 800]
    stranger = await program(portal, await portal.user(person, "other"), "control")
    async with control(stranger) as socket:
        assert (await told(socket, "error"))["error"]["code"] == "not_found"
    async with control(agent, "/api/v1/workspaces/ws-99") as socket:
        assert (await told(socket, "error"))["error"]["code"] == "not_found"
    assert acted(engine) == []


async def test_a_person_takes_control_and_the_program_is_told_and_refused(portal: Portal, agent: Client, engine: FakeEngine) -> None:
    person = await portal.login()
    async with control(agent) as socket:
        await told(socket, "ready")
        assert (await person.request("POST", f"{ONE}/lease", {})).status == 200
        assert (await told(socket, "lease"))["lease"]["holder"] == "admin"
        await socket.send_json(act("x"))
        error = (await told(socket, "refused"))["error"]
        assert (error["code"], error["reason"], error["lease"]["holder"]) == ("held", "held_by_person", "admin")
        assert (await person.request("DELETE", f"{ONE}/lease")).status == 204
        assert (await told(socket, "lease"))["lease"] is None
        await socket.send_json(act("y"))
        assert (await told(socket, "done"))["id"] == "y"
    assert acted(engine) == [["click"]]


async def test_the_rate_and_the_audit_log_are_those_of_rest(portal: Portal, agent: Client) -> None:
    person = await portal.login()
    async with control(agent) as socket:
        refused = None
        for number in range(8):
            await socket.send_json(act(str(number), *[CLICK] * 64))
            answer = await asyncio.wait_for(socket.receive_json(), PATIENCE)
            answer = await asyncio.wait_for(socket.receive_json(), PATIENCE) if answer["type"] == "ready" else answer
            refused = answer if answer["type"] == "refused" else refused
    assert refused is not None and refused["error"]["code"] == "limit" and refused["error"]["retry_after"] > 0
    entries = await (await person.request("GET", "/api/v1/audit?limit=200")).json()
    outcomes = {entry["outcome"] for entry in entries if entry["event"] == "action" and entry["token"]}
    assert outcomes == {"ok", "limit"}


@pytest.mark.parametrize(
    "sent",
    ["{", "[]", '{"type":"fly"}', '{"type":"act"}', '{"type":"act","id":"x","actions":[]}', '{"type":"act","id":"x","actions":[{"action":"fly"}]}',
     '{"type":"watch","format":"gif"}', '{"type":"watch","width":NaN}', '{"type":"seen","number":-1}', '{"type":"act","id":"x","actions":[{"action":"cursor"}],"more":1}'],
)  # fmt: skip
async def test_what_is_no_message_is_refused_and_the_next_one_served(agent: Client, engine: FakeEngine, sent: str) -> None:
    async with control(agent) as socket:
        await told(socket, "ready")
        await socket.send_str(sent)
        refusal = await asyncio.wait_for(socket.receive_json(), PATIENCE)
        assert refusal["type"] in ("error", "refused") and refusal["error"]["code"] == "bad_request"
        await socket.send_json(act("next"))
        assert (await told(socket, "done"))["id"] == "next"
    assert acted(engine) == [["click"]]


async def test_more_than_may_wait_is_refused(agent: Client, engine: FakeEngine) -> None:
    engine.behaviour = "slow"
    async with control(agent) as socket:
        await told(socket, "ready")
        for number in range(MOST_WAITING + 4):
            await socket.send_json(act(str(number)))
        assert int((await told(socket, "refused"))["id"]) >= MOST_WAITING
        engine.behaviour = "good"
        await told(socket, "done")


async def test_more_bytes_than_may_wait_are_refused(agent: Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_session, "MOST_WAITING_BYTES", 2000)
    engine.behaviour = "slow"
    async with control(agent) as socket:
        await told(socket, "ready")
        # The one that waits alone may be of any length.
        for number in range(4):
            await socket.send_json(act(str(number), {"action": "type", "text": "x" * 1500}))
        assert (await told(socket, "refused"))["error"]["code"] == "limit"
        engine.behaviour = "good"
        await told(socket, "done")
        await socket.send_json(act("last"))
        while (await told(socket, "done"))["id"] != "last":
            pass


async def test_what_is_pressed_is_let_go_of_when_the_connection_ends(agent: Client, engine: FakeEngine) -> None:
    async with control(agent) as socket:
        down = [{"action": "key_down", "keys": "ctrl"}, {"action": "key_down", "keys": "shift"}, {"action": "mouse_down", "x": 1, "y": 1}]
        await socket.send_json(act("x", *down, {"action": "key_up", "keys": "Shift_L"}))
        await told(socket, "done")
    await until(lambda: len(acted(engine)) == 2)
    released = [body for verb, body in engine.calls if verb == "act"][1]["actions"]
    assert released == [{"action": "mouse_up", "button": "left"}, {"action": "key_up", "keys": "ctrl"}]


async def test_what_is_under_way_when_the_connection_ends_is_stopped_and_what_waits_is_not_begun(agent: Client, engine: FakeEngine) -> None:
    engine.delay, engine.behaviour = 2.5, "slow"
    async with control(agent) as socket:
        engine.behaviour = "good"
        await told(socket, "ready")
        engine.behaviour = "slow"
        await socket.send_json(act("long"))
        await socket.send_json(act("later"))
        await asyncio.sleep(0.2)
        engine.behaviour = "good"
    await until(lambda: ("release", "ws-1") in engine.calls)
    await until(lambda: len(acted(engine)) == 1)
    await asyncio.sleep(0.2)
    assert len(acted(engine)) == 1


async def test_pictures_come_when_the_screen_changes_and_no_faster_than_they_are_taken(agent: Client, engine: FakeEngine) -> None:
    async with control(agent) as socket:
        await socket.send_json({"type": "watch", "width": 64, "format": "png"})
        message = None
        while message is None or message.type is not aiohttp.WSMsgType.BINARY:
            message = await asyncio.wait_for(socket.receive(), PATIENCE)
        head, content = picture(message.data)
        assert head == {"type": "frame", "watch": 1, "number": 1, "content_type": "image/png", "tag": '"50-64"', "screen": [1280, 800], "size": [64, 40]}
        assert content.startswith(b"\x89PNG")
        for hue in (10, 20, 30):
            engine.screens["ws-1"] = hue
            await asyncio.sleep(0.3)
        second = await told(socket, "frame")
        assert (second["number"], second["tag"]) == (WINDOW, '"10-64"')
        # Those between were never made: the next one is what the screen shows when there is room for it.
        await socket.send_json({"type": "seen", "number": second["number"]})
        assert (await told(socket, "frame"))["tag"] == '"30-64"'
        await socket.send_json({"type": "unwatch"})
        engine.refuse("screenshot", "bad_request", "region is outside the screen")
        await socket.send_json({"type": "watch", "region": [0, 0, 9999, 9999]})
        assert (await told(socket, "unwatched"))["error"]["code"] == "bad_request"


async def test_it_ends_with_the_workspace_and_with_the_token(portal: Portal, agent: Client, engine: FakeEngine) -> None:
    person = await portal.login()
    async with control(agent) as socket:
        await told(socket, "ready")
        (token,) = await (await person.request("GET", "/api/v1/tokens")).json()
        assert (await person.request("DELETE", f"/api/v1/tokens/{token['id']}")).status == 204
        await told(socket, "ended")
    other = await program(portal, person, "control")
    async with control(other) as socket:
        await told(socket, "ready")
        assert (await person.request("DELETE", ONE)).status == 204
        assert (await told(socket, "gone"))["workspace"] == "ws-1"
        assert (await asyncio.wait_for(socket.receive(), PATIENCE)).type is aiohttp.WSMsgType.CLOSE


async def test_a_page_needs_its_key_and_no_other_site_gets_in(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    async with control(person) as socket:
        assert (await asyncio.wait_for(socket.receive_json(), PATIENCE))["type"] == "ended"
    async with control(person, key=person.key) as socket:
        await told(socket, "ready")
    with pytest.raises(aiohttp.WSServerHandshakeError):
        async with person.socket(f"{ONE}/control", Origin="https://ws-1.tclone.localhost:8443"):
            pass
