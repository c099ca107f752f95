"""The engine down, slow, silent or talking nonsense: pages go on, answers say what is the matter."""

from __future__ import annotations

import asyncio

import pytest

from portal.app import Options
from portal.node import Patience
from tests.portal.conftest import PATIENCE, Portal
from tests.portal.fake_engine import FakeEngine


@pytest.fixture
def options() -> Options:
    """Impatient, so that tests of a silent engine are quick."""
    return Options(patience=Patience(read=1.0, work=3.0))


async def state_becomes(portal: Portal, wanted: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while portal.control.feed.engine != wanted:
            await asyncio.sleep(0.02)


async def test_down_is_said_and_up_again_noticed(portal: Portal, engine: FakeEngine) -> None:
    engine.add(name="before")
    client = await portal.login()
    await engine.stop()
    answer = await client.request("GET", "/api/v1/workspaces")
    assert answer.status == 503 and (await answer.json())["error"]["code"] == "unavailable"
    await state_becomes(portal, "down")
    assert (await client.request("GET", "/")).status == 200, "pages are served all the same"
    await engine.start()
    await state_becomes(portal, "up")
    assert (await client.request("GET", "/api/v1/workspaces")).status == 200


async def test_slow_is_waited_for(portal: Portal, engine: FakeEngine) -> None:
    client = await portal.login()
    engine.behaviour, engine.delay = "slow", 0.3
    assert (await client.request("GET", "/api/v1/workspaces")).status == 200


async def test_silence_ends_in_a_timeout_and_counts_as_down(portal: Portal, engine: FakeEngine) -> None:
    client = await portal.login()
    engine.behaviour = "never"
    answer = await client.request("GET", "/api/v1/workspaces")
    assert answer.status == 504 and (await answer.json())["error"]["code"] == "timeout"
    assert (await client.request("GET", "/healthz")).status == 200
    await state_becomes(portal, "down")
    engine.behaviour = "good"
    await state_becomes(portal, "up")


@pytest.mark.parametrize("method, path, body", [("GET", "/api/v1/workspaces", None), ("GET", "/api/v1/images", None), ("POST", "/api/v1/workspaces", {"image": "x"})])
async def test_nonsense_is_not_passed_on(portal: Portal, engine: FakeEngine, method: str, path: str, body: object) -> None:
    client = await portal.login()
    engine.behaviour = "bad"
    answer = await client.request(method, path, body)
    assert answer.status == 502 and "script" not in await answer.text()
    assert (await answer.json())["error"]["code"] == "bad_answer"


async def test_a_senseless_event_stream_does_not_end_the_portal(portal: Portal, engine: FakeEngine) -> None:
    await engine.stop()
    engine.behaviour = "bad"
    await engine.start()
    await state_becomes(portal, "down")
    client = await portal.login()
    assert (await client.request("GET", "/")).status == 200
    await engine.stop()
    engine.behaviour = "good"
    await engine.start()
    await state_becomes(portal, "up")


@pytest.mark.parametrize(
    "code, status",
    [("bad_request", 400), ("not_found", 404), ("conflict", 409), ("unsupported", 422), ("limit", 429), ("no_space", 507), ("internal", 500)],
)
async def test_the_engines_errors_come_through_unchanged(portal: Portal, engine: FakeEngine, code: str, status: int) -> None:
    engine.add()
    client = await portal.login()
    blockers = [{"pid": 7, "command": "x", "fd": 3}] if code == "unsupported" else None
    engine.refuse("fork", code, "pid 7 (/usr/bin/x): io_uring is in use; close it", blockers)
    answer = await client.request("POST", "/api/v1/workspaces/ws-1/fork", {"copies": 1})
    assert answer.status == status
    expected: dict[str, object] = {"code": code, "message": "pid 7 (/usr/bin/x): io_uring is in use; close it"}
    if code == "unsupported":
        expected["blockers"] = [{"pid": 7, "command": "x", "fd": 3}]
    assert (await answer.json())["error"] == expected


async def test_an_image_is_built_with_its_progress_told(portal: Portal, engine: FakeEngine) -> None:
    engine.images = [image for image in engine.images if image["name"] != "webtop-xfce"]
    engine.step = 0.05
    client = await portal.login()
    listed = {image["name"]: image for image in await (await client.request("GET", "/api/v1/images")).json()}
    assert listed["workspace"]["built"] and not listed["webtop-xfce"]["built"]
    async with client.socket() as socket:
        await socket.send_json({"type": "hello", "key": client.key})
        assert (await client.request("POST", "/api/v1/images/webtop-xfce/build")).status == 202
        assert (await client.request("POST", "/api/v1/images/webtop-xfce/build")).status == 202
        phases = []
        async with asyncio.timeout(PATIENCE):
            while not phases or phases[-1] != "done":
                event = await socket.receive_json()
                if event["type"] == "build":
                    phases.append(event["phase"])
    assert phases == ["start", "fetch", "unpack", "wheels", "configure", "pack", "done"]
    assert [call for call in engine.calls if call[0] == "build"] == [("build", "webtop-xfce")], "one build, however often asked"
    listed = {image["name"]: image for image in await (await client.request("GET", "/api/v1/images")).json()}
    assert listed["webtop-xfce"]["built"] and listed["webtop-xfce"]["build"] is None


async def test_a_failed_build_says_why_and_may_be_tried_again(portal: Portal, engine: FakeEngine) -> None:
    engine.images = []
    client = await portal.login()
    engine.refuse("build", "unavailable", "no mirror answers; check the network")
    await client.request("POST", "/api/v1/images/webtop-xfce/build")
    async with asyncio.timeout(PATIENCE):
        while not (portal.control.feed.builds.get("webtop-xfce") or {}).get("error"):
            await asyncio.sleep(0.02)
    assert portal.control.feed.builds["webtop-xfce"]["error"] == "no mirror answers; check the network"
    engine.allow("build")
    await client.request("POST", "/api/v1/images/webtop-xfce/build")
    async with asyncio.timeout(PATIENCE):
        while "webtop-xfce" in portal.control.feed.builds:
            await asyncio.sleep(0.02)
