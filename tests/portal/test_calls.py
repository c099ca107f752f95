"""How many calls a token or login may make: a flood is told to wait, and nobody else waits for it."""

from __future__ import annotations

import pytest

from portal.rates import Rates
from portal.routes import CALLS_BURST, CALLS_PER_SECOND, COSTLY, HEAVY
from tests.portal.conftest import Client, Portal, program
from tests.portal.fake_engine import FakeEngine


@pytest.fixture
async def agent(portal: Portal, engine: FakeEngine) -> Client:
    """A program, in a portal whose clock for calls stands still."""
    engine.add()
    portal.control._router._calls = Rates(CALLS_BURST, CALLS_PER_SECOND, clock=lambda: 0.0, what="calls")
    return await program(portal, await portal.login(), "admin")


async def left(portal: Portal, agent: Client, count: int) -> None:
    """Of its burst the program has so many calls left."""
    token = (await (await agent.request("GET", "/api/v1/me")).json())["token"]
    portal.control._router._calls.take(token, CALLS_BURST - 1 - count)


async def test_a_flood_of_calls_is_told_to_wait_and_nobody_else_waits(portal: Portal, agent: Client) -> None:
    await left(portal, agent, 2)
    got = [await agent.request("GET", "/api/v1/workspaces") for _ in range(3)]
    assert [answer.status for answer in got] == [200, 200, 429]
    assert got[2].headers["Retry-After"] == "1"
    error = (await got[2].json())["error"]
    assert error["code"] == "limit" and f"{CALLS_PER_SECOND:g} a second" in error["message"]
    other = await portal.login()
    assert (await other.request("GET", "/api/v1/workspaces")).status == 200
    another = await program(portal, other, "read")
    assert (await another.request("GET", "/api/v1/workspaces")).status == 200


async def test_calls_that_are_refused_count_too(portal: Portal, agent: Client) -> None:
    await left(portal, agent, 2)
    for _ in range(2):
        assert (await agent.request("GET", "/api/v1/workspaces/ws-77")).status == 404
    assert (await agent.request("GET", "/api/v1/workspaces/ws-77")).status == 429


@pytest.mark.parametrize(
    "method, path, cost",
    [
        ("GET", "/workspaces/ws-1", 1),
        ("GET", "/workspaces/ws-1/screenshot", COSTLY),
        ("GET", "/workspaces/ws-1/accessibility", COSTLY),
        ("GET", "/workspaces/ws-1/stats", COSTLY),
        ("GET", "/workspaces/ws-1/files?path=/home/user", COSTLY),
        ("GET", "/workspaces/ws-1/diff?base=image", HEAVY),
        ("POST", "/workspaces/ws-1/pause", HEAVY),
        ("DELETE", "/workspaces/ws-1", HEAVY),
    ],
)
async def test_what_takes_much_counts_for_several(portal: Portal, agent: Client, method: str, path: str, cost: int) -> None:
    await left(portal, agent, cost)
    assert (await agent.request(method, f"/api/v1{path}")).status < 400
    assert (await agent.request("GET", "/api/v1/images")).status == 429, "it took all that was left"


async def test_what_is_left_is_good_for_what_takes_less(portal: Portal, agent: Client) -> None:
    await left(portal, agent, HEAVY - 1)
    assert (await agent.request("DELETE", "/api/v1/workspaces/ws-1")).status == 429
    assert (await agent.request("GET", "/api/v1/workspaces/ws-1")).status == 200


async def test_other_faces_count_as_well(portal: Portal, agent: Client) -> None:
    token = agent.headers()["Authorization"].removeprefix("Bearer ")
    await left(portal, agent, 0)
    answer = await agent.request("GET", "/e2b/sandboxes", headers={"Authorization": None, "X-API-Key": token})
    assert answer.status == 429, await answer.text()
