"""JSON objects that come with requests, checked against a model."""

from __future__ import annotations

import json
from typing import TypeVar

import pydantic
from aiohttp import web

from portal.errors import Malformed


class Body(pydantic.BaseModel):
    """Base of every request's JSON object: no other fields, no conversions between types."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)


B = TypeVar("B", bound=Body)


async def parsed(request: web.Request, model: type[B]) -> B:
    """The request's JSON object as an instance of `model`. Raises Malformed, which names the field."""
    try:
        value = json.loads(await request.read() or b"{}")
    except (ValueError, RecursionError):
        raise Malformed("the body is not JSON") from None
    if not isinstance(value, dict):
        raise Malformed("the body must be a JSON object")
    try:
        return model.model_validate(value)
    except pydantic.ValidationError as error:
        raise Malformed(_problem(error, model)) from None


def _problem(error: pydantic.ValidationError, model: type[Body]) -> str:
    """The first thing wrong, in one line, without the value that was sent (it may be a secret)."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    name = ".".join(str(part) for part in first["loc"])[:60]
    if first["type"] == "extra_forbidden":
        return f"unknown field {name!r}; known: {', '.join(model.model_fields)}"
    return f"{name}: {first['msg'][:1].lower()}{first['msg'][1:200]}"
