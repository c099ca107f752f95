"""Models' own actions, taken as they come: `/workspaces/{id}/computer/anthropic`, `/openai`, `/gemini`."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

from aiohttp import web

from engine.client import Screenshot
from engine.errors import EngineError
from portal.api.actions import Actions, succeeded
from portal.errors import Malformed
from portal.models import anthropic, gemini, openai
from portal.models.plan import Plan
from portal.node import Node
from portal.parameters import Parameter
from portal.principal import Scope
from portal.routes import LONGEST_TEXT_BODY, Call, Route

# So that a picture shows what came of the action: until nothing moves any more, at most so long.
_SETTLE_MS = 2000
# What models' APIs take of one picture, base64 included.
_MOST_BYTES = 3_500_000
_SIZE = re.compile(r"([0-9]{2,4})x([0-9]{2,4})")
_SMALLEST, _LARGEST = 16, 7680


class Models:
    """Each answers with what its model expects, a picture of the screen after the actions included."""

    def __init__(self, actions: Actions, node: Node) -> None:
        self._actions = actions
        self._node = node

    def routes(self) -> list[Route]:
        one = "/workspaces/{id}/computer/"
        told = "width x height that the model was told, as 1024x768: its places are pixels of that, and pictures have that size (the screen's own)"
        size = {"display": Parameter(told, {"type": "string", "pattern": f"^{_SIZE.pattern}$"})}
        version = {"version": Parameter("of the tool", {"type": "string", "enum": list(anthropic.VERSIONS), "default": anthropic.NEWEST})}
        return [
            Route("POST", one + "anthropic", Scope.CONTROL, self._anthropic, "A tool_use block of Anthropic's computer tool",
                  answers={200: "the tool_result block"}, query=version | size, once="memory", longest=LONGEST_TEXT_BODY),
            Route("POST", one + "openai", Scope.CONTROL, self._openai, "A computer_call of OpenAI's",
                  answers={200: "the computer_call_output"}, query=size, once="memory", longest=LONGEST_TEXT_BODY),
            Route("POST", one + "gemini", Scope.CONTROL, self._gemini, "A function call of Gemini's computer use",
                  answers={200: "the function_response"}, once="memory", longest=LONGEST_TEXT_BODY),
        ]  # fmt: skip

    async def _anthropic(self, call: Call) -> web.Response:
        version = call.request.query.get("version", anthropic.NEWEST)
        if version not in anthropic.VERSIONS:
            raise Malformed(f"version must be one of {', '.join(anthropic.VERSIONS)}")
        said, size = await _object(call), _display(call)
        # What a model got wrong is told to it in its own terms, so that it can try again.
        plan, error = _planned(lambda: anthropic.plan(said, version, size))
        done, failed = await self._done(call, plan)
        error = error or failed
        cursor = done["cursor"] if done is not None and plan.wants_cursor and error is None else None
        # With the pointer, as Anthropic's own tool takes them.
        shot = await self._picture(call, plan, pointer=1) if cursor is None and error is None else None
        text = f"X={cursor[0]},Y={cursor[1]}" if cursor is not None else None
        picture, kind = (_base64(shot), shot.content_type) if shot is not None else (None, "")
        return web.json_response(anthropic.answer(said, picture, kind, text, error))

    async def _openai(self, call: Call) -> web.Response:
        said = await _object(call)
        plan = openai.plan(said, _display(call))
        if plan.actions:
            succeeded(await self._actions.act(call, plan.actions, list(plan.size) if plan.size else None))
        shot = await self._picture(call, plan)
        return web.json_response(openai.answer(said, _base64(shot), shot.content_type))

    async def _gemini(self, call: Call) -> web.Response:
        said = await _object(call)
        plan, error = _planned(lambda: gemini.plan(said))
        _, failed = await self._done(call, plan)
        shot = await self._picture(call, Plan())
        return web.json_response(gemini.answer(said, _base64(shot), shot.content_type, error or failed))

    async def _done(self, call: Call, plan: Plan) -> tuple[dict[str, Any] | None, str | None]:
        """The engine's answer, and what went wrong in words. Refusals by the portal (held, too many) are raised as they are."""
        if not plan.actions:
            return None, None
        try:
            answer = await self._actions.act(call, plan.actions, list(plan.size) if plan.size else None)
            succeeded(answer)
        except EngineError as error:
            return None, error.message
        return answer, None

    async def _picture(self, call: Call, plan: Plan, pointer: int = 0) -> Screenshot:
        """The screen in the size that the model knows, or the part of it that it asked for, enlarged to that."""
        options: dict[str, Any] = {"settle_ms": _SETTLE_MS, "max_bytes": _MOST_BYTES, "pointer": pointer}
        if plan.region is not None:
            screen = (await self._shot(call, width=_SMALLEST, format="jpeg")).screen
            known = plan.size or screen
            options["region"] = _on_screen(plan.region, known, screen)
            wide, high = plan.region[2] - plan.region[0], plan.region[3] - plan.region[1]
            scale = min(known[0] / wide, known[1] / high)
            options.update(width=max(_SMALLEST, round(wide * scale)), height=max(_SMALLEST, round(high * scale)))
        elif plan.size is not None:
            options.update(width=plan.size[0], height=plan.size[1])
        return await self._shot(call, **options)

    async def _shot(self, call: Call, **options: Any) -> Screenshot:
        shot = await self._node.screenshot(call.workspace, None, **options)
        assert shot is not None, "only a picture that is asked for with a tag can be the one that is known"
        return shot


def _on_screen(region: tuple[int, int, int, int], known: tuple[int, int], screen: tuple[int, int]) -> list[int]:
    """A region of the model's picture in pixels of the screen."""
    if region[2] > known[0] or region[3] > known[1]:
        raise Malformed(f"the region has to be inside the picture of {known[0]}x{known[1]}")
    left, top, right, bottom = (round(part * screen[axis % 2] / known[axis % 2]) for axis, part in enumerate(region))
    left, top = min(left, screen[0] - 1), min(top, screen[1] - 1)
    return [left, top, max(right, left + 1), max(bottom, top + 1)]


def _planned(make: Callable[[], Plan]) -> tuple[Plan, str | None]:
    try:
        return make(), None
    except Malformed as error:
        return Plan(), error.message


def _base64(shot: Screenshot) -> str:
    return base64.b64encode(shot.content).decode()


def _display(call: Call) -> tuple[int, int] | None:
    text = call.request.query.get("display")
    if text is None:
        return None
    found = _SIZE.fullmatch(text)
    size = (int(found[1]), int(found[2])) if found else (0, 0)
    if not all(_SMALLEST <= side <= _LARGEST for side in size):
        raise Malformed(f"display must be width x height, each from {_SMALLEST} to {_LARGEST}, as 1024x768")
    return size


async def _object(call: Call) -> dict[str, Any]:
    """The body: a JSON object that is the model's own. Raises Malformed."""
    try:
        value = json.loads(await call.request.read())
    except (ValueError, RecursionError):
        raise Malformed("the body is not JSON") from None
    if not isinstance(value, dict):
        raise Malformed("the body must be the model's call: a JSON object")
    return value
