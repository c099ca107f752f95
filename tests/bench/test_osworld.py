"""The agents' benchmark: the script in a model's place, a model by both kinds of messages, and what the report says. On real desktops: tests/agents/test_loop.py."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bench import osworld
from bench.agent_loop import Outcome, Scripted, run
from bench.agent_model import Endpoint, Model, actions_of
from bench.agent_tasks import GROUPS, TASKS, Actions, Task, choose
from bench.agent_ways import Desk, Spent
from engine.client import Screenshot
from engine.desktop.actions import Batch
from engine.errors import BadRequest, Internal, Unavailable


class FakeDesk(Desk):
    """A desktop that has got as far as the right actions that were done in it."""

    def __init__(self, task: Task, step: int) -> None:
        self.id, self.task, self.step = f"ws-{step}", task, step
        self.client: Any = self

    async def act(self, actions: Actions) -> bool:
        self.step += self.step < len(self.task.steps) and actions == self.task.steps[self.step].right
        return True

    async def script(self, script: str) -> bool:
        return self.step > 0 and script in [step.reached for step in self.task.steps[: self.step]]

    async def picture(self) -> bytes:
        return b"picture"

    async def screenshot(self, ref: str, **_: Any) -> Screenshot:
        return Screenshot(b"", "image/png", "", (1280, 800), (16, 10))


class FakeWay:
    name = "tclone"

    def __init__(self, fails: bool = False) -> None:
        self.spent = Spent()
        self.kept: list[Actions] = []
        self.ended = 0
        self._fails = fails

    async def begin(self, task: Task) -> None:
        self._current = FakeDesk(task, 0)

    async def branch(self, count: int) -> list[Desk]:
        if self._fails:
            raise Internal("no\nroom")
        self.spent.branching.append(0.5)
        return [FakeDesk(self._current.task, self._current.step) for _ in range(count)]

    async def keep(self, winner: Desk, actions: Actions) -> None:
        assert isinstance(winner, FakeDesk)
        self._current = winner
        self.kept.append(actions)

    async def end(self) -> None:
        self.ended += 1


def test_there_are_ten_tasks_in_four_groups_of_actions_that_exist() -> None:
    assert len(TASKS) == 10 and {task.group for task in TASKS} == set(GROUPS) and len({task.name for task in TASKS}) == 10
    for task in TASKS:
        for step in task.steps:
            assert len(step.wrong) == 3
            for actions in step.candidates():
                Batch.model_validate({"actions": actions})
    assert [task.name for task in choose(["form", "letter"])] == ["fill in a form", "write a letter"] and choose(["browser"])[0].group == "browser"


@pytest.mark.parametrize("branches", [2, 3, 8])
async def test_the_script_finds_its_way_whichever_branch_is_right(branches: int) -> None:
    places = set()
    for task in TASKS:
        way = FakeWay()
        outcome = await run(task, way, Scripted(), branches)
        assert outcome.done and outcome.error is None and way.kept == [step.right for step in task.steps] and way.ended == 1
        assert outcome.branching == [0.5] * len(task.steps)
        proposed = await Scripted().propose(task, 0, [FakeDesk(task, 0)] * branches)
        assert proposed.count(task.steps[0].right) == 1
        places.add(proposed.index(task.steps[0].right))
    assert len(places) > 1


async def test_what_goes_wrong_is_told_and_nothing_is_left() -> None:
    way = FakeWay(fails=True)
    outcome = await run(TASKS[0], way, Scripted(), 2)
    assert not outcome.done and outcome.error == "no room" and way.ended == 1


class Talker:
    """A model: it gives each attempt another answer of `answers`, and judges the second one best."""

    def __init__(self, anthropic: bool) -> None:
        self.anthropic = anthropic
        self.answers = ['Sure: [{"action":"key","keys":"Return"}]', '```json\n[{"action":"type","text":"Anna"}]\n```']
        self.status = 200
        self.asked: list[dict[str, Any]] = []
        self.headers: list[Any] = []

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        self.headers.append(request.headers)
        (question,) = [part["text"] for part in body["messages"][0]["content"] if part["type"] == "text"]
        words = "2" if "attempts, numbered" in question else self.answers["You are attempt 2 of" in question]
        if self.anthropic:
            return web.json_response({"content": [{"type": "text", "text": words}]}, status=self.status)
        return web.json_response({"choices": [{"message": {"content": words}}]}, status=self.status)


@pytest.fixture(params=["/v1/messages", "/v1/chat/completions"])
async def talking(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Talker, Model]]:
    talker = Talker(request.param.endswith("messages"))
    app = web.Application(client_max_size=1 << 20)
    app.router.add_post(request.param, talker.answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        variables = {"AGENT_MODEL_URL": str(server.make_url(request.param)), "AGENT_MODEL_NAME": "some-model", "AGENT_MODEL_KEY": "a secret"}
        endpoint = Endpoint.of_environment(variables)
        assert endpoint is not None and endpoint.anthropic is talker.anthropic
        yield talker, Model(endpoint, session)


async def test_a_model_proposes_for_each_branch_and_judges_by_pictures(talking: tuple[Talker, Model]) -> None:
    talker, model = talking
    task = choose(["form"])[0]
    desks: list[Desk] = [FakeDesk(task, 0), FakeDesk(task, 0)]
    first, second = await model.propose(task, 0, desks)
    assert first == [{"action": "key", "keys": "Return", "repeat": 1}] and second == [{"action": "type", "text": "Anna", "delay_ms": 3.0}]
    assert await model.judge(task, 0, desks) == 1 and not model.over(task, 1)
    judged = talker.asked[-1]
    assert judged["model"] == "some-model" and len(judged["messages"][0]["content"]) == 3 and "cGljdHVyZQ==" in json.dumps(judged)
    assert talker.headers[-1].get("x-api-key" if talker.anthropic else "Authorization") == ("a secret" if talker.anthropic else "Bearer a secret")
    # What was done goes into the next question; nothing more to do is the end.
    talker.answers = ["[]", "[]"]
    assert await model.propose(task, 1, desks) == [[], []] and "Anna" in json.dumps(talker.asked[-1])
    assert await model.judge(task, 1, desks) == 1 and model.over(task, 2)
    talker.status = 500
    with pytest.raises(Unavailable) as told:
        await model.judge(task, 2, desks)
    assert "500" in told.value.message and "secret" not in told.value.message


@pytest.mark.parametrize("words", ["", "no list", "[", '[{"action":"explode"}]', '[{"action":"click","x":-1,"y":0}]', "[1]"])
def test_words_without_usable_actions_are_none(words: str) -> None:
    assert actions_of(words) == []


@pytest.mark.parametrize("variables", [{"AGENT_MODEL_URL": "https://model.example/v1/messages"}, {"AGENT_MODEL_URL": "https://model.example", "AGENT_MODEL_NAME": "m"}])
def test_half_an_endpoint_is_told(variables: dict[str, str]) -> None:
    with pytest.raises(BadRequest):
        Endpoint.of_environment(variables)
    assert Endpoint.of_environment({}) is None


def test_the_report_compares_what_was_done_by_both() -> None:
    ours = Outcome("a task", "tclone", True, 4.0, 10.0, [0.5, 1.5], 400 << 20)
    fresh = Outcome("a task", "fresh and replay", True, 0.0, 40.0, [10.0, 20.0], 800 << 20)
    failed = Outcome("another", "tclone", False, 0.0, 1.0, [], 0, "no room")
    told = osworld.text([ours, fresh, failed], 3, (2.0, "criu 4.2"))
    assert "tasks take 4.0 times as long, making branches 15.0 times, memory is 2.0 times as much (medians of 1 tasks)" in told
    assert "3 branches in 1.00 s (median of 2 steps, 0.50-1.50)" in told and "criu 4.2: 3 copies of a load of the desktop's size in 2.00 s, 2.0 times" in told
    assert "    no room" in told and next(line for line in told.splitlines() if line.startswith("another")).split()[2] == "NO"
    assert osworld.text([failed], 3, (None, "none on PATH")).endswith("no task was done by forks")
