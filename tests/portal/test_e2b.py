"""E2B's SDK, as its users have it, before the portal with an engine that is played. On a real desktop: tests/agents/test_e2b.py."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from portal.e2b import processes, watches
from portal.e2b.desktop import _planned

from tests import client
from tests.portal.conftest import PATIENCE, Client, Portal, program, token_of
from tests.portal.fake_engine import FakeEngine
from tests.portal.front import Front
from tests.portal.test_forks import entries

SCRIPT = Path(__file__).parent / "clients/e2b_wire.py"


async def key(portal: Portal, person: object, name: str, *scopes: str) -> str:
    user = await portal.user(person, name)  # type: ignore[arg-type]
    token = await token_of(user, *scopes, form="e2b")
    assert token.startswith("e2b_") and len(token) == 44 and int(token[4:], 16)
    return token


def api(agent: Client) -> dict[str, str | None]:
    """What is sent to E2B's API."""
    return {"Authorization": None, "X-API-Key": agent._token}  # type: ignore[attr-defined]


async def sandbox(agent: Client) -> dict[str, str | None]:
    """What is sent to ws-1."""
    made = await (await agent.request("POST", "/e2b/sandboxes/ws-1/connect", {}, headers=api(agent))).json()
    return {"Authorization": None, "X-Access-Token": made["envdAccessToken"], "E2b-Sandbox-Id": "ws-1"}


@pytest.mark.timeout(300)
async def test_the_sdk_as_it_is(portal: Portal, front: Front, engine: FakeEngine) -> None:
    person = await portal.login()
    mine, other = await key(portal, person, "anna", "fork", "control"), await key(portal, person, "ben", "fork", "control")
    quota = await person.request("PATCH", "/api/v1/users/anna", {"quota": {"workspaces": 3, "memory": None}})
    assert quota.status == 200
    engine.inside.replies = {"false": ([(1, b"out\n"), (2, b"oh\n")], 3), "/home/user/watched": ([(1, b"S.\0Cone\0Ws"), (1, b"ub/one\0R.\0")], 0)}
    engine.inside.says = [(1, b"hello\n")]
    url = f"https://127.0.0.1:{front.port}/e2b"
    said = await client.run("e2b", SCRIPT, other, E2B_API_URL=url, E2B_SANDBOX_URL=url, E2B_API_KEY=mine, SSL_CERT_FILE=str(portal.places.ca_certificate))
    assert "ok" in said
    # Another's snapshot is nothing but the name of an image that there is not.
    launched = [body for verb, body in engine.calls if verb == "launch" and not body["image"].startswith("ws-")]
    assert len(launched) == 1 and launched[0]["env"] == {"A": "b"} and launched[0]["network"] == "open"
    assert engine.inside.shells[0]["argv"][3:] == ["/bin/bash", "-l", "-c", "printf x"] and engine.inside.shells[0]["user"] == "@desktop"


