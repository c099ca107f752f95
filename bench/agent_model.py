"""A real model in place of the script: it proposes for each branch and judges by pictures. Any server that speaks OpenAI's or Anthropic's messages will do (bench/model_endpoint.py)."""

from __future__ import annotations

import asyncio
import json
import re

import aiohttp
import pydantic

from bench.agent_tasks import Actions, Task
from bench.agent_ways import Desk
from bench.model_endpoint import Endpoint
from engine.desktop.actions import Batch

_MOST_STEPS = 12
_ASK = (
    "You drive a Linux desktop of {width}x{height} pixels. The task: {instruction}\n{history}"
    'Answer with nothing but a JSON list of the next actions: {{"action":"click","x":0,"y":0}}, {{"action":"drag","path":[[0,0],[9,9]]}}, {{"action":"type","text":""}}, '
    '{{"action":"key","keys":"ctrl+l"}}, {{"action":"scroll","x":0,"y":0,"dy":3}}, {{"action":"wait","seconds":1}}. '
    "You are attempt {attempt} of {attempts}: try a way of your own. An empty list means that the task is done."
)
_JUDGE = "The task: {instruction}\nThe pictures show {count} attempts, numbered from 1. Answer with nothing but the number of the one that is furthest, or 0 when none is any good."


class Model:
    """A policy by a model. `steps` of the task are not looked at: only what it says of itself counts as its end."""

    def __init__(self, endpoint: Endpoint, session: aiohttp.ClientSession) -> None:
        self._endpoint = endpoint
        self._session = session
        self._history: list[Actions] = []
        self._proposed: list[Actions | None] = []
        self._over = False

    async def propose(self, task: Task, step: int, desks: list[Desk]) -> list[Actions]:
        """An answer without usable actions leaves its branch as it is; it is not taken for the end."""
        if step == 0:
            self._history.clear()
            self._over = False
        picture = await desks[0].picture()
        width, height = await desks[0].size()
        done = f"Done so far: {json.dumps(self._history)}\n" if self._history else ""
        asked = [_ASK.format(width=width, height=height, instruction=task.instruction, history=done, attempt=index + 1, attempts=len(desks)) for index in range(len(desks))]
        self._proposed = [actions_of(words) for words in await asyncio.gather(*(self._ask(question, [picture]) for question in asked))]
        return [actions or [] for actions in self._proposed]

    async def judge(self, task: Task, step: int, desks: list[Desk]) -> int | None:
        pictures = await asyncio.gather(*(desk.picture() for desk in desks))
        words = await self._ask(_JUDGE.format(instruction=task.instruction, count=len(desks)), list(pictures))
        # One that says more than the number comes to it at the end.
        numbers = re.findall(r"\d+", words)
        best = int(numbers[-1]) - 1 if numbers else -1
        if not 0 <= best < len(desks):
            return None
        kept = self._proposed[best]
        self._history.append(kept or [])
        self._over = kept == []
        return best

    def over(self, task: Task, step: int) -> bool:
        return step >= _MOST_STEPS or (step > 0 and self._over)

    async def _ask(self, question: str, pictures: list[bytes]) -> str:
        return await self._endpoint.ask(self._session, question, pictures)


def actions_of(words: str) -> Actions | None:
    """The actions in a model's words; None when it names none that can be done, [] when it wants none."""
    found = re.search(r"\[.*\]", words, re.DOTALL)
    try:
        wanted = json.loads(found[0]) if found else None
        if wanted == []:
            return []
        return [action.model_dump(exclude_none=True) for action in Batch.model_validate({"actions": wanted}).actions]
    except (ValueError, pydantic.ValidationError):
        return None
