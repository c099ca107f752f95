"""`/ws`: snapshot, changes, coming back, and who may listen."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from portal.feed import Feed
from tests.portal.conftest import PATIENCE, Client, Portal
from tests.portal.fake_engine import FORK_PHASES, LAUNCH_PHASES, FakeEngine


class Page:
    """One connected page; `until(type)` skips to the next message of a type."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.seen: list[dict[str, Any]] = []

    async def next(self) -> dict[str, Any]:
        message = await self.socket.receive_json(timeout=PATIENCE)
        self.seen.append(message)
        return message

    async def until(self, kind: str, **wanted: Any) -> dict[str, Any]:
        while True:
            message = await self.next()
            values = message.get("data") if isinstance(message.get("data"), dict) else message
            if message["type"] == kind and all(values.get(name) == value for name, value in wanted.items()):
                return message


async def hello(client: Client, socket: aiohttp.ClientWebSocketResponse, since: int | None = None) -> Page:
    await socket.send_json({"type": "hello", "key": client.key, "since": since})
    return Page(socket)


async def test_a_page_begins_with_everything(portal: Portal, engine: FakeEngine) -> None:
    engine.add(name="first")
    client = await portal.login()
    async with client.socket() as socket:
        page = await hello(client, socket)
        snapshot = await page.next()
        if not snapshot["workspaces"]:
            await page.until("workspace", name="first")
        else:
            assert snapshot["workspaces"][0]["name"] == "first"
        assert snapshot["type"] == "snapshot" and snapshot["engine"] == "up"


async def test_a_launch_is_told_phase_by_phase_and_ready_only_by_the_engine(portal: Portal, engine: FakeEngine) -> None:
    engine.step = 0.02
    client = await portal.login()
    async with client.socket() as socket:
        page = await hello(client, socket)
        answer = await client.request("POST", "/api/v1/workspaces", {"image": "webtop-xfce", "ports": [3000]})
        assert answer.status == 201 and (await answer.json())["state"] == "starting"
        await page.until("workspace", state="ready")
    phases = [message["data"]["phase"] for message in page.seen if message["type"] == "progress"]
    assert phases == list(LAUNCH_PHASES)
    states = [message["data"]["state"] for message in page.seen if message["type"] == "workspace"]
    assert states.index("ready") == len(states) - 1 and set(states) == {"starting", "ready"}


async def test_a_fork_brings_phases_branches_and_figures(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    client = await portal.login()
    async with client.socket() as socket:
        page = await hello(client, socket)
        answer = await client.request("POST", "/api/v1/workspaces/ws-1/fork", {"copies": 3, "name": "try"})
        assert answer.status == 201
        result = (await page.until("fork"))["data"]
    told = await answer.json()
    assert [child["workspace"]["name"] for child in told.pop("results")] == ["try-0", "try-1", "try-2"]
    assert result == told
    assert [branch["name"] for branch in result["branches"]] == ["try-0", "try-1", "try-2"]
    phases = [(m["data"]["phase"], m["data"]["elapsed_ms"]) for m in page.seen if m["type"] == "progress"]
    assert phases == list(FORK_PHASES)


async def test_a_page_that_opens_during_a_launch_sees_the_phases_so_far(portal: Portal, engine: FakeEngine) -> None:
    engine.step = 3600
    client = await portal.login()
    await client.request("POST", "/api/v1/workspaces", {"image": "webtop-xfce"})
    async with asyncio.timeout(PATIENCE):
        while "ws-1" not in portal.control.feed.snapshot()["operations"]:
            await asyncio.sleep(0.01)
    async with client.socket() as socket:
        snapshot = await (await hello(client, socket)).next()
    assert snapshot["operations"]["ws-1"]["phases"][0]["phase"] == LAUNCH_PHASES[0]


async def test_a_page_that_comes_back_gets_what_it_missed_and_nothing_twice(portal: Portal, engine: FakeEngine) -> None:
    client = await portal.login()
    async with client.socket() as socket:
        page = await hello(client, socket)
        await page.next()
        engine.add(name="one")
        seen = (await page.until("workspace", name="one"))["seq"]
    engine.add(name="two")
    engine.workspaces["ws-1"]["name"] = "renamed"
    engine.changed(engine.workspaces["ws-1"])
    async with client.socket() as socket:
        page = await hello(client, socket, since=seen)
        assert (await page.next())["type"] == "resumed"
        await page.until("workspace", name="renamed")
    numbers = [message["seq"] for message in page.seen[1:]]
    assert numbers == sorted(set(numbers)) and numbers[0] == seen + 1


@pytest.mark.parametrize("since", [1, -5, 10**18, True, "7"])
async def test_an_unknown_number_gets_a_snapshot(portal: Portal, since: Any) -> None:
    client = await portal.login()
    async with client.socket() as socket:
        assert (await (await hello(client, socket, since=since)).next())["type"] == "snapshot"


@pytest.mark.parametrize("first", ['{"type":"hello","key":"wrong"}', '{"type":"hello"}', '{"type":"hello","key":["x"]}'])
async def test_without_the_key_a_page_is_sent_to_the_login(portal: Portal, engine: FakeEngine, first: str) -> None:
    engine.add(name="secret")
    client = await portal.login()
    async with client.socket() as socket:
        await socket.send_str(first)
        assert await socket.receive_json(timeout=PATIENCE) == {"type": "ended"}
        assert (await socket.receive(timeout=PATIENCE)).type is aiohttp.WSMsgType.CLOSE


@pytest.mark.parametrize("first", ["", "nonsense", "[]", '{"type":"active"}'])
async def test_what_is_no_hello_closes(portal: Portal, first: str) -> None:
    client = await portal.login()
    async with client.socket() as socket:
        await socket.send_str(first)
        message = await socket.receive(timeout=PATIENCE)
        assert message.type is aiohttp.WSMsgType.CLOSE and message.data == aiohttp.WSCloseCode.POLICY_VIOLATION


async def test_twelve_pages_at_once(portal: Portal, engine: FakeEngine) -> None:
    client = await portal.login()
    sockets = [await client._session.ws_connect("http://control/ws", headers=client.headers()) for _ in range(12)]
    pages = [await hello(client, socket) for socket in sockets]
    engine.add(name="for-all")
    await asyncio.gather(*(page.until("workspace", name="for-all") for page in pages))
    await asyncio.gather(*(socket.close() for socket in sockets))


async def test_a_page_that_does_not_read_is_dropped_and_bounded(portal: Portal) -> None:
    feed: Feed = portal.control.feed
    async with feed.watch(None) as queue:
        for number in range(3000):
            feed.publish("workspace", workspace="ws-1", data={"number": number})
        items = [queue.get_nowait() for _ in range(queue.qsize())]
    assert len(items) < 600 and items[-1] is None


async def test_workspaces_that_vanished_while_the_engine_was_away_are_gone(portal: Portal, engine: FakeEngine) -> None:
    engine.add(name="stays")
    engine.add(name="goes")
    client = await portal.login()
    async with client.socket() as socket:
        page = await hello(client, socket)
        await page.next()
        await engine.stop()
        await page.until("engine", state="down") if portal.control.feed.engine == "up" else None
        del engine.workspaces["ws-2"]
        await engine.start()
        gone = await page.until("gone")
    assert gone["workspace"] == "ws-2"
