"""The OpenAPI document as people read it: what the page of the API shows of each operation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_METHODS = ("get", "head", "post", "put", "patch", "delete")
_MOST_CHOICES = 8
_FIRST = "workspaces"


def parts(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The operations by their tag, those of workspaces first: `name`, and `operations` as `_operation` has them."""
    found: dict[str, list[dict[str, Any]]] = {_FIRST: []}
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                operation = methods[method]
                found.setdefault(operation["tags"][0], []).append(_operation(document, method, path, operation))
    return [{"name": name, "operations": operations} for name, operations in found.items()]


def refusals(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Status and meaning of what any operation may answer beside its own."""
    answers = next(operation["responses"] for methods in document["paths"].values() for operation in methods.values())
    return [(status, answer["description"]) for status, answer in answers.items() if int(status) >= 400]


def _operation(document: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> dict[str, Any]:
    body = operation.get("requestBody", {}).get("content", {})
    return {
        "id": operation["operationId"],
        "method": method.upper(),
        "path": path,
        "summary": operation["summary"],
        "scope": operation["x-scope"],
        "parameters": [_parameter(document, item) for item in operation["parameters"]],
        "body": [{"kind": kind, "fields": list(_fields(document, media["schema"]))} for kind, media in body.items()],
        "answers": [(status, answer["description"]) for status, answer in operation["responses"].items() if int(status) < 400],
    }


def _parameter(document: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    return {"name": item["name"], "where": item["in"], "required": item["required"], "kind": _kind(document, item["schema"]), "text": item.get("description", "")}


def _fields(document: dict[str, Any], schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Name, kind, default and whether it is needed of each field of an object."""
    whole = _resolved(document, schema)
    for name, field in whole.get("properties", {}).items():
        told = {"name": name, "kind": _kind(document, field), "required": name in whole.get("required", []), "text": field.get("description", "")}
        default = field.get("default")
        yield {**told, "default": "" if default in (None, "", [], {}) else json.dumps(default)}


def _resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    return schema if reference is None else document["components"]["schemas"][reference.rpartition("/")[2]]


def _kind(document: dict[str, Any], schema: dict[str, Any]) -> str:
    """A schema in a few words: "string", "list of integer", "get or put"."""
    resolved = _resolved(document, schema)
    if "const" in resolved:
        return str(resolved["const"])
    if choices := resolved.get("enum"):
        return " or ".join(map(str, choices[:_MOST_CHOICES])) + (" …" if len(choices) > _MOST_CHOICES else "")
    if several := resolved.get("anyOf") or resolved.get("oneOf"):
        kinds = dict.fromkeys(_kind(document, one) for one in several)
        kinds.pop("null", None)
        words = list(kinds)
        return " or ".join(words[:_MOST_CHOICES]) + (" …" if len(words) > _MOST_CHOICES else "")
    if action := resolved.get("properties", {}).get("action", {}).get("const"):
        return str(action)
    kind = resolved.get("type", "any")
    kinds = [one for one in kind if one != "null"] if isinstance(kind, list) else [kind]
    if kinds == ["array"]:
        return f"list of {_kind(document, resolved.get('items', {}))}"
    return " or ".join(kinds)
