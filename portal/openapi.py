"""The OpenAPI 3.1 document of the API, made of the table of routes that requests are checked by."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import pydantic

from engine import __version__
from portal.bodies import Body, is_needed
from portal.once import KEY_HEADER, KEY_PATTERN
from portal.parameters import PARTS, Parameter
from portal.routes import PREFIX, Route, SocketRoute
from portal.schemas import ANSWERS, BODIES, COMPONENTS

_COMPONENTS = "#/components/schemas/"
_WITHOUT_BODY = {204, 304}
_PARAMETER = re.compile(r"\{([a-z_]+)\}")
_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}, "field": {"type": "string", "description": "the field of the body that is wrong"}},
        }
    },
}
# What any route may answer beside its own: docs/reference/portal.md has the codes.
_REFUSALS = {
    "400": "Malformed", "401": "Log in, or send a token", "403": "Not allowed", "404": "No such thing", "405": "No such method here", "409": "In conflict with what there is",
    "413": "Too large", "415": "Not the type that is taken", "421": "Not a host of the portal", "422": "Refused by what runs inside", "423": "A person has control", "429": "Beyond a limit",
    "500": "A defect", "502": "The engine made no sense", "503": "The engine is away", "504": "The engine did not answer", "507": "The disk is full",
}  # fmt: skip


_ONCE = {
    "name": KEY_HEADER, "in": "header", "required": False, "schema": {"type": "string", "pattern": KEY_PATTERN},
    "description": "carried out once for each: a repetition gets the first one's answer",
}  # fmt: skip


def document(routes: Sequence[Route], sockets: Sequence[SocketRoute] = ()) -> dict[str, Any]:
    """The whole document as a JSON object."""
    models = {route.body for route in routes if route.body is not None}
    models |= {answer for route in routes for answer in (route.answers or {}).values() if isinstance(answer, type)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "TClone", "version": __version__, "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "servers": [{"url": PREFIX}],
        "security": [{"token": []}],
        "paths": _paths(routes, sockets),
        "components": {
            "schemas": {"Error": _ERROR, **COMPONENTS, **_schemas(frozenset(models))},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


@functools.cache
def _schemas(models: frozenset[type[pydantic.BaseModel]]) -> dict[str, Any]:
    """The same for every portal of a process, as tests have them: made once, for it is most of the work of a portal's start (40 of 60 ms)."""
    # References go by the name alone.
    assert len({model.__name__ for model in models}) == len(models), "two bodies or answers have one name"
    ordered = sorted(models, key=lambda model: model.__name__)
    _, definitions = pydantic.json_schema.models_json_schema([(model, "validation") for model in ordered], ref_template=_COMPONENTS + "{model}")
    return definitions.get("$defs", {})


def _paths(routes: Sequence[Route], sockets: Sequence[SocketRoute]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    for socket in sockets:
        upgraded = {"101": {"description": "the WebSocket; its first message is a hello"}}
        paths.setdefault(socket.path, {})["get"] = _described("get", socket, upgraded)
    return paths


def _described(method: str, route: Route | SocketRoute, answers: dict[str, Any]) -> dict[str, Any]:
    """What every operation tells."""
    words = [word for word in re.split(r"[^a-z]+", route.path) if word]
    return {
        "operationId": "_".join([method, *words]),
        "summary": route.summary,
        "tags": words[:1],
        "x-scope": str(route.scope),
        "parameters": [_path_parameter(name) for name in _PARAMETER.findall(route.path)],
        "responses": {**answers, **_REFUSED},
    }


def _operation(route: Route) -> dict[str, Any]:
    operation = _described(route.method.lower(), route, _answers(route))
    operation["parameters"] += [_query_parameter(*item) for item in (route.query or {}).items()] + ([_ONCE] if route.once else [])
    if route.body is not None:
        operation["requestBody"] = {"required": is_needed(route.body, route.method), "content": {"application/json": {"schema": _reference(route.body)}}}
    elif (schema := BODIES.get((route.method, route.path))) is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    if route.takes:
        operation["requestBody"] = {"content": {route.takes: {"schema": {}}}}
    return operation


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": PARTS.get(name, {"type": "string", "minLength": 1})}


def _query_parameter(name: str, parameter: Parameter) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": parameter.text, "required": parameter.required, "schema": parameter.schema}


def _answers(route: Route) -> dict[str, Any]:
    described = {}
    for status, answer in (route.answers or {200: "done"}).items():
        told = ANSWERS.get((route.method, route.path, status), {})
        words, schema = (answer, told) if isinstance(answer, str) else (answer.__name__, _reference(answer))
        described[str(status)] = {"description": words}
        if status not in _WITHOUT_BODY:
            described[str(status)]["content"] = {kind: {"schema": schema} for kind in route.content}
    return described


def _refusal(text: str) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": {"$ref": _COMPONENTS + "Error"}}}}


_REFUSED = {status: _refusal(text) for status, text in _REFUSALS.items()}


def _reference(model: type[pydantic.BaseModel] | type[Body]) -> dict[str, str]:
    return {"$ref": _COMPONENTS + model.__name__}
