"""Agents' actions by the portal's API: who may, once only, how fast, and what is kept of it. Effects on a real desktop: tests/agents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from portal import routes
from portal.errors import TooMany
from portal.rates import Rates
from tests.portal.conftest import PATIENCE, Portal, program
from tests.portal.fake_engine import FakeEngine

ONE = "/api/v1/workspaces/ws-1"
CLICK = {"action": "click", "x": 10, "y": 20}


def acted(engine: FakeEngine) -> list[list[str]]:
    return [[action["action"] for action in body["actions"]] for verb, body in engine.calls if verb == "act"]


async def test_actions_pass_to_the_engine_and_results_come_back(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    agent = await program(portal, await portal.login(), "control")
    answer = await agent.request("POST", ONE + "/actions", {"actions": [CLICK, {"action": "type", "text": "hé"}], "size": [1024, 768]})
    assert answer.status == 200 and [result["ok"] for result in (await answer.json())["results"]] == [True, True]
    sent = next(body for verb, body in engine.calls if verb == "act")
    assert sent["actions"] == [
        {"action": "click", "x": 10, "y": 20, "button": "left", "count": 1},
        {"action": "type", "text": "hé", "delay_ms": 3.0},
    ]
    assert sent["size"] == [1024, 768]


async def test_a_key_makes_it_once(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    engine.add()
    person = await portal.login()
    agent, other = await program(portal, person, "control"), await program(portal, person, "control")
    key: dict[str, str | None] = {"Idempotency-Key": "step-1"}
    answers = [await agent.request("POST", ONE + "/actions", {"actions": [CLICK]}, headers=key) for _ in range(3)]
    assert len({await answer.text() for answer in answers}) == 1 and len(acted(engine)) == 1
    # Another program's key and another workspace's are others, and without one each request is its own.
    await other.request("POST", ONE + "/actions", {"actions": [CLICK]}, headers=key)
    await agent.request("POST", "/api/v1/workspaces/ws-2/actions", {"actions": [CLICK]}, headers=key)
    for _ in range(2):
        await agent.request("POST", ONE + "/actions", {"actions": [CLICK]})
    assert len(acted(engine)) == 5
    for wrong in ("", "x" * 256, "é"):
        if wrong:
            refused = await agent.request("POST", ONE + "/actions", {"actions": [CLICK]}, headers={"Idempotency-Key": wrong})
            assert refused.status == 400


async def test_scopes_and_owners(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    reader = await program(portal, person, "read")
    assert (await reader.request("POST", ONE + "/actions", {"actions": [CLICK]})).status == 403
    assert (await reader.request("GET", ONE + "/clipboard")).status == 403
    assert (await (await reader.request("GET", ONE + "/windows")).json())["windows"][0]["title"] == "Terminal"
    stranger = await program(portal, await portal.user(person, "other"), "control")
    for method, path, body in (("POST", "/actions", {"actions": [CLICK]}), ("GET", "/windows", None), ("GET", "/clipboard", None), ("POST", "/computer/openai", {"type": "wait"})):
        assert (await stranger.request(method, ONE + path, body)).status == 404
    assert acted(engine) == []


async def test_nothing_is_done_while_a_person_has_control_and_what_was_held_is_released(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    agent = await program(portal, person, "control")
    assert (await person.request("POST", ONE + "/lease", {})).status == 200
    assert ("release", "ws-1") in engine.calls
    requests = (("POST", "/actions", {"actions": [CLICK]}), ("GET", "/clipboard", None), ("PUT", "/clipboard", {"text": "x"}), ("POST", "/computer/openai", {"type": "wait"}))
    for method, path, body in (*requests, ("POST", "/computer/anthropic", {"action": "key", "text": "a"}), ("POST", "/computer/gemini", {"name": "go_back"})):
        refused = await agent.request(method, ONE + path, body)
        error = (await refused.json())["error"]
        assert (refused.status, error["reason"], error["lease"]["holder"]) == (423, "held_by_person", "admin"), path
    assert acted(engine) == []
    assert (await agent.request("GET", ONE + "/screenshot")).status == 200
    engine.calls.clear()
    assert (await person.request("DELETE", ONE + "/lease")).status == 204
    assert ("release", "ws-1") in engine.calls
    assert (await agent.request("POST", ONE + "/actions", {"actions": [CLICK]})).status == 200


async def test_every_action_is_in_the_audit_log_without_what_was_typed(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    agent = await program(portal, person, "control")
    engine.action_fails = "activate"
    actions = [{"action": "type", "text": "my secret"}, {"action": "activate", "window": 7}, CLICK]
    assert (await agent.request("POST", ONE + "/actions", {"actions": actions})).status == 200
    await person.request("POST", ONE + "/lease", {})
    assert (await agent.request("POST", ONE + "/actions", {"actions": [CLICK]})).status == 423
    entries = (await (await person.request("GET", "/api/v1/audit?limit=50")).json())[::-1]
    told = [(entry["workspace"], entry["action"], entry["outcome"]) for entry in entries if entry["event"] == "action"]
    assert told == [("ws-1", "type", "ok"), ("ws-1", "activate", "not_found"), ("ws-1", "click", "skipped"), ("ws-1", "click", "held")]
    tokens = await (await person.request("GET", "/api/v1/tokens")).json()
    assert {entry["token"] for entry in entries if entry["event"] == "action"} == {tokens[0]["id"]}
    assert "my secret" not in json.dumps(entries)


async def test_too_fast(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    agent, other = await program(portal, person, "control"), await program(portal, person, "control")
    many = {"actions": [CLICK] * 64}
    answers = [await agent.request("POST", ONE + "/actions", many) for _ in range(12)]
    refused = [answer for answer in answers if answer.status == 429]
    assert refused and int(refused[0].headers["Retry-After"]) >= 1
    assert (await other.request("POST", ONE + "/actions", many)).status == 200


def test_a_bucket_fills_steadily() -> None:
    now = [0.0]
    rates = Rates(10, 2.0, lambda: now[0])
    rates.take("a", 10)
    with pytest.raises(TooMany) as refusal:
        rates.take("a", 4)
    assert refusal.value.retry_after == 2.0
    rates.take("b", 1)
    now[0] = 2.0
    rates.take("a", 4)
    now[0] = 1000.0
    rates.take("a", 10)
    with pytest.raises(TooMany):
        rates.take("a", 1)


@pytest.mark.parametrize("body", [{}, {"actions": []}, {"actions": [CLICK] * 65}, {"actions": [{"action": "fly"}]}, {"actions": [CLICK], "size": [10]}, {"actions": [CLICK], "more": 1}])
async def test_what_is_no_batch(portal: Portal, engine: FakeEngine, body: object) -> None:
    engine.add()
    agent = await program(portal, await portal.login(), "control")
    assert (await agent.request("POST", ONE + "/actions", body)).status == 400
    assert acted(engine) == []


@pytest.fixture
def one_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before there is a portal: a user has one long body in memory."""
    monkeypatch.setattr(routes, "MOST_LONG", 1)


