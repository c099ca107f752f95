"""A real model in place of the script: it proposes for each branch and judges by pictures. Any server that speaks OpenAI's or Anthropic's messages will do.

AGENT_MODEL_URL    https://…/v1/chat/completions (OpenAI's way) or https://…/v1/messages (Anthropic's)
AGENT_MODEL_NAME   the model
AGENT_MODEL_KEY    the key, where one is needed
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import pydantic

from bench.agent_tasks import Actions, Task
from bench.agent_ways import Desk
from engine.desktop.actions import Batch
from engine.errors import BadRequest, Unavailable

_SECONDS = 120.0
_MOST_STEPS = 12
_MOST_TOKENS = 800
_VERSION = "2023-06-01"
_ASK = (
    "You drive a Linux desktop of {width}x{height} pixels. The task: {instruction}\n{history}"
    'Answer with nothing but a JSON list of the next actions: {{"action":"click","x":0,"y":0}}, {{"action":"type","text":""}}, {{"action":"key","keys":"ctrl+l"}}, '
    '{{"action":"scroll","x":0,"y":0,"dy":3}}, {{"action":"wait","seconds":1}}. You are attempt {attempt} of {attempts}: try a way of your own. An empty list means that the task is done.'
)
_JUDGE = "The task: {instruction}\nThe pictures show {count} attempts, numbered from 1. Answer with nothing but the number of the one that is furthest, or 0 when none is any good."


@dataclass(frozen=True)
class Endpoint:
    """Where a model answers. `anthropic`: by Anthropic's messages, else by OpenAI's chat completions."""

    url: str
    name: str
    key: str
    anthropic: bool

    @classmethod
    def of_environment(cls, variables: Mapping[str, str] = os.environ) -> Endpoint | None:
        """None without AGENT_MODEL_URL. Raises BadRequest."""
        url = variables.get("AGENT_MODEL_URL", "")
        if not url:
            return None
        if not variables.get("AGENT_MODEL_NAME"):
            raise BadRequest("AGENT_MODEL_URL needs AGENT_MODEL_NAME beside it")
        anthropic = url.rstrip("/").endswith("/messages")
        if not anthropic and not url.rstrip("/").endswith("/chat/completions"):
            raise BadRequest("AGENT_MODEL_URL must end with /chat/completions or /messages")
        return cls(url, variables["AGENT_MODEL_NAME"], variables.get("AGENT_MODEL_KEY", ""), anthropic)

    def headers(self) -> dict[str, str]:
        if self.anthropic:
            return {"anthropic-version": _VERSION, **({"x-api-key": self.key} if self.key else {})}
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def body(self, question: str, pictures: list[bytes]) -> dict[str, Any]:
        encoded = [base64.b64encode(picture).decode() for picture in pictures]
        if self.anthropic:
            shown = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}} for data in encoded]
        else:
            shown = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}} for data in encoded]
        return {"model": self.name, "max_tokens": _MOST_TOKENS, "messages": [{"role": "user", "content": [*shown, {"type": "text", "text": question}]}]}

    def words(self, answer: dict[str, Any]) -> str:
        """The text of an answer. Raises KeyError, IndexError, TypeError for what is none."""
        if self.anthropic:
            return "".join(part["text"] for part in answer["content"] if part["type"] == "text")
        return answer["choices"][0]["message"]["content"]


class Model:
    """A policy by a model. `steps` of the task are not looked at: only what it says of itself counts as its end."""

    def __init__(self, endpoint: Endpoint, session: aiohttp.ClientSession) -> None:
        self._endpoint = endpoint
        self._session = session
        self._history: list[Actions] = []
        self._proposed: list[Actions] = []

    async def propose(self, task: Task, step: int, desks: list[Desk]) -> list[Actions]:
        if step == 0:
            self._history.clear()
        picture = await desks[0].picture()
        shot = await desks[0].client.screenshot(desks[0].id, width=16)
        assert shot is not None  # no tag was sent
        done = f"Done so far: {json.dumps(self._history)}\n" if self._history else ""
        width, height = shot.screen
        asked = [_ASK.format(width=width, height=height, instruction=task.instruction, history=done, attempt=index + 1, attempts=len(desks)) for index in range(len(desks))]
        self._proposed = [actions_of(words) for words in await asyncio.gather(*(self._ask(question, [picture]) for question in asked))]
        return self._proposed

    async def judge(self, task: Task, step: int, desks: list[Desk]) -> int | None:
        pictures = await asyncio.gather(*(desk.picture() for desk in desks))
        number = re.search(r"\d+", await self._ask(_JUDGE.format(instruction=task.instruction, count=len(desks)), list(pictures)))
        best = int(number[0]) - 1 if number else -1
        if not 0 <= best < len(desks):
            return None
        self._history.append(self._proposed[best])
        return best

    def over(self, task: Task, step: int) -> bool:
        return step >= _MOST_STEPS or (step > 0 and not self._history[-1])

    async def _ask(self, question: str, pictures: list[bytes]) -> str:
        """Raises Unavailable; what the server says may hold the key, so it is not repeated."""
        endpoint = self._endpoint
        try:
            async with self._session.post(
                endpoint.url, json=endpoint.body(question, pictures), headers=endpoint.headers(), timeout=aiohttp.ClientTimeout(total=_SECONDS)
            ) as answer:
                if answer.status != 200:
                    raise Unavailable(f"the model answers with status {answer.status}")
                return endpoint.words(await answer.json())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(f"the model does not answer: {type(error).__name__}") from None
        except (KeyError, IndexError, TypeError, ValueError):
            raise Unavailable("the model's answer has no text") from None


def actions_of(words: str) -> Actions:
    """The actions in a model's words; none when there are no usable ones."""
    found = re.search(r"\[.*\]", words, re.DOTALL)
    try:
        batch = Batch.model_validate({"actions": json.loads(found[0])}) if found else None
    except (ValueError, pydantic.ValidationError):
        return []
    return [action.model_dump(exclude_none=True) for action in batch.actions] if batch is not None else []
