"""Taking control and handing back: who is refused, how long a hold lasts, what survives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from portal.errors import Forbidden, Held
from portal.leases import GRACE_SECONDS, TTL_SECONDS, Leases
from portal.principal import Principal, Role, Scope
from portal.presence import Presence
from tests.portal.conftest import PATIENCE, Portal, program
from tests.portal.fake_engine import FakeEngine

AGENT = Principal("admin", Role.ADMIN, frozenset(Scope), token="t1")
LEASE = "/api/v1/workspaces/ws-1/lease"


async def test_a_program_is_refused_with_who_holds_it_until_it_is_handed_back(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    async with person.socket() as page:
        await page.send_json({"type": "hello", "key": person.key})
        await page.receive_json()
        lease = await (await person.request("POST", LEASE, {})).json()
        assert (lease["holder"], lease["epoch"]) == ("admin", 1)
        leases = portal.control.leases
        with pytest.raises(Held) as refusal:
            leases.check(AGENT, "ws-1")
        assert (refusal.value.status, refusal.value.more["reason"], refusal.value.more["lease"]["holder"]) == (423, "held_by_person", "admin")
        with pytest.raises(Forbidden):
            await leases.hand_back(AGENT, "ws-1")
        with pytest.raises(Forbidden):
            await leases.take(AGENT, "ws-1", force=True)
        # The person is not in its own way, and taking it again keeps the epoch.
        assert (await (await person.request("POST", LEASE, {})).json())["epoch"] == 1
        assert (await person.request("DELETE", LEASE)).status == 204
        leases.check(AGENT, "ws-1")
        assert await (await person.request("GET", LEASE)).json() is None
        assert (await (await person.request("POST", LEASE, {})).json())["epoch"] == 2


async def test_another_person_has_to_say_so(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    first, second = await portal.login(), await portal.login()
    assert (await first.request("POST", LEASE, {})).status == 200
    refused = await second.request("POST", LEASE, {})
    assert refused.status == 409 and (await refused.json())["error"]["lease"]["holder"] == "admin"
    taken = await second.request("POST", LEASE, {"force": True})
    assert taken.status == 200 and (await taken.json())["epoch"] == 2


async def test_pages_are_told(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    async with person.socket() as page:
        await page.send_json({"type": "hello", "key": person.key})
        assert (await page.receive_json())["facts"].get("lease", {}) == {}
        await person.request("POST", LEASE, {})
        event = await _next(page, "lease")
        assert event["workspace"] == "ws-1" and event["data"]["holder"] == "admin" and "session" not in event["data"]
        await person.request("DELETE", LEASE)
        assert (await _next(page, "lease"))["data"] is None


async def test_it_ends_with_the_session(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    await person.request("POST", LEASE, {})
    await person.request("POST", "/api/v1/logout")
    portal.control.leases.check(AGENT, "ws-1")


class _Time:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


async def test_a_reload_keeps_it_walking_away_does_not(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    session = next(iter(portal.control.sessions.live()))
    principal = Principal("admin", Role.ADMIN, frozenset(Scope), session=portal.control.sessions.get(session))
    time = _Time()
    presence = Presence(time)
    leases = Leases(portal.control.database, portal.control.feed, portal.control.sessions, presence, time)
    presence.came(session)
    await leases.take(principal, "ws-1", force=False)
    presence.left(session)
    time.now += GRACE_SECONDS - 1
    assert leases.of("ws-1") is not None
    presence.came(session)
    time.now += TTL_SECONDS - GRACE_SECONDS
    assert leases.of("ws-1") is not None
    await leases.touch(session)
    time.now += TTL_SECONDS - 1
    assert leases.of("ws-1") is not None
    time.now += 1
    assert leases.of("ws-1") is None
    await leases.take(principal, "ws-1", force=False)
    presence.left(session)
    time.now += GRACE_SECONDS + 1
    assert leases.of("ws-1") is None
    assert person.key


async def test_a_restart_of_the_portal_gives_no_desktop_away(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    await person.request("POST", LEASE, {})
    control = portal.control
    again = Leases(control.database, control.feed, control.sessions, Presence())
    await again.open()
    try:
        with pytest.raises(Held):
            again.check(AGENT, "ws-1")
    finally:
        await again.close()


async def _next(page: object, kind: str) -> dict[str, object]:
    async with asyncio.timeout(20):
        while True:
            event = await page.receive_json()  # type: ignore[attr-defined]
            if event["type"] == kind:
                return event




async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not happened():
            await asyncio.sleep(0.01)


async def test_a_programs_actions_are_not_ended_by_the_end_of_a_hold(portal: Portal, engine: FakeEngine) -> None:
    """A hold whose time is over keeps programs out no more: what one has begun since is its own, and its end releases what it left first."""
    engine.add()
    person = await portal.login()
    agent = await program(portal, person, "control")
    await person.request("POST", LEASE, {})
    engine.calls.clear()
    leases = portal.control.leases
    lease = leases._leases["ws-1"]
    acting = asyncio.Event()
    engine.holds_actions = acting
    leases._leases["ws-1"] = replace(lease, expires=0)
    under_way = asyncio.ensure_future(agent.request("POST", "/api/v1/workspaces/ws-1/actions", {"actions": [{"action": "cursor"}]}))
    await until(lambda: any(verb == "act" for verb, _ in engine.calls))
    await leases._end(leases._leases["ws-1"], "idle")
    assert not any(verb == "release" for verb, _ in engine.calls)
    acting.set()
    assert (await under_way).status == 200


async def test_an_action_let_through_just_before_a_person_takes_control_is_stopped(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    agent = await program(portal, person, "control")
    acting = asyncio.Event()
    engine.holds_actions = acting
    under_way = asyncio.ensure_future(agent.request("POST", "/api/v1/workspaces/ws-1/actions", {"actions": [{"action": "cursor"}]}))
    await until(lambda: any(verb == "act" for verb, _ in engine.calls))
    taking = asyncio.ensure_future(person.request("POST", LEASE, {}))
    # Released more than once: the first one may have been there before the action was.
    await until(lambda: sum(verb == "release" for verb, _ in engine.calls) >= 2)
    assert not taking.done()
    acting.set()
    assert (await taking).status == 200 and (await under_way).status == 200
