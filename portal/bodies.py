"""JSON objects that come with requests, checked against a model."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import pydantic
from aiohttp import web
from pydantic_core import ErrorDetails

from portal.errors import Malformed


# Up to here every whole number is one of binary floating point, too.
_EXACT = 1 << 53


class Body(pydantic.BaseModel):
    """Base of every request's JSON object: no other fields, no conversions between types."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)


B = TypeVar("B", bound=Body)


def one_of(*words: str) -> Any:
    """For the document that describes a field: these words are taken. The refusal of others is its reader's."""
    return pydantic.Field(json_schema_extra={"enum": [str(word) for word in words]})


def is_needed(model: type[Body], method: str) -> bool:
    """Whether a request must have a body: without one a field would be missing, or everything that is set be set back by no word."""
    return method == "PUT" or any(field.is_required() for field in model.model_fields.values())


async def parsed(request: web.Request, model: type[B]) -> B:
    """The request's JSON object as an instance of `model`. Raises Malformed, which names the field."""
    sent = await request.read()
    if not sent and is_needed(model, request.method):
        raise Malformed(f"the body is missing: a JSON object with {', '.join(model.model_fields)}")
    return checked(decoded(sent or b"{}", "body"), model)


def decoded(sent: bytes | str, what: str) -> dict[str, Any]:
    """A JSON object that came as `what`. Raises Malformed."""
    try:
        value = json.loads(sent, parse_float=_figure, parse_constant=_no_figure)
    except (ValueError, RecursionError):
        raise Malformed(f"the {what} is not JSON") from None
    if not isinstance(value, dict):
        raise Malformed(f"the {what} must be a JSON object")
    return value


def checked(value: dict[str, Any], model: type[B]) -> B:
    """An object as an instance of `model`. Raises Malformed, which names the field."""
    try:
        return model.model_validate(value)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise Malformed(_problem(first, model), field=_name(first).partition(".")[0]) from None


def _figure(text: str) -> float:
    """8.0 is a whole number in JSON's eyes, and some programs write all of theirs so."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < _EXACT else value


def _no_figure(text: str) -> float:
    """NaN and infinities are Python's own: JSON has none, and no limit holds them back."""
    raise ValueError(f"{text} is not JSON")


def _name(problem: ErrorDetails) -> str:
    """Which field is wrong, those inside others with a dot between."""
    return ".".join(str(part) for part in problem["loc"])[:60]


def _problem(problem: ErrorDetails, model: type[Body]) -> str:
    """What is wrong, in one line, without the value that was sent (it may be a secret)."""
    name = _name(problem)
    if problem["type"] == "extra_forbidden":
        return f"unknown field {name!r}; known: {', '.join(model.model_fields)}"
    return f"{name}: {problem['msg'][:1].lower()}{problem['msg'][1:200]}"
