"""How long workspaces live, quotas, settings and the audit log."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from portal import audit
from portal.lifetimes import Lifetimes, Rules
from portal.settings import Settings
from tests.portal.conftest import PATIENCE, Portal
from tests.portal.fake_engine import FakeEngine

LIFE = "/api/v1/workspaces/ws-1/lifetime"


class _Time:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class _Node:
    """An engine that knows how long a desktop was idle, and removes."""

    def __init__(self) -> None:
        self.idle_seconds: float | None = None
        self.removed: list[str] = []

    async def idle(self, workspace: str) -> float | None:
        return self.idle_seconds

    async def remove(self, workspace: str) -> None:
        self.removed.append(workspace)


@pytest.fixture
def time() -> _Time:
    return _Time()


@pytest.fixture
def node() -> _Node:
    return _Node()


def lifetimes(portal: Portal, node: Any, time: _Time) -> Lifetimes:
    control = portal.control
    return Lifetimes(control.database, control.feed, node, control.settings, time)


async def test_never_is_the_default_and_has_no_countdown(portal: Portal, engine: FakeEngine, node: _Node, time: _Time) -> None:
    made = lifetimes(portal, node, time)
    await made.appeared({"id": "ws-1", "parent": None})
    time.now += 10 * 365 * 86400
    await made.sweep()
    await asyncio.sleep(0)
    assert node.removed == [] and made.of("ws-1") is not None


async def test_idleness_ends_it_and_use_does_not(portal: Portal, engine: FakeEngine, node: _Node, time: _Time) -> None:
    made = lifetimes(portal, node, time)
    await made.rule("ws-1", Rules(idle=600))
    time.now += 590
    made.touch("ws-1")
    time.now += 590
    node.idle_seconds = 5.0
    await made.sweep()
    time.now += 590
    node.idle_seconds = 595.0
    await made.sweep()
    await asyncio.sleep(0)
    assert node.removed == []
    time.now += 10
    node.idle_seconds = 605.0
    await made.sweep()
    await asyncio.sleep(0.01)
    assert node.removed == ["ws-1"]


async def test_a_life_in_all_ends_whatever_somebody_does_unless_it_is_kept(portal: Portal, engine: FakeEngine, node: _Node, time: _Time) -> None:
    made = lifetimes(portal, node, time)
    await made.rule("ws-1", Rules(lifetime=3600))
    time.now += 3599
    made.touch("ws-1")
    await made.keep("ws-1")
    time.now += 3599
    await made.sweep()
    await asyncio.sleep(0.01)
    assert node.removed == []
    time.now += 1
    await made.sweep()
    await asyncio.sleep(0.01)
    assert node.removed == ["ws-1"]


async def test_branches_have_their_parents_rules_and_a_restart_keeps_them(portal: Portal, engine: FakeEngine, node: _Node, time: _Time) -> None:
    made = lifetimes(portal, node, time)
    await made.rule("ws-1", Rules(idle=600))
    await made.appeared({"id": "ws-2", "parent": "ws-1"})
    again = lifetimes(portal, node, time)
    await again.open()
    await again.close()
    life = again.of("ws-2")
    assert life is not None and life.rules == Rules(idle=600)


async def test_pages_see_the_deadline_and_can_change_it(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    async with person.socket() as page, asyncio.timeout(PATIENCE):
        await page.send_json({"type": "hello", "key": person.key})
        await page.receive_json()
        answer = await person.request("PUT", LIFE, {"idle_seconds": 3600, "lifetime_seconds": None})
        rules = await answer.json()
        assert rules["idle_seconds"] == 3600 and rules["ends_at"] is None and rules["idle_at"] > 1e9
        while (event := await page.receive_json())["type"] != "life":
            pass
        assert event["workspace"] == "ws-1" and event["data"]["idle_at"] == rules["idle_at"]
        assert (await person.request("POST", "/api/v1/workspaces/ws-1/keepalive")).status == 200
        assert (await (await person.request("PUT", LIFE, {"idle_seconds": None, "lifetime_seconds": None})).json())["idle_at"] is None
    for wrong in ({"idle_seconds": 59, "lifetime_seconds": None}, {"idle_seconds": "x", "lifetime_seconds": None}, {"idle_seconds": None}):
        assert (await person.request("PUT", LIFE, wrong)).status == 400


async def test_a_quota_names_limit_and_use(portal: Portal, engine: FakeEngine) -> None:
    person = await portal.login()
    settings = Settings(all_workspaces=2).model_dump()
    assert (await person.request("PUT", "/api/v1/settings", settings)).status == 200
    engine.add()
    async with asyncio.timeout(PATIENCE):
        while portal.control.feed.workspace("ws-1") is None:
            await asyncio.sleep(0.01)
    assert (await person.request("POST", "/api/v1/workspaces", {"image": "webtop-xfce"})).status == 201
    async with asyncio.timeout(PATIENCE):
        while len(portal.control.feed.workspaces()) < 2:
            await asyncio.sleep(0.01)
    refused = await person.request("POST", "/api/v1/workspaces/ws-1/fork", {"copies": 3})
    error = (await refused.json())["error"]
    assert refused.status == 429 and (error["quota"], error["limit"], error["use"], error["wanted"]) == ("workspaces", 2, 2, 3)
    assert error["message"] == "all users together have 2 of 2 workspaces, so 3 more cannot be had; discard some first"
    quota = await (await person.request("GET", "/api/v1/quota")).json()
    assert quota["all"] == {"limits": {"workspaces": 2, "memory": None, "disk": None, "cpus": None}, "use": {"workspaces": 2, "memory": 8 << 30, "disk": 20 << 30, "cpus": 4.0}}
    for wrong in ({**settings, "all_workspaces": -1}, {**settings, "user_memory": 1.5}, {**settings, "surplus": 1}):
        assert (await person.request("PUT", "/api/v1/settings", wrong)).status == 400


async def test_the_audit_log_tells_who_did_what_newest_first_and_is_only_appended_to(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    for _ in range(3):
        await person.request("POST", "/api/v1/workspaces/ws-1/keepalive")
    async with asyncio.timeout(PATIENCE):
        while True:
            entries = await (await person.request("GET", "/api/v1/audit?limit=4")).json()
            if [entry["event"] for entry in entries] == ["kept-alive"] * 3 + ["login"]:
                break
            await asyncio.sleep(0.02)
    assert all(entry["user"] == "admin" for entry in entries)
    older = await (await person.request("GET", f"/api/v1/audit?limit=2&before={entries[1]['position']}")).json()
    assert older == entries[2:4]
    assert portal.places.audit.stat().st_mode & 0o777 == 0o600
    lines = portal.places.audit.read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines][-4:] == ["login", *["kept-alive"] * 3]
    assert person.key not in portal.places.audit.read_text() and portal.password not in portal.places.audit.read_text()


async def test_a_torn_entry_in_the_audit_log_hides_no_other(portal: Portal) -> None:
    path = portal.places.audit
    with path.open("ab") as file:
        file.write(b'{"event": "a"}\n{"event": "b\n' + b'{"event": "c"}\n{"event": "unfinish')
    entries = await audit.read(2)
    assert [entry["event"] for entry in entries] == ["c", "a"]