async def test_a_revoked_token_closes_its_sandboxes(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    agent = await program(portal, person, "fork", "control")
    shown = await sandbox(agent)
    assert (await agent.request("GET", "/e2b/health", headers=shown)).status == 204
    for path in ("\ud800", "", "a\0b", 7):
        refused = await agent.request("POST", "/e2b/filesystem.Filesystem/Stat", {"path": path}, headers=shown)
        assert refused.status == 400 and (await refused.json())["code"] == "invalid_argument", path
    # Neither the API key of the owner nor a login is of use there, nor a key with another's number in it.
    for wrong in (shown | {"X-Access-Token": agent._token}, shown | {"X-Access-Token": None}, shown | {"E2b-Sandbox-Id": "ws-2"}):  # type: ignore[attr-defined]
        assert (await agent.request("GET", "/e2b/health", headers=wrong)).status == 401
    assert (await person.request("GET", "/e2b/v2/sandboxes")).status == 401
    token = (await (await person.request("GET", "/api/v1/tokens")).json())[0]["id"]
    assert (await person.request("DELETE", f"/api/v1/tokens/{token}")).status == 204
    assert (await agent.request("GET", "/e2b/health", headers=shown)).status == 401


async def test_a_person_takes_it_out_of_its_hands(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    agent = await program(portal, person, "fork", "control")
    shown = await sandbox(agent)
    await person.request("POST", "/api/v1/workspaces/ws-1/lease", {})
    for method, path, body in (("POST", "/process.Process/SendSignal", {}), ("POST", "/filesystem.Filesystem/MakeDir", {"path": "/x"})):
        refused = await agent.request(method, "/e2b" + path, body, headers=shown)
        assert refused.status == 400 and (await refused.json())["code"] == "failed_precondition", path
    assert (await agent.request("DELETE", "/e2b/sandboxes/ws-1", headers=api(agent))).status == 423
    assert (await agent.request("POST", "/e2b/filesystem.Filesystem/ListDir", {"path": "/home/user"}, headers=shown)).status == 200


@asynccontextmanager
async def calling(
    agent: Client, shown: dict[str, str | None], method: str, message: dict[str, Any], service: str = "process.Process"
) -> AsyncIterator[aiohttp.StreamReader]:
    """A call whose answer is a stream."""
    data = json.dumps(message).encode()
    headers = agent.headers(**shown, **{"Content-Type": "application/connect+json"})
    async with agent._session.post(f"http://control/e2b/{service}/{method}", data=struct.pack(">BI", 0, len(data)) + data, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        yield answer.content


async def next_of(content: aiohttp.StreamReader) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        _, length = struct.unpack(">BI", await content.readexactly(5))
        return json.loads(await content.readexactly(length))


async def test_the_end_of_a_token_ends_what_it_listens_to(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    agent = await program(portal, person, "fork", "control")
    shown = await sandbox(agent)
    engine.inside.says, engine.inside.exits = [(1, b"hello\n")], None
    start = {"process": {"cmd": "/bin/cat"}, "stdin": False}
    async with calling(agent, shown, "Start", start) as content:
        assert await next_of(content) == {"event": {"start": {"pid": 71}}}
        assert await next_of(content) == {"event": {"data": {"stdout": base64.b64encode(b"hello\n").decode()}}}
        async with calling(agent, shown, "Connect", {"process": {"pid": 71}}) as other:
            assert await next_of(other) == {"event": {"start": {"pid": 71}}}
            # A shell that says of each command that it is the same one gets no further: it would not be counted.
            async with calling(agent, shown, "Start", start) as liar:
                assert (await next_of(liar))["error"]["code"] == "unavailable"
            token = (await (await person.request("GET", "/api/v1/tokens")).json())[0]["id"]
            assert (await person.request("DELETE", f"/api/v1/tokens/{token}")).status == 204
            for stream in (content, other):
                assert (await next_of(stream))["error"]["code"] == "unauthenticated"
                assert await stream.read() == b""


async def test_watchers_are_bounded_and_end_with_what_they_are_for(portal: Portal, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "MOST_WATCHERS", 2)
    monkeypatch.setattr(watches, "MOST_EVENTS", 3)
    engine.add()
    person = await portal.login()
    agent = await program(portal, person, "fork", "control")
    shown = await sandbox(agent)
    engine.inside.says, engine.inside.exits = [(1, b"S.\0" + b"Wx\0" * 5)], None

    async def asked(method: str, message: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        answer = await agent.request("POST", f"/e2b/filesystem.Filesystem/{method}", message, headers=shown)
        return answer.status, await answer.json()

    _, first = await asked("CreateWatcher", {"path": "/home/user"})
    async with calling(agent, shown, "WatchDir", {"path": "/home/user"}, "filesystem.Filesystem") as content:
        assert await next_of(content) == {"start": {}}
        for _ in range(5):
            assert await next_of(content) == {"filesystem": {"name": "x", "type": "EVENT_TYPE_WRITE"}}
        # The first one has more events than are kept: those come, then why there are no more, and it has ended.
        status, events = await asked("GetWatcherEvents", first)
        assert status == 200 and len(events["events"]) == 3
        status, refused = await asked("GetWatcherEvents", first)
        assert status == 429 and "more than 3 events" in refused["message"]
        assert (await asked("GetWatcherEvents", first))[0] == 404 == (await asked("RemoveWatcher", first))[0]
        engine.inside.says = [(1, b"S.\0")]
        _, second = await asked("CreateWatcher", {"path": "/home/user"})
        status, refused = await asked("CreateWatcher", {"path": "/home/user"})
        assert status == 429 and "2 directories of ws-1 are watched" in refused["message"]
        token = (await (await person.request("GET", "/api/v1/tokens")).json())[0]["id"]
        assert (await person.request("DELETE", f"/api/v1/tokens/{token}")).status == 204
        assert (await next_of(content))["error"]["code"] == "unauthenticated"
    assert (await asked("GetWatcherEvents", second))[0] == 401


async def test_a_client_that_leaves_is_no_defect(portal: Portal, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(processes, "_QUIET_SECONDS", 0.05)
    engine.add()
    agent = await program(portal, await portal.login(), "fork", "control")
    engine.inside.says, engine.inside.exits = [(1, b"hello\n")], None
    async with calling(agent, await sandbox(agent), "Start", {"process": {"cmd": "/bin/cat"}}) as content:
        assert "start" in (await next_of(content))["event"]
    # It would be told that the command is still there, ten times over.
    await asyncio.sleep(0.5)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_input_comes_in_its_order_and_each_piece_is_let_in_by_itself(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    agent = await program(portal, person, "fork", "control")
    shown = await sandbox(agent)
    engine.inside.says, engine.inside.exits = [(1, b"hello\n")], None
    data = base64.b64encode(b"typed").decode()

    async def fed(*messages: object, between: Any = None) -> dict[str, Any]:
        """The last message of the answer to a stream of these; `between` is done before the last of them."""

        async def body() -> AsyncIterator[bytes]:
            for number, message in enumerate(messages):
                if between is not None and number == len(messages) - 1:
                    await between()
                sent = message if isinstance(message, bytes) else json.dumps(message).encode()
                yield struct.pack(">BI", 0, len(sent)) + sent

        headers = agent.headers(**shown, **{"Content-Type": "application/connect+json"})
        async with agent._session.post("http://control/e2b/process.Process/StreamInput", data=body(), headers=headers) as answer:
            last = {}
            while not answer.content.at_eof():
                last = await next_of(answer.content)
            return last

    async with calling(agent, shown, "Start", {"process": {"cmd": "/bin/cat"}, "stdin": True}) as content:
        assert (await next_of(content))["event"]["start"]["pid"] == 71
        start, piece = {"start": {"process": {"pid": 71}}}, {"data": {"input": {"stdin": data}}}
        assert await fed(start, piece, {"keepalive": {}}, piece) == {}
        for wrong, code in (
            ((piece,), "invalid_argument"), ((start, {"data": {"input": {}}}), "invalid_argument"), ((start, b"{"), "invalid_argument"),
            (({"start": {"process": {"pid": 72}}},), "not_found"), ((start, {"data": {"input": {"stdin": "?"}}}), "invalid_argument"),
        ):  # fmt: skip
            assert (await fed(*wrong))["error"]["code"] == code, wrong

        async def taken() -> None:
            assert (await person.request("POST", "/api/v1/workspaces/ws-1/lease", {})).status == 200

        held = await fed(start, piece, piece, between=taken)
        assert held["error"]["code"] == "failed_precondition" and "held" in held["error"]["message"]


async def test_a_token_for_control_neither_wakes_nor_prolongs(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    owner, agent = await program(portal, person, "fork", "control"), await program(portal, person, "control")
    own, only = ({"Authorization": None, "X-API-Key": one._token} for one in (owner, agent))  # type: ignore[attr-defined]
    assert (await owner.request("POST", "/e2b/sandboxes/ws-1/timeout", {"timeout": 60}, headers=own)).status == 204

    async def left() -> float:
        return float((await (await person.request("GET", "/api/v1/workspaces/ws-1/lifetime")).json())["lifetime_seconds"])

    assert (await agent.request("POST", "/e2b/sandboxes/ws-1/connect", {"timeout": 5000}, headers=only)).status == 200
    assert await left() == 60
    assert (await owner.request("POST", "/e2b/sandboxes/ws-1/connect", {"timeout": 5000}, headers=own)).status == 200
    assert await left() == 5000
    assert (await owner.request("POST", "/e2b/sandboxes/ws-1/pause", headers=own)).status == 204
    assert (await agent.request("POST", "/e2b/sandboxes/ws-1/connect", {}, headers=only)).status == 403
    assert [(entry["outcome"], entry["lifetime"]) for entry in await entries(person, "lifetime")] == [("ok", 60), ("ok", 5000), ("ok", None)]
    assert engine.workspaces["ws-1"]["paused"] is True


async def test_what_makes_no_sense_is_refused_in_words(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    agent = await program(portal, await portal.login(), "fork", "control")
    shown = await sandbox(agent)
    for path in ("\ud800", "a\0b", "", 7):
        refused = await agent.request("POST", "/e2b/filesystem.Filesystem/Stat", {"path": path}, headers=shown)
        assert refused.status == 400 and (await refused.json())["code"] == "invalid_argument", path
    # Numbers that are none are left to the program itself.
    long = "9" * 5000
    for words in (["mousemove", long, "1"], ["type", "--delay", long, "--", "x"], ["click", "--repeat", long, "1"]):
        assert _planned(words) is None
