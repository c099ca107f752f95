"""A short run of the agents' benchmark on real desktops: forks and fresh containers come to the same end."""

from __future__ import annotations

import pytest

from bench.agent_loop import Scripted, run
from bench.agent_tasks import choose
from bench.agent_ways import Forking, Replaying
from engine.client import EngineClient
from tests.agents.conftest import SOURCE

pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("way", [Forking, Replaying])
async def test_a_task_is_done_by_trying_in_branches(client: EngineClient, way: type[Forking] | type[Replaying]) -> None:
    (task,) = choose(["write a letter"])
    outcome = await run(task, way(client), Scripted(), 2)
    assert outcome.error is None and outcome.done, outcome
    assert len(outcome.branching) == 2 and 0 < sum(outcome.branching) < outcome.total and outcome.memory > 50 << 20
    # Losers are discarded, and with the task's end the winner.
    assert [one["name"] for one in await client.list()] == [SOURCE]
