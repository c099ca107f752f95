"""Ends and beginnings: sessions, workspaces, desktops that start, control and engine that restart, and the process's own end."""

from __future__ import annotations

import asyncio
import json
import time

import aiohttp
import pytest
from aiohttp import web

from portal.stream.frames import GOING_AWAY, POLICY, RESTART
from tests.stream.test_frames import frame
from tests.stream.test_upgrade import echo, flood
from tests.stream.world import PATIENCE, World


def reason(payload: bytes) -> tuple[int, str]:
    return int.from_bytes(payload[:2], "big"), payload[2:].decode()


async def _fetch(world: World, workspace: str = "ws-1") -> int:
    return (await world.ask("GET", "/__tclone/state", workspace)).status


@pytest.mark.alone
async def test_a_session_that_ends_takes_its_streams_and_connections_along_within_a_second(world: World) -> None:
    await world.raw_websocket(echo)
    await world.raw_websocket(flood, workspace="ws-2")
    quiet, stalled, kept = await world.websocket(), await world.websocket("ws-2"), await world.connect()
    stalled.writer.transport.pause_reading()
    await kept.send(world.request("GET", "/__tclone/state"))
    assert (await kept.reply()).status == 200
    started = time.monotonic()
    await world.control.end_session("alice")
    assert reason((await quiet.frame())[1]) == (POLICY, "session ended: logout")
    await world.until(lambda: world.server.registry.counts()["relays"] in (0, 1), 1)
    assert await kept.ended(1)
    # The quiet viewer never answers the Close frame, the stalled one never reads: both are gone all the same.
    await world.until(lambda: world.server.registry.counts()["relays"] == 0, 1)
    assert time.monotonic() - started < 1.0
    assert await _fetch(world) == 401


async def test_of_a_session_that_may_less_what_is_open_closes_and_the_rest_is_asked_anew(world: World) -> None:
    await world.raw_websocket(echo)
    client = await world.websocket()
    checks = world.control.checks
    await world.control.tell("alice", "role")
    assert reason((await client.frame())[1]) == (POLICY, "session ended: role")
    assert await _fetch(world) == 200 and world.control.checks == checks + 1
    world.control.desks.clear()
    await world.control.tell("alice", "role")
    await world.until(lambda: not world.server.registry.counts()["relays"])
    assert await _fetch(world) == 401


async def test_another_session_is_left_alone(world: World) -> None:
    world.control.live.add("bob")
    world.control.desks["desk-of-bob"] = ("bob", "ws-1")
    await world.raw_websocket(echo)
    await world.websocket()
    world.cookies["ws-1"] = "__Host-tclone-desk=desk-of-bob"
    bobs = await world.websocket()
    await world.control.end_session("alice")
    await world.until(lambda: [entry.session for entry in world.server.registry._relays] == ["bob"])
    await bobs.send(frame(4))
    assert await bobs.frame() == (2, b"xxxx")


async def test_an_answer_on_its_way_while_the_session_ends_is_not_believed(world: World) -> None:
    world.control.check_delay = 0.3
    asking = asyncio.create_task(_fetch(world))
    await world.until(lambda: world.control.checks == 1)
    await world.control.end_session("alice")
    assert await asking == 401


async def test_a_session_that_ends_during_the_handshake_gets_no_stream(world: World) -> None:
    asked, proceed = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await proceed.wait()
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        await reader.read()

    await world.raw_server(slow)
    client = await world.connect()
    await client.send(world.upgrade_bytes())
    await asyncio.wait_for(asked.wait(), PATIENCE)
    await world.control.end_session("alice")
    proceed.set()
    assert await client.ended(2)
    assert world.server.registry.counts()["relays"] == 0


async def test_a_stream_ends_when_its_right_expires(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.control.expires = time.time() + 1.0
    await world.raw_websocket(echo)
    client = await world.websocket()
    opcode, payload = await client.frame()
    assert opcode == 8 and reason(payload) == (POLICY, "session expired")


async def test_a_check_is_remembered_for_its_own_desktop_only(world: World) -> None:
    for _ in range(5):
        assert await _fetch(world) == 200
    assert world.control.checks == 1
    world.cookies["ws-2"] = world.cookies["ws-1"]
    assert await _fetch(world, "ws-2") == 401


async def test_open_streams_outlive_a_restart_of_control_new_ones_wait_and_dead_sessions_go(world: World) -> None:
    world.control.live.add("bob")
    world.control.desks["desk-of-bob"] = ("bob", "ws-2")
    await world.raw_websocket(echo)
    await world.raw_websocket(echo, workspace="ws-2")
    alice = await world.websocket()
    world.cookies["ws-2"] = "__Host-tclone-desk=desk-of-bob"
    bob = await world.websocket("ws-2")
    await world.control.stop()
    await world.until(lambda: not world.server.control.watching)
    await alice.send(frame(3))
    assert await alice.frame() == (2, b"xxx")
    assert await _fetch(world) == 503
    world.control.live.discard("bob")
    await world.control.start()
    await world.until(lambda: world.server.control.watching)
    assert (await bob.frame())[0] == 8
    await alice.send(frame(3))
    assert await alice.frame() == (2, b"xxx")
    assert await _fetch(world) == 200


async def test_a_discarded_workspace_says_goodbye_between_two_frames(world: World) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(40)[:20])
        await asyncio.sleep(0.3)
        writer.write(frame(40)[20:] + frame(7))
        await reader.read()

    await world.raw_websocket(half)
    client = await world.websocket()
    await world.until(lambda: next(iter(world.server.registry._relays)).relay.from_upstream)
    world.engine.remove("ws-1")
    assert await client.frame() == (2, b"x" * 40)
    opcode, payload = await client.frame()
    assert opcode == 8 and reason(payload) == (GOING_AWAY, "the workspace was discarded")
    await client.send(b"\x88\x80\0\0\0\0")
    assert await client.ended(0.5)
    assert (await world.ask("GET", "/")).status == 404


