"""A server that speaks OpenAI's chat completions and Anthropic's messages as the real ones do: requests are checked as strictly, answers and errors have all their fields."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pydantic
from aiohttp import web
from aiohttp.test_utils import TestServer
from PIL import Image

KEY = "sk-a-secret"
NAME = "some-model"
PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}
# Of one request: Anthropic's, and of one picture after base64.
_MOST_BODY, _MOST_PICTURE = 32 << 20, 5 << 20


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)


class _Text(_Strict):
    type: Literal["text"]
    text: Annotated[str, pydantic.Field(min_length=1)]


class _Source(_Strict):
    type: Literal["base64"]
    media_type: Literal["image/png", "image/jpeg", "image/gif", "image/webp"]
    data: str


class _AnthropicPicture(_Strict):
    type: Literal["image"]
    source: _Source


class _AnthropicMessage(_Strict):
    role: Literal["user", "assistant"]
    content: list[Annotated[_Text | _AnthropicPicture, pydantic.Field(discriminator="type")]]


class AnthropicRequest(_Strict):
    """What is sent to /v1/messages; `max_tokens` has to be there."""

    model: str
    max_tokens: Annotated[int, pydantic.Field(ge=1)]
    messages: Annotated[list[_AnthropicMessage], pydantic.Field(min_length=1)]


class _Url(_Strict):
    url: str
    detail: Literal["auto", "low", "high"] = "auto"


class _OpenaiPicture(_Strict):
    type: Literal["image_url"]
    image_url: _Url


class _OpenaiMessage(_Strict):
    role: Literal["developer", "system", "user", "assistant"]
    content: list[Annotated[_Text | _OpenaiPicture, pydantic.Field(discriminator="type")]]


class OpenaiRequest(_Strict):
    """What is sent to /v1/chat/completions. Newer models refuse `max_tokens`; so does this one, by not knowing it."""

    model: str
    messages: Annotated[list[_OpenaiMessage], pydantic.Field(min_length=1)]
    max_completion_tokens: int | None = None


@dataclass
class Asked:
    """One question: its text, its pictures, and the headers that came with it."""

    text: str
    pictures: list[Image.Image]
    headers: dict[str, str]


@dataclass
class ModelServer:
    """`say` gives the model's words for a question, None for a refusal. `failures` are answered first, one each: a status and how long to wait."""

    family: str
    say: Callable[[Asked], str | None]
    failures: list[tuple[int, str | None]] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    url: str = ""

    @property
    def variables(self) -> dict[str, str]:
        """The environment in which the benchmark finds it."""
        return {"AGENT_MODEL_URL": self.url, "AGENT_MODEL_NAME": NAME, "AGENT_MODEL_KEY": KEY}

    async def answer(self, request: web.Request) -> web.Response:
        anthropic = self.family == "anthropic"
        # Anthropic documents a header of its own, and its newer clients send the other one.
        sent = (request.headers.get("x-api-key", "") if anthropic else "") or request.headers.get("Authorization", "").removeprefix("Bearer ")
        if sent != KEY:
            return self._error(401, f"Incorrect API key provided: {sent}.")
        if anthropic and request.headers.get("anthropic-version") not in ("2023-06-01", "2026-10-21"):
            return self._error(400, "anthropic-version: header is required and must be a version that there is")
        if self.failures:
            status, wait = self.failures.pop(0)
            return self._error(status, "Come again", {"Retry-After": wait} if wait is not None else {})
        try:
            body: Any = (AnthropicRequest if anthropic else OpenaiRequest).model_validate(json.loads(await request.read()))
            content = body.messages[-1].content
            pictures = [_picture(part) for part in content if not isinstance(part, _Text)]
        except (ValueError, OSError) as error:
            return self._error(400, str(error))
        if body.model != NAME:
            return self._error(404, f"model: {body.model}")
        asked = Asked("".join(part.text for part in content if isinstance(part, _Text)), pictures, dict(request.headers))
        self.asked.append(asked)
        return web.json_response((_anthropic_answer if anthropic else _openai_answer)(self.say(asked)))

    def _error(self, status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
        if self.family == "anthropic":
            kinds = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 529: "overloaded_error"}
            body: dict[str, Any] = {"type": "error", "error": {"type": kinds.get(status, "api_error"), "message": message}, "request_id": "req_1"}
        else:
            kind = {429: "rate_limit_exceeded"}.get(status, "server_error" if status >= 500 else "invalid_request_error")
            body = {"error": {"message": message, "type": kind, "param": None, "code": "invalid_api_key" if status == 401 else None}}
        return web.json_response(body, status=status, headers=headers)


def _picture(part: _AnthropicPicture | _OpenaiPicture) -> Image.Image:
    """Raises ValueError, OSError for what is no picture of the kind that it is said to be."""
    if isinstance(part, _AnthropicPicture):
        kind, data = part.source.media_type, part.source.data
    else:
        head, _, data = part.image_url.url.partition(",")
        kind = head.removeprefix("data:").removesuffix(";base64")
    if len(data) > _MOST_PICTURE:
        raise ValueError("image exceeds 5 MB maximum")
    image = Image.open(io.BytesIO(base64.b64decode(data, validate=True)))
    image.load()
    if Image.MIME[str(image.format)] != kind:
        raise ValueError(f"the picture is no {kind}")
    return image


def _anthropic_answer(words: str | None) -> dict[str, Any]:
    """The words in two parts, as a model may give them, after what it thought."""
    half = len(words or "") // 2
    parts = [{"type": "thinking", "thinking": "[1]", "signature": "c2ln"}]
    parts += [{"type": "text", "text": part, "citations": None} for part in ((words or "")[:half], (words or "")[half:]) if part]  # type: ignore[dict-item]
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": NAME, "content": parts if words is not None else [],
        "stop_reason": "end_turn" if words is not None else "refusal", "stop_sequence": None, "usage": {"input_tokens": 1000, "output_tokens": 10},
    }  # fmt: skip


def _openai_answer(words: str | None) -> dict[str, Any]:
    message = {"role": "assistant", "content": words, "refusal": None if words is not None else "I cannot help with that.", "annotations": []}
    return {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1764460800, "model": NAME,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010},
    }  # fmt: skip


@asynccontextmanager
async def serving(family: str, say: Callable[[Asked], str | None]) -> AsyncIterator[ModelServer]:
    """The server on a loopback port, for as long as the block lasts."""
    made = ModelServer(family, say)
    app = web.Application(client_max_size=_MOST_BODY)
    app.router.add_post(PATHS[family], made.answer)
    async with TestServer(app) as server:
        made.url = str(server.make_url(PATHS[family]))
        yield made
