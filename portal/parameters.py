"""What stands in a request's address beside its route: the parameters, as the OpenAPI document describes them and as they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from portal.errors import Malformed

# What the engine takes for a path inside a workspace, and for the other side of a comparison.
_ABSOLUTE = {"type": "string", "pattern": "^/[^\\x00]*$", "maxLength": 4095}
_BASE = {"type": "string", "pattern": "^(parent|image|ws-[0-9]{1,18})$", "default": "parent"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of the query: a sentence that says what it is, its JSON schema, and whether a request without it is refused."""

    text: str
    schema: dict[str, Any]
    required: bool = False


def whole(text: str, least: int, most: int) -> Parameter:
    """A whole number."""
    return Parameter(f"{text}, {least} to {most}", {"type": "integer", "minimum": least, "maximum": most})


def flag(text: str) -> Parameter:
    """Off (0) when it is not there; on with 1."""
    return Parameter(f"1: {text}", {"type": "string", "enum": ["0", "1"], "default": "0"})


PATH = {"path": Parameter("absolute path inside, percent-encoded bytes", _ABSOLUTE, required=True)}
BASE = {"base": Parameter("`parent`, `image` or the id of a workspace of the same image", _BASE)}
OWN = {"own": flag("also what the desktop writes by itself: logs, caches, the browser's profile")}
# Parts of paths, by their names in the routes; all others are words of any kind.
PARTS: dict[str, dict[str, Any]] = {
    "id": {"type": "string", "pattern": "^ws-[0-9]{1,18}$"},
    "port": {"type": "integer", "minimum": 1, "maximum": 65535},
}


def number(text: str, name: str, least: int, most: int) -> int:
    """A whole number in plain digits. Raises Malformed, which names the parameter."""
    if not text.isascii() or not text.isdecimal() or len(text) > 20 or not least <= int(text) <= most:
        raise Malformed(f"{name} must be a number from {least} to {most}")
    return int(text)
