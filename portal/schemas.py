"""What the API's answers carry, and what the models' routes take, as JSON Schemas: one table for the OpenAPI document.

Answers may get further fields; the ones named here stay. What a route's own model describes (portal.routes.Route) is not repeated.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_SWITCH: Schema = {"type": "boolean"}
_NOTHING: Schema = {"type": "null"}
_OBJECT: Schema = {"type": "object"}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, _NOTHING]}


def _one_of(*words: str) -> Schema:
    return {"type": "string", "enum": list(words)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _object(needed: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    return {"type": "object", "required": list(needed), "properties": {**needed, **(optional or {})}}


def _named(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _pair(schema: Schema) -> Schema:
    return {"type": "array", "items": schema, "minItems": 2, "maxItems": 2}


_SECONDS: Schema = {"type": "number", "description": "seconds since the epoch"}
_PORTS: Schema = {"type": "object", "additionalProperties": {"type": "integer"}, "description": "port inside to port of the host"}
_AMOUNTS = _object({"workspaces": _or_null(_WHOLE), "memory": _or_null(_WHOLE), "disk": _or_null(_WHOLE), "cpus": _or_null(_NUMBER)})
_BUDGET = _object({"limits": _AMOUNTS, "use": _object({"workspaces": _WHOLE, "memory": _WHOLE, "disk": _WHOLE, "cpus": _NUMBER})})
_PICTURE = {"type": "string", "contentEncoding": "base64"}

# By name, for other schemas and for programs that make types of them.
COMPONENTS: dict[str, Schema] = {
    "Workspace": _object(
        {"id": _TEXT, "name": _TEXT, "kind": _one_of("source", "branch"), "state": _one_of("created", "starting", "ready", "forking", "removing", "gone", "stopped", "failed"), "image": _TEXT},
        {
            "phase": _TEXT, "parent": _or_null(_TEXT), "batch": _or_null(_TEXT), "index": _or_null(_WHOLE), "generation": _WHOLE, "desktop": _SWITCH, "ports": _PORTS,
            "network": _one_of("open", "none"), "label": _TEXT, "created": {"type": "string", "format": "date-time"}, "memory_limit": _or_null(_WHOLE), "disk_limit": _or_null(_WHOLE), "cpu_limit": _or_null(_NUMBER), "paused": _SWITCH, "error": _or_null(_TEXT),
        },
    ),
    "ForkResult": _object(
        {
            "source": _TEXT,
            "ms": {"type": "object", "additionalProperties": {"type": ["number", "null"]}, "description": "milliseconds: pause, usable, first_frame and others"},
            "branches": _list(_object({"name": _or_null(_TEXT), "error": _or_null(_TEXT)}, {"id": _or_null(_TEXT), "ports": _PORTS, "hook_error": _or_null(_TEXT)})),
        },
        {"batch": _or_null(_TEXT), "mode": _TEXT, "processes": _WHOLE, "threads": _WHOLE, "bytes_copied": _WHOLE, "results": _list(_OBJECT)},
    ),
    "Image": _object(
        {"name": _TEXT, "built": _SWITCH, "recipe": _SWITCH, "about": _TEXT, "build": _or_null(_named("Build"))},
        {"digest": _TEXT, "size": _or_null(_WHOLE), "desktop": _SWITCH, "ports": _list(_WHOLE)},
    ),
    "Build": _object({"image": _TEXT, "phase": _TEXT, "detail": _TEXT, "elapsed_ms": _or_null(_NUMBER), "done": _SWITCH, "error": _or_null(_TEXT)}),
    "Hold": _object({"holder": _TEXT, "epoch": _WHOLE, "since": _SECONDS, "expires": _SECONDS}),
    "Life": _object({"idle_seconds": _or_null(_NUMBER), "lifetime_seconds": _or_null(_NUMBER), "idle_at": _or_null(_SECONDS), "ends_at": _or_null(_SECONDS)}),
    "Session": _object({"id": _TEXT, "created": _SECONDS, "active": _SECONDS, "expires": _SECONDS, "address": _TEXT, "agent": _TEXT, "current": _SWITCH}),
    "ApiToken": _object({"id": _TEXT, "user": _TEXT, "name": _TEXT, "scopes": _list(_TEXT), "created": _SECONDS, "expires": _or_null(_SECONDS), "used": _or_null(_SECONDS)}),
    "ShareLink": _object({"id": _TEXT, "workspace": _TEXT, "label": _TEXT, "user": _TEXT, "created": _SECONDS, "expires": _SECONDS, "viewers": _WHOLE}),
    "User": _object({"user": _TEXT, "role": _one_of("user", "admin"), "disabled": _SWITCH, "external": _SWITCH, "second_factor": _SWITCH, "quota": _AMOUNTS, "limits": _AMOUNTS, "use": _AMOUNTS}, {"one_time_until": _or_null(_SECONDS)}),
    "RecoveryCodes": _object({"recovery_codes": _list(_TEXT)}),
    "OneTimePassword": _object({"user": _TEXT, "password": _TEXT, "one_time_until": _SECONDS}, {"role": _one_of("user", "admin")}),
    "Entry": _object({"name": _TEXT, "encoded": _TEXT, "kind": _one_of("file", "directory", "link", "fifo", "socket", "device", "mount")}, {"size": _WHOLE, "modified": _or_null(_SECONDS), "target": _or_null(_TEXT), "leads_to": _or_null(_TEXT)}),
    "PromotedPath": _object(
        {
            "path": _TEXT, "encoded": _TEXT, "change": _one_of("added", "changed", "deleted"), "kind": _one_of("file", "directory", "link", "fifo", "socket", "device"),
            "size": _WHOLE, "outcome": _one_of("planned", "done", "conflict", "refused", "failed"), "reason": _or_null(_TEXT),
        }
    ),
    "Listener": _object({"port": _WHOLE, "address": _TEXT, "pid": _or_null(_WHOLE), "command": _or_null(_TEXT), "host": _or_null(_WHOLE), "desktop": _SWITCH}),
    "Window": _object({"id": _WHOLE, "title": _TEXT}, {"active": _SWITCH}),
    "ActionResult": _object({"action": _TEXT, "ok": _SWITCH}, {"skipped": _SWITCH, "error": _object({"code": _TEXT, "message": _TEXT})}),
}  # fmt: skip

def _words(**fields: str) -> Schema:
    """An object whose fields are told in words only: what a model got wrong in them is no wrong request, it is answered with what to mend."""
    return {"type": "object", "properties": {name: {"description": text} for name, text in fields.items()}}


_ANTHROPIC_BODY: Schema = {
    "description": "a `tool_use` block of the tool `computer` or of a member of its toolset, or the block's `input` alone",
    **_words(
        type="`tool_use`",
        id="comes back as `tool_use_id`",
        name="`computer`, or the action when `toolset_name` is there",
        toolset_name="`computer`",
        input="`action` and its fields: `coordinate` and `start_coordinate` [x, y], `text`, `key`, `duration`, `scroll_direction`, `scroll_amount`, `region`",
        action="without a block around it: the action, with its fields beside it",
    ),
    "examples": [{"type": "tool_use", "id": "toolu_1", "name": "computer", "input": {"action": "left_click", "coordinate": [53, 780]}}],
}
_OPENAI_ACTION = _object(
    {"type": _one_of("click", "double_click", "drag", "keypress", "move", "screenshot", "scroll", "type", "wait")},
    {"x": _WHOLE, "y": _WHOLE, "button": _TEXT, "keys": _or_null(_list(_TEXT)), "path": _list(_object({"x": _WHOLE, "y": _WHOLE})), "scroll_x": _WHOLE, "scroll_y": _WHOLE, "text": _TEXT},
)
_OPENAI_BODY: Schema = {
    "description": "a `computer_call` with `action` or `actions`, or one action",
    "anyOf": [_object({"type": {"const": "computer_call"}}, {"call_id": _TEXT, "action": _OPENAI_ACTION, "actions": _list(_OPENAI_ACTION)}), _OPENAI_ACTION],
    "examples": [{"type": "computer_call", "call_id": "call_1", "action": {"type": "click", "button": "left", "x": 53, "y": 780}}],
}
_GEMINI_BODY: Schema = {
    "description": "a function call; places go from 0 to 1000",
    **_words(name="`click_at`, `hover_at`, `type_text_at`, `scroll_at` and the others", args="the function's arguments: `x`, `y`, `text`, `direction`, `keys` and others"),
    "examples": [{"name": "click_at", "args": {"x": 41, "y": 975}}],
}

_COMPUTER = "/workspaces/{id}/computer/"
BODIES: dict[tuple[str, str], Schema] = {
    ("POST", _COMPUTER + "anthropic"): _ANTHROPIC_BODY,
    ("POST", _COMPUTER + "openai"): _OPENAI_BODY,
    ("POST", _COMPUTER + "gemini"): _GEMINI_BODY,
}

_W = "/workspaces/{id}"
ANSWERS: dict[tuple[str, str, int], Schema] = {
    ("GET", "/workspaces", 200): _list(_named("Workspace")),
    ("POST", "/workspaces", 201): _named("Workspace"),
    ("GET", _W, 200): _named("Workspace"),
    ("POST", _W + "/fork", 201): _named("ForkResult"),
    ("POST", _W + "/fork", 202): _object({"source": _TEXT, "begun": _SWITCH}),
    ("POST", _W + "/pause", 200): _named("Workspace"),
    ("POST", _W + "/resume", 200): _named("Workspace"),
    ("GET", _W + "/logs", 200): _TEXT,
    ("POST", _W + "/ticket", 200): _object({"action": {"type": "string", "format": "uri"}, "code": _TEXT}),
    ("GET", _W + "/lease", 200): _or_null(_named("Hold")),
    ("POST", _W + "/lease", 200): _named("Hold"),
    ("GET", _W + "/lifetime", 200): _or_null(_named("Life")),
    ("PUT", _W + "/lifetime", 200): _named("Life"),
    ("POST", _W + "/keepalive", 200): _or_null(_named("Life")),
    ("POST", _W + "/actions", 200): _object({"results": _list(_named("ActionResult")), "screen": _pair(_WHOLE), "cursor": _or_null(_pair(_WHOLE))}),
    ("GET", _W + "/windows", 200): _object({"windows": _list(_named("Window"))}),
    ("GET", _W + "/clipboard", 200): _object({"text": _TEXT}),
    ("GET", _W + "/listeners", 200): _object({"listeners": _list(_named("Listener"))}),
    ("POST", _W + "/ports/{port}", 201): _object({"container": _WHOLE, "host": _WHOLE}),
    ("GET", _W + "/stats", 200): _object(
        {"memory_bytes": _or_null(_WHOLE), "processes": _WHOLE},
        {"cpu_seconds": _NUMBER, "pss_bytes": _WHOLE, "unique_bytes": _WHOLE, "shared_bytes": _WHOLE, "partial": _SWITCH, "threads": _WHOLE, "disk_bytes": _WHOLE, "disk_limit": _or_null(_WHOLE)},
    ),
    ("GET", _W + "/files", 200): _object({"encoded": _TEXT, "entries": _list(_named("Entry")), "truncated": _SWITCH}, {"path": _TEXT, "home": _TEXT}),
    ("POST", _W + "/directories", 201): _named("Entry"),
    ("PUT", _W + "/file", 201): _named("Entry"),
    ("GET", _W + "/diff/file", 200): _object({"same": _SWITCH, "binary": _SWITCH}, {"diff": _or_null(_TEXT), "before": _or_null(_WHOLE), "size": _or_null(_WHOLE)}),
    ("POST", _W + "/promote", 200): _object({"workspace": _TEXT, "into": _TEXT, "dry_run": _SWITCH, "paths": _list(_named("PromotedPath"))}),
    ("GET", _W + "/shares", 200): _list(_named("ShareLink")),
    ("POST", _W + "/shares", 201): {"allOf": [_named("ShareLink"), _object({"link": {"type": "string", "format": "uri"}})]},
    ("POST", _COMPUTER + "anthropic", 200): _object({"type": {"const": "tool_result"}, "content": _list(_object({"type": _one_of("text", "image")}))}, {"tool_use_id": _or_null(_TEXT), "is_error": _SWITCH}),
    ("POST", _COMPUTER + "openai", 200): _object(
        {"type": {"const": "computer_call_output"}, "output": _object({"type": {"const": "computer_screenshot"}, "image_url": _TEXT}), "acknowledged_safety_checks": _list(_OBJECT)},
        {"call_id": _or_null(_TEXT)},
    ),
    ("POST", _COMPUTER + "gemini", 200): _object(
        {"function_response": _object({"response": _OBJECT, "parts": _list(_object({"inline_data": _object({"mime_type": _TEXT, "data": _PICTURE})}))}, {"name": _or_null(_TEXT)})}
    ),
    ("GET", "/images", 200): _list(_named("Image")),
    ("POST", "/images/{name}/build", 202): _object({"image": _TEXT}),
    ("GET", "/me", 200): _object({"user": _TEXT, "role": _one_of("user", "admin"), "scopes": _list(_TEXT), "external": _SWITCH, "token": _or_null(_TEXT), "second_factor": _or_null(_object({"since": _SECONDS, "recovery_codes": _WHOLE})), "second_factor_required": _SWITCH}),
    ("POST", "/me/factor", 201): _object({"secret": _TEXT, "address": {"type": "string", "format": "uri"}, "picture": _object({"path": _TEXT, "size": _WHOLE})}),
    ("PUT", "/me/factor", 200): _named("RecoveryCodes"),
    ("POST", "/me/factor/recovery", 200): _named("RecoveryCodes"),
    ("GET", "/sessions", 200): _list(_named("Session")),
    ("GET", "/tokens", 200): _list(_named("ApiToken")),
    ("POST", "/tokens", 201): {"allOf": [_named("ApiToken"), _object({"token": _TEXT})]},
    ("GET", "/users", 200): _list(_named("User")),
    ("POST", "/users", 201): _named("OneTimePassword"),
    ("PATCH", "/users/{user}", 200): _named("User"),
    ("POST", "/users/{user}/password", 200): _named("OneTimePassword"),
    ("GET", "/quota", 200): _object({"user": _BUDGET}, {"all": _BUDGET}),
    ("GET", "/owners", 200): _map(_or_null(_TEXT)),
    ("GET", "/overview", 200): _map(_object({"owner": _or_null(_TEXT), "viewers": _WHOLE, "traffic": _WHOLE})),
    ("GET", "/audit", 200): _list(_OBJECT),
    ("GET", "/metrics", 200): _TEXT,
}  # fmt: skip
