"""The agents' benchmark: its tasks, the script in a model's place, and what the report says. A model: test_model.py. On real desktops: tests/agents/test_loop.py."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from bench import osworld
from bench.agent_loop import Outcome, Scripted, run
from bench.agent_tasks import COLOURS, GROUPS, TASKS, Pixels, Task, choose
from bench.agent_ways import Desk, shows
from engine.desktop.actions import Batch
from tests.bench.fakes import PICTURE, FakeDesk, FakeWay


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


class Unsure(Scripted):
    """Its judge finds nothing good so many times."""

    def __init__(self, times: int) -> None:
        self._times = times

    async def judge(self, task: Task, step: int, desks: list[Desk]) -> int | None:
        self._times -= 1
        return None if self._times >= 0 else await super().judge(task, step, desks)


@pytest.mark.parametrize(("times", "done", "dropped"), [(2, True, 2), (3, False, 2)])
async def test_a_step_in_which_no_branch_got_there_is_tried_again(times: int, done: bool, dropped: int) -> None:
    way = FakeWay()
    outcome = await run(TASKS[0], way, Unsure(times), 2)
    assert (outcome.done, way.dropped, way.ended, outcome.error) == (done, dropped, 1, None)


async def test_what_goes_wrong_is_told_and_nothing_is_left() -> None:
    way = FakeWay(fails=True)
    outcome = await run(TASKS[0], way, Scripted(), 2)
    assert not outcome.done and outcome.error == "no room" and way.ended == 1


def test_the_report_compares_what_was_done_by_both() -> None:
    ours = Outcome("a task", "tclone", True, 4.0, 10.0, [0.5, 1.5], 400 << 20)
    fresh = Outcome("a task", "fresh and replay", True, 0.0, 40.0, [10.0, 20.0], 800 << 20)
    failed = Outcome("another", "tclone", False, 0.0, 1.0, [], 0, "no room")
    told = osworld.text([ours, fresh, failed], 3, (2.0, "criu 4.2"))
    assert "tasks take 4.0 times as long, making branches 15.0 times, memory is 2.0 times as much (medians of 1 tasks)" in told
    assert "3 branches in 1.00 s (median of 2 steps, 0.50-1.50)" in told and "criu 4.2: 3 copies of a load of the desktop's size in 2.00 s, 2.0 times" in told
    assert "    no room" in told and next(line for line in told.splitlines() if line.startswith("another")).split()[2] == "NO"
    assert osworld.text([failed], 3, (None, "none on PATH")).endswith("no task was done by forks")


def test_pixels_are_looked_for_at_their_places() -> None:
    image = Image.new("RGB", (100, 50), COLOURS["white"])
    image.putpixel((99, 49), (190, 30, 50))
    written = io.BytesIO()
    image.save(written, "PNG")
    assert shows(written.getvalue(), Pixels(((0, 0, "white"), (99, 49, "red"))))
    for places in (((0, 0, "red"),), ((99, 49, "white"),), ((100, 0, "white"),), ((0, 0, "white"), (98, 49, "red"))):
        assert not shows(written.getvalue(), Pixels(places))


async def test_what_each_branch_showed_is_kept_on_request(tmp_path: Path) -> None:
    task = choose(["letter"])[0]
    await run(task, FakeWay(), Scripted(), 2, tmp_path / "pictures")
    names = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert len(names) == 4 and [("kept" in name) for name in names].count(True) == 2
    assert names[0].startswith("write-a-letter,-tclone,-step-1,-branch-1") and {path.read_bytes() for path in (tmp_path / "pictures").iterdir()} == {PICTURE}
