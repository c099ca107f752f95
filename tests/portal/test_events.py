"""Events for programs: server-sent, numbered, only of what one sees."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from portal import live
from portal.api import events
from tests.portal.conftest import PATIENCE, Client, Portal, program
from tests.portal.fake_engine import FakeEngine


async def told(content: aiohttp.StreamReader) -> dict[str, Any]:
    """The next event."""
    fields: dict[str, str] = {}
    while (line := (await content.readline()).decode().rstrip("\n")) or not fields:
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
    event = json.loads(fields["data"])
    assert (fields["event"], int(fields["id"])) == (event["type"], event["seq"])
    return event


async def test_one_hears_of_its_workspace_and_goes_on_where_it_was(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    engine.add()
    agent = await program(portal, await portal.login(), "fork")
    async with agent._session.get("http://control/api/v1/workspaces/ws-1/events", headers=agent.headers()) as stream:
        assert stream.content_type == "text/event-stream"
        first = await told(stream.content)
        assert [item["id"] for item in first["workspaces"]] == ["ws-1"]
        await agent.request("POST", "/api/v1/workspaces/ws-2/fork", {})
        await agent.request("POST", "/api/v1/workspaces/ws-1/fork", {})
        seen = [await told(stream.content)]
        while seen[-1]["type"] != "fork":
            seen.append(await told(stream.content))
        assert {event["workspace"] for event in seen} == {"ws-1"} and seen[-1]["data"]["source"] == "ws-1"
    async with agent._session.get("http://control/api/v1/workspaces/ws-1/events", headers=agent.headers(**{"Last-Event-ID": str(first["seq"])})) as stream:
        assert (await told(stream.content))["type"] == "resumed"
        assert await told(stream.content) == seen[0]
        await agent.request("DELETE", "/api/v1/workspaces/ws-1")
        last = await told(stream.content)
        while last["type"] != "gone":
            last = await told(stream.content)
        assert await stream.content.read() == b""  # there is nothing more to tell


async def test_others_hear_nothing_of_it(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    stranger: Client = await program(portal, await portal.user(person, "other"), "read")
    assert (await stranger.request("GET", "/api/v1/workspaces/ws-1/events?seconds=1")).status == 404
    answer = await stranger.request("GET", "/api/v1/events?seconds=1")
    assert answer.status == 200 and "ws-1" not in await answer.text()
    for query in ("since=x", "seconds=0", "seconds=99999", "other=1"):
        assert (await stranger.request("GET", f"/api/v1/events?{query}")).status == 400, query


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before there is a portal: one user may listen twice at a time."""
    monkeypatch.setattr(events, "MOST_STREAMS", 2)
    monkeypatch.setattr(live, "_MOST_PAGES", 1)


async def test_one_user_holds_only_so_many(few: None, portal: Portal, engine: FakeEngine) -> None:
    person = await portal.login()
    agents = [await program(portal, person, "read") for _ in range(3)]

    async def listening(agent: Client) -> Any:
        return await agent._session.get("http://control/api/v1/events", headers=agent.headers())

    streams = [await listening(agent) for agent in agents]
    assert [stream.status for stream in streams] == [200, 200, 429], "its tokens count together"
    streams[0].close()
    async with asyncio.timeout(PATIENCE):
        await agents[1].request("POST", "/api/v1/workspaces", {"image": "workspace"})
        while (again := await listening(agents[0])).status != 200:
            engine.add()  # something to tell, by which it is noticed that the first has gone
    for stream in (*streams, again):
        stream.close()
    other = await portal.user(person, "other")
    for client in (person, other):
        async with client.socket() as socket:
            await socket.send_json({"type": "hello", "key": client.key})
            assert (await socket.receive_json(timeout=PATIENCE))["type"] == "snapshot"
            async with client.socket() as second:
                await second.send_json({"type": "hello", "key": client.key})
                closed = await second.receive(timeout=PATIENCE)
                assert closed.type is aiohttp.WSMsgType.CLOSE and closed.data == 1013
