"""A desktop and a way to branch it, for tests of the agents' loop alone."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image

from bench.agent_tasks import Actions, Check, Task
from bench.agent_ways import Desk, Spent
from engine.desktop.actions import Batch
from engine.errors import Internal


def _png() -> bytes:
    written = io.BytesIO()
    Image.new("RGB", (40, 30), (0, 90, 0)).save(written, "PNG")
    return written.getvalue()


PICTURE = _png()


class FakeDesk(Desk):
    """A desktop that has got as far as the right actions that were done in it."""

    def __init__(self, task: Task, step: int) -> None:
        self.id, self.task, self.step = f"ws-{step}", task, step
        self.client: Any = self

    async def act(self, actions: Actions) -> bool:
        self.step += self.step < len(self.task.steps) and _same(actions, self.task.steps[self.step].right)
        return True

    async def holds(self, check: Check) -> bool:
        return self.step > 0 and check in [step.reached for step in self.task.steps[: self.step]]

    async def picture(self) -> bytes:
        return PICTURE

    async def size(self) -> tuple[int, int]:
        return 1280, 800


def _same(one: Actions, other: Actions) -> bool:
    """A model's actions have every field, the script's those that are needed."""
    return Batch.model_validate({"actions": one}) == Batch.model_validate({"actions": other})


class FakeWay:
    name = "tclone"

    def __init__(self, fails: bool = False) -> None:
        self.spent = Spent()
        self.kept: list[Actions] = []
        self.ended = 0
        self.dropped = 0
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

    async def drop(self) -> None:
        self.dropped += 1

    async def end(self) -> None:
        self.ended += 1