async def test_a_user_has_only_so_many_long_bodies_in_memory(one_long: None, portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    agent, other = await program(portal, person, "control"), await program(portal, person, "control")
    come = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b'{"actions": '
        await come.wait()
        yield json.dumps([CLICK]).encode() + b"}"

    headers = agent.headers() | {"Content-Type": "application/json"}
    held = asyncio.ensure_future(agent._session.post(f"http://control{ONE}/actions", data=body(), headers=headers))
    async with asyncio.timeout(PATIENCE):
        while not portal.control._router._long._open["admin"]:
            await asyncio.sleep(0.01)
    assert (await other.request("PUT", ONE + "/clipboard", {"text": "x" * 70_000})).status == 429
    assert (await other.request("PUT", ONE + "/clipboard", {"text": "short"})).status == 204
    come.set()
    async with await held as answer:
        assert answer.status == 200
    assert (await other.request("PUT", ONE + "/clipboard", {"text": "x" * 70_000})).status == 204


async def test_texts_may_be_as_long_as_documented_however_they_are_written(portal: Portal, engine: FakeEngine) -> None:
    """One character may take 12 bytes in JSON: 10 000 typed ones 120 kB, a clipboard of 1 MiB of control characters 6 MiB."""
    engine.add()
    agent = await program(portal, await portal.login(), "control")
    typed, kept = "\N{GRINNING FACE}" * 10_000, "\x01" * (1 << 20)
    assert (await agent.request("POST", ONE + "/actions", {"actions": [{"action": "type", "text": typed}]})).status == 200
    assert (await agent.request("POST", ONE + "/computer/anthropic", {"action": "type", "text": typed})).status == 200
    assert (await agent.request("PUT", ONE + "/clipboard", {"text": kept})).status == 204
    assert (await agent.request("PUT", ONE + "/clipboard", {"text": kept + "x"})).status == 400
    assert (await agent.request("PUT", ONE + "/clipboard", {"text": kept * 2})).status == 413


async def test_the_clipboard(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    agent = await program(portal, await portal.login(), "control")
    assert await (await agent.request("GET", ONE + "/clipboard")).json() == {"text": "copied"}
    assert (await agent.request("PUT", ONE + "/clipboard", {"text": "☃"})).status == 204
    assert acted(engine) == [["get_clipboard"], ["set_clipboard"]]
    engine.action_fails = "set_clipboard"
    assert (await agent.request("PUT", ONE + "/clipboard", {"text": "☃"})).status == 404


async def test_an_engine_that_was_ended_in_the_midst_is_told_of(portal: Portal, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.add()
    agent = await program(portal, await portal.login(), "control")
    monkeypatch.setattr(engine, "_results", lambda actions: {"results": [], "screen": None, "cursor": None, "interrupted": True})
    assert (await (await agent.request("POST", ONE + "/actions", {"actions": [CLICK]})).json())["interrupted"] is True
    assert (await agent.request("GET", ONE + "/clipboard")).status == 503
