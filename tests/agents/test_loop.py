"""A short run of the agents' benchmark on real desktops: forks and fresh containers come to the same end, by keys and files as by mouse and pixels; a model can stand in the script's place."""

from __future__ import annotations

import json

import aiohttp
import pytest

from bench.agent_loop import Outcome, Scripted, run
from bench.agent_model import Model
from bench.agent_tasks import Task, choose
from bench.agent_ways import Forking, Replaying
from bench.model_endpoint import Endpoint
from engine.client import EngineClient
from tests.agents.conftest import SOURCE
from tests.bench.models import PATHS, Asked, serving

pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(600)]


async def _done(client: EngineClient, task: Task, outcome: Outcome) -> None:
    assert outcome.error is None and outcome.done, outcome
    assert len(outcome.branching) == len(task.steps) and 0 < sum(outcome.branching) < outcome.total and outcome.memory > 50 << 20
    # Losers are discarded, and with the task's end the winner.
    assert [one["name"] for one in await client.list()] == [SOURCE]


@pytest.mark.parametrize(("way", "name"), [(Forking, "write a letter"), (Forking, "draw a picture"), (Replaying, "write a letter")])
async def test_a_task_is_done_by_trying_in_branches(client: EngineClient, way: type[Forking] | type[Replaying], name: str) -> None:
    (task,) = choose([name])
    await _done(client, task, await run(task, way(client), Scripted(), 2))


@pytest.mark.parametrize("family", PATHS)
async def test_a_task_is_done_by_a_model(client: EngineClient, family: str) -> None:
    """Its server is the only thing that is not real: what it says in the second branch is right, and it sees both of them."""
    (task,) = choose(["write a letter"])

    def say(asked: Asked) -> str:
        assert all(picture.size == (1280, 800) for picture in asked.pictures)
        if "attempts, numbered" in asked.text:
            assert len(asked.pictures) == 2
            return "2"
        step = task.steps[asked.text.count("Dear Ben,\\n")]
        return json.dumps(step.right if "attempt 2 of" in asked.text else step.wrong[0])

    async with serving(family, say) as server, aiohttp.ClientSession() as session:
        endpoint = Endpoint.of_environment(server.variables)
        assert endpoint is not None
        await _done(client, task, await run(task, Forking(client), Model(endpoint, session), 2))
        assert len(server.asked) == 3 * len(task.steps)
