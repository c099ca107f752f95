"""The loop of an agent that tries before it decides: branch before every step, act in all branches, let a judge choose, drop the rest."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.agent_tasks import Actions, Task
from bench.agent_ways import REACHED_SECONDS, Desk, Way, quietly
from engine.errors import EngineError

_LOOK_SECONDS = 0.1
# Of one step.
_MOST_TRIES = 3


@dataclass(frozen=True)
class Outcome:
    """One task by one way. Seconds from its beginning: `ready`, when the first step could begin, and `total`; `branching` of each step; `memory` in bytes at the most."""

    task: str
    way: str
    done: bool
    ready: float
    total: float
    branching: list[float]
    memory: int
    error: str | None = None

    def public(self) -> dict[str, object]:
        return dict(self.__dict__)


class Policy(Protocol):
    """What branches do, and which of them did best."""

    async def propose(self, task: Task, step: int, desks: list[Desk]) -> list[Actions]:
        """For each desk what to do in it now."""

    async def judge(self, task: Task, step: int, desks: list[Desk]) -> int | None:
        """The best of them by its place in the list; None when none is any good."""

    def over(self, task: Task, step: int) -> bool:
        """Whether all steps are done."""


class Scripted:
    """A deterministic policy in a model's place: in one branch, another one at each step, the right thing, and in the others what weaker agents do."""

    async def propose(self, task: Task, step: int, desks: list[Desk]) -> list[Actions]:
        candidates = task.steps[step].candidates()
        right = (step + len(task.name)) % len(desks)
        wrong = [candidates[1 + index % (len(candidates) - 1)] for index in range(len(desks))]
        return [candidates[0] if index == right else wrong[index] for index in range(len(desks))]

    async def judge(self, task: Task, step: int, desks: list[Desk]) -> int | None:
        """As soon as one of them got there: the others would be waited for in vain."""
        deadline = time.monotonic() + REACHED_SECONDS
        while True:
            reached = await asyncio.gather(*(desk.holds(task.steps[step].reached) for desk in desks))
            if True in reached:
                return reached.index(True)
            if time.monotonic() > deadline:
                return None
            await asyncio.sleep(_LOOK_SECONDS)

    def over(self, task: Task, step: int) -> bool:
        return step >= len(task.steps)


async def run(task: Task, way: Way, policy: Policy, branches: int, pictures: Path | None = None) -> Outcome:
    """One task from nothing to its end. What goes wrong is in the outcome; nothing is left. `pictures`: a directory for what each branch showed after each step."""
    began = time.monotonic()
    ready = 0.0
    try:
        await way.begin(task)
        ready = time.monotonic() - began
        done = await _steps(task, way, policy, branches, pictures)
        total = time.monotonic() - began
        await way.end()
    except EngineError as error:
        total = time.monotonic() - began
        await quietly(way)
        return Outcome(task.name, way.name, False, ready, total, way.spent.branching, way.spent.memory, " ".join(error.message.split()))
    return Outcome(task.name, way.name, done, ready, total, way.spent.branching, way.spent.memory)


async def _steps(task: Task, way: Way, policy: Policy, branches: int, pictures: Path | None) -> bool:
    step, tries = 0, 0
    while not policy.over(task, step):
        desks = await way.branch(branches)
        proposed = await policy.propose(task, step, desks)
        await asyncio.gather(*(desk.act(actions) for desk, actions in zip(desks, proposed, strict=True) if actions))
        best = await policy.judge(task, step, desks)
        if pictures is not None:
            await _keep_pictures(pictures / f"{task.name}, {way.name}, step {step + 1}", desks, best)
        if best is None:
            # What an agent does, too: what did not come to pass is tried again from where it stood.
            tries += 1
            if tries == _MOST_TRIES:
                return False
            await way.drop()
            continue
        tries = 0
        done = await desks[best].holds(task.done)
        await way.keep(desks[best], proposed[best])
        step += 1
        if done:
            return True
    return False


async def _keep_pictures(name: Path, desks: list[Desk], best: int | None) -> None:
    name.parent.mkdir(parents=True, exist_ok=True)
    for index, desk in enumerate(desks):
        kept = ", kept" if index == best else ""
        name.with_name(f"{name.name}, branch {index + 1}{kept}.png".replace(" ", "-")).write_bytes(await desk.picture())
