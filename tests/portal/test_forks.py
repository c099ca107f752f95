"""Forks and launches by programs: what became of each child, once for each key, whose they are, how long they live, and what is kept of it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.portal.conftest import Client, Portal, program
from tests.portal.fake_engine import FakeEngine

ONE = "/api/v1/workspaces/ws-1"
FORK = ONE + "/fork"


def forks(engine: FakeEngine) -> list[dict[str, Any]]:
    return [body for verb, body in engine.calls if verb == "fork"]


async def posted(client: Client, path: str, body: object, key: str | None = None) -> tuple[int, dict[str, Any]]:
    answer = await client.request("POST", path, body, headers={"Idempotency-Key": key})
    return answer.status, await answer.json()


async def entries(person: Client, event: str) -> list[dict[str, Any]]:
    found = await (await person.request("GET", "/api/v1/audit?limit=50")).json()
    return [entry for entry in found[::-1] if entry["event"] == event]


async def limited(portal: Portal, person: Client, name: str, most: int) -> Client:
    """A program of a new user that may have so many workspaces, and has one: ws-1."""
    user = await portal.user(person, name)
    quota = await person.request("PATCH", f"/api/v1/users/{name}", {"quota": {"workspaces": most, "memory": None}})
    assert quota.status == 200, await quota.text()
    agent = await program(portal, user, "fork", "control")
    status, made = await posted(agent, "/api/v1/workspaces", {"image": "webtop-xfce", "wait": True})
    assert (status, made["id"], made["state"]) == (201, "ws-1", "ready")
    return agent


async def test_each_child_is_told_with_its_workspace_and_is_its_makers_at_once(portal: Portal, engine: FakeEngine) -> None:
    agent = await limited(portal, await portal.login(), "anna", 5)
    status, told = await posted(agent, FORK, {"count": 3, "labels": ["a", "b"], "timeout": 90})
    assert status == 201
    assert [child["workspace"]["label"] for child in told["results"]] == ["a", "b", ""]
    for child in told["results"]:
        life = await agent.request("GET", f"/api/v1/workspaces/{child['workspace']['id']}/lifetime")
        assert life.status == 200 and (await life.json())["lifetime_seconds"] == 90
    status, told = await posted(agent, FORK, {"persistent": True})
    life = await (await agent.request("GET", f"/api/v1/workspaces/{told['results'][0]['workspace']['id']}/lifetime")).json()
    assert life["ends_at"] is None and life["idle_at"] is None


async def test_without_room_for_all_it_is_none_or_as_many_as_fit(portal: Portal, engine: FakeEngine) -> None:
    agent = await limited(portal, await portal.login(), "anna", 3)
    status, told = await posted(agent, FORK, {"count": 3})
    assert (status, told["error"]["code"], told["error"]["wanted"], forks(engine)) == (429, "limit", 3, [])
    status, told = await posted(agent, FORK, {"count": 3, "partial": True, "labels": ["a", "b", "c"]})
    assert status == 201 and [sorted(child) for child in told["results"]] == [["workspace"], ["workspace"], ["error"]]
    assert told["results"][2]["error"]["code"] == "limit" and told["results"][2]["error"]["quota"] == "workspaces"
    assert [body["copies"] for body in forks(engine)] == [2] and forks(engine)[0]["labels"] == ["a", "b"]
    status, told = await posted(agent, FORK, {"count": 1, "partial": True})
    assert (status, told["error"]["limit"]) == (429, 3)


async def test_a_key_makes_it_once_also_at_the_same_time_and_after_a_failure(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    agent = await program(portal, person, "fork")
    engine.refuse("fork", "conflict", "ws-1 is being forked")
    assert (await posted(agent, FORK, {"count": 2}, "step-1"))[0] == 409
    engine.allow("fork")
    answers = await asyncio.gather(*(agent.request("POST", FORK, {"count": 2}, headers={"Idempotency-Key": "step-1"}) for _ in range(4)))
    again = await agent.request("POST", FORK, {"count": 2}, headers={"Idempotency-Key": "step-1"})
    assert {answer.status for answer in answers} == {201} and len({await answer.text() for answer in [*answers, again]}) == 1
    assert again.headers["Idempotent-Replayed"] == "true"
    assert len(forks(engine)) == 2  # the refused one and one more
    status, told = await posted(agent, FORK, {"count": 3}, "step-1")
    assert (status, told["error"]["reason"]) == (409, "key_reused")
    assert [entry["outcome"] for entry in await entries(person, "fork")] == ["conflict", "ok"]


async def test_answers_outlive_a_restart_of_the_portal(portal: Portal, engine: FakeEngine) -> None:
    agent = await program(portal, await portal.login(), "fork")
    first = await posted(agent, "/api/v1/workspaces", {"image": "webtop-xfce"}, "one")
    once = portal.control._once
    once._known.clear()
    assert await posted(agent, "/api/v1/workspaces", {"image": "webtop-xfce"}, "one") == first
    assert len([1 for verb, _ in engine.calls if verb == "launch"]) == 1
    # A day later it is another request.
    once._clock = lambda: time.time() + 90_000
    assert (await posted(agent, "/api/v1/workspaces", {"image": "webtop-xfce"}, "one"))[1]["id"] != first[1]["id"]


async def test_a_repeated_discard_is_no_error(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    agent = await program(portal, await portal.login(), "fork")
    for _ in range(2):
        assert (await agent.request("DELETE", ONE, headers={"Idempotency-Key": "gone"})).status == 204
    assert (await agent.request("DELETE", ONE)).status == 404


async def test_who_does_not_wait_is_told_of_refusals_and_hears_the_rest_by_events(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    agent = await program(portal, await portal.login(), "fork")
    status, told = await posted(agent, FORK, {"count": 2, "wait": False})
    assert (status, told) == (202, {"source": "ws-1", "begun": True})
    engine.refuse("fork", "unsupported", "ws-1 has a device open")
    assert (await posted(agent, FORK, {"wait": False}))[0] == 422
    engine.allow("fork")


async def test_what_contradicts_itself_is_refused(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    agent = await program(portal, await portal.login(), "fork")
    for body in ({"count": 2, "copies": 3}, {"timeout": 60, "persistent": True}, {"timeout": 0}, {"count": 9}):
        assert (await posted(agent, FORK, body))[0] == 400, body


async def test_new_workspaces_have_a_pace(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    agent = await program(portal, await portal.login(), "fork")
    portal.control.forks._rates._burst = 10
    answers = [await agent.request("POST", FORK, {"count": 8}) for _ in range(2)]
    assert [answer.status for answer in answers] == [201, 429] and int(answers[1].headers["Retry-After"]) >= 1


async def test_pause_and_resume(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    agent = await program(portal, person, "fork")
    status, told = await posted(agent, ONE + "/pause", {})
    assert (status, told["paused"]) == (200, True)
    ticket = await person.request("POST", ONE + "/ticket", {})
    assert ticket.status == 409 and "paused" in (await ticket.json())["error"]["message"]
    assert (await posted(agent, ONE + "/resume", {}))[1]["paused"] is False
    tokens = await (await person.request("GET", "/api/v1/tokens")).json()
    assert [(entry["outcome"], entry["token"]) for entry in await entries(person, "pause")] == [("ok", tokens[0]["id"])]


async def test_every_verb_that_makes_something_takes_a_key(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    agent = await program(portal, person, "admin")
    for path, body in ((ONE + "/ports/9100", None), (ONE + "/directories?path=/made", None), ("/api/v1/images/workspace/build", None), (ONE + "/shares", {"label": "x"})):
        answers = [await agent.request("POST", path, body, headers={"Idempotency-Key": "k"}) for _ in range(2)]
        assert [answer.status for answer in answers] == [answers[0].status] * 2 and answers[0].status < 300, path
        assert await answers[0].text() == await answers[1].text() and answers[1].headers["Idempotent-Replayed"] == "true", path
    assert [(entry["outcome"], entry["port"]) for entry in await entries(person, "publish")] == [("ok", 9100)]


async def test_a_users_branch_is_not_taken_for_a_machine_of_vmrun(portal: Portal, engine: FakeEngine) -> None:
    person = await portal.login()
    agent = await limited(portal, person, "anna", 5)
    for label in ("machine desk", "init_state: snapshot of desk"):
        status, told = await posted(agent, FORK, {"labels": ["mine", label], "count": 2})
        assert status == 400 and told["error"]["field"] == "labels", label
    assert forks(engine) == []
    assert (await posted(await program(portal, person, "fork"), FORK, {"labels": ["machine desk"]}))[0] == 201


async def test_an_osworld_server_is_for_who_may_control(portal: Portal, engine: FakeEngine) -> None:
    agent = await program(portal, await portal.login(), "fork")
    status, told = await posted(agent, "/api/v1/workspaces", {"image": "webtop-xfce", "osworld": True})
    assert (status, told["error"]["code"]) == (403, "forbidden") and not engine.workspaces