async def test_a_workspace_lost_while_the_engine_was_away_loses_its_streams(world: World) -> None:
    await world.raw_websocket(echo)
    await world.raw_websocket(echo, workspace="ws-2")
    gone, stays = await world.websocket(), await world.websocket("ws-2")
    world.engine.down = True
    world.engine.restart()
    await world.until(lambda: not world.server.workspaces.connected)
    await stays.send(frame(3))
    assert await stays.frame() == (2, b"xxx")
    del world.engine.workspaces["ws-1"]
    world.engine.down = False
    assert (await gone.frame())[0] == 8
    await stays.send(frame(3))
    assert await stays.frame() == (2, b"xxx")


async def test_a_desktop_that_starts_is_waited_for_by_a_page_that_becomes_it(world: World) -> None:
    world.engine.tokens.pop("ws-1")
    world.engine.add("ws-1", state="starting", phase="desktop <b>")
    world.engine.tokens.pop("ws-1", None)
    await world.until(lambda: (world.server.workspaces.get("ws-1") or {}).get("state") == "starting")
    page = await world.ask("GET", "/", "ws-1", "Sec-Fetch-Dest: iframe")
    assert page.status == 503 and page.get("Retry-After") == "1"
    assert b"starting: desktop &lt;b&gt;" in page.body and b"/__tclone/wait.js" in page.body
    assert f"frame-ancestors 'self' {world.origin('')}" in page.get("Content-Security-Policy")
    assert (await world.ask("GET", "/__tclone/state")).json() == {"ready": False, "state": "starting", "phase": "desktop <b>"}
    client = await world.connect()
    await client.send(world.upgrade_bytes())
    answer = await client.reply()
    assert answer.status == 503 and answer.json()["error"]["code"] == "starting"

    async def index(request: web.Request) -> web.Response:
        return web.Response(text="desktop")

    await world.desktop_app(web.get("/", index))
    world.engine.add("ws-1")
    assert (await world.ask("GET", "/__tclone/state")).json()["ready"] is True
    assert (await world.ask("GET", "/", "ws-1", "Sec-Fetch-Dest: iframe")).body == b"desktop"


@pytest.mark.parametrize("state", ["failed", "stopped"])
async def test_a_desktop_that_will_not_come_says_why(world: World, state: str) -> None:
    world.engine.add("ws-1", state=state, error="out of <memory>")
    await world.until(lambda: (world.server.workspaces.get("ws-1") or {}).get("state") == state)
    page = await world.ask("GET", "/", "ws-1", "Sec-Fetch-Dest: iframe")
    assert page.status == 503 and b"out of &lt;memory&gt;" in page.body and b"wait.js" not in page.body


@pytest.mark.parametrize("path", ["/__tclone/wait.js", "/__tclone/page.css"])
async def test_the_waiting_pages_files_need_no_cookie(world: World, path: str) -> None:
    assert (await world.ask("GET", path, cookie=False)).status == 200


async def test_an_engine_that_is_down_is_named(world: World) -> None:
    world.engine.down = True
    answer = await world.ask("GET", "/api/status")
    assert answer.status == 503 and answer.json()["error"]["code"] == "unavailable"


async def test_viewers_of_one_workspace_are_spaced_out(world: World) -> None:
    times: list[float] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        times.append(time.monotonic())
        await echo(reader, writer)

    await world.raw_websocket(note)
    world.pace.spacing = 0.6
    await asyncio.gather(world.websocket(), world.websocket())
    assert abs(times[1] - times[0]) >= 0.5


async def _health(world: World) -> dict[str, object]:
    connector = aiohttp.UnixConnector(str(world.run / "stream.sock"))
    async with aiohttp.ClientSession(connector=connector) as http, http.get("http://stream/healthz") as answer:
        assert answer.status == 200
        return json.loads(await answer.text())


async def test_health_counts_what_is_open(world: World) -> None:
    await world.raw_websocket(echo)
    await world.websocket()
    found = await _health(world)
    assert found["ok"] and found["control"] and found["engine"]
    assert (found["relays"], found["websockets"], found["sessions"], found["workspaces"]) == (1, 1, 1, 2)
    assert (world.run / "stream.sock").stat().st_mode & 0o777 == 0o600


async def test_the_end_is_announced_and_comes_within_five_seconds(world: World) -> None:
    await world.raw_websocket(echo)
    await world.raw_websocket(flood, workspace="ws-2")
    client, stalled = await world.websocket(), await world.websocket("ws-2")
    stalled.writer.transport.pause_reading()
    idle = await world.connect()
    started = time.monotonic()
    stopping = asyncio.create_task(world.server.stop())
    opcode, payload = await client.frame()
    assert opcode == 8 and reason(payload)[0] == RESTART
    await stopping
    assert time.monotonic() - started < 5.0
    assert await idle.ended(1) and not (world.run / "stream.sock").exists()
    world.server = world.make_server()
    await world.server.start()
