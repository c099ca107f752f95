"""Anthropic's computer use: `computer_20241022`, `_20250124`, `_20251124` (one tool with `action`) and `computer_toolset_20260801` (a tool for each)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.desktop.actions import Action
from portal.errors import Malformed
from portal.models.plan import Plan, action, known, number

_FIRST = {"key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click", "double_click", "screenshot", "cursor_position"}
_SECOND = _FIRST | {"left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "triple_click"}
_THIRD = _SECOND | {"zoom"}
VERSIONS = {"computer_20241022": _FIRST, "computer_20250124": _SECOND, "computer_20251124": _THIRD, "computer_toolset_20260801": _THIRD}
NEWEST = "computer_toolset_20260801"
_TOOLSET = "computer"
_CLICKS = {"left_click": ("left", 1), "right_click": ("right", 1), "middle_click": ("middle", 1), "double_click": ("left", 2), "triple_click": ("left", 3)}
_DIRECTIONS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
_MOST_SECONDS, _MOST_NOTCHES = 100, 100
_MOST_REPEAT = 100


def plan(call: dict[str, Any], version: str, size: tuple[int, int] | None) -> Plan:
    """Of a `tool_use` block, or of its `input` alone. `size`: what the tool was told that the display has. Raises Malformed."""
    name, given = _named(call)
    if name not in VERSIONS[version]:
        raise Malformed(f"{version} has no action {name[:40]!r}; it has {', '.join(sorted(VERSIONS[version]))}")
    if name == "zoom":
        known(given, "zoom", "region")
        return Plan(size=size, region=_region(given.get("region")))
    if name in ("screenshot", "cursor_position"):
        known(given, name)
        actions = [action("cursor")] if name == "cursor_position" else []
        return Plan(actions, size, wants_cursor=name == "cursor_position")
    return Plan(_ACTIONS[name](name, given), size)


def _named(call: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The action's name and its fields, of either shape."""
    given = call.get("input", call) if call.get("type") == "tool_use" or "input" in call else call
    if not isinstance(given, dict):
        raise Malformed("input must be an object")
    if call.get("toolset_name") is not None:
        name = call.get("name")
        if call["toolset_name"] != _TOOLSET or not isinstance(name, str):
            raise Malformed("this is not the toolset `computer`")
        return name, dict(given)
    given = dict(given)
    name = given.pop("action", None)
    if not isinstance(name, str):
        raise Malformed("action is missing")
    return name, given


def _click(name: str, given: dict[str, Any]) -> list[Action]:
    known(given, name, "coordinate", "text", "key")
    button, count = _CLICKS[name]
    return [action("click", **_place(given, "coordinate"), button=button, count=count, modifiers=_held(given))]


def _drag(name: str, given: dict[str, Any]) -> list[Action]:
    known(given, name, "start_coordinate", "coordinate", "text", "key")
    end = _place(given, "coordinate")
    if not end:
        raise Malformed("coordinate is missing")
    start = _place(given, "start_coordinate")
    if start:
        return [action("drag", path=[[start["x"], start["y"]], [end["x"], end["y"]]], modifiers=_held(given))]
    # The older ones drag from where the pointer is.
    return [action("mouse_down"), action("move", **end), action("mouse_up")]


def _scroll(name: str, given: dict[str, Any]) -> list[Action]:
    known(given, name, "coordinate", "scroll_direction", "scroll_amount", "text", "key")
    direction = given.get("scroll_direction")
    if not isinstance(direction, str) or direction not in _DIRECTIONS:
        raise Malformed(f"scroll_direction must be one of {', '.join(_DIRECTIONS)}")
    amount = int(number(given, "scroll_amount", 0, _MOST_NOTCHES, whole=True))
    dx, dy = (part * amount for part in _DIRECTIONS[direction])
    return [action("scroll", **_place(given, "coordinate"), dx=dx, dy=dy, modifiers=_held(given))]


def _move(name: str, given: dict[str, Any]) -> list[Action]:
    known(given, name, "coordinate")
    return [action("move", **_place(given, "coordinate"))]


def _button(name: str, given: dict[str, Any]) -> list[Action]:
    known(given, name)
    return [action("mouse_down" if name == "left_mouse_down" else "mouse_up")]


def _key(name: str, given: dict[str, Any]) -> list[Action]:
    known(given, name, "text", "repeat")
    if "repeat" in given:
        number(given, "repeat", 1, _MOST_REPEAT, whole=True)
    # Several in a row, with spaces between them, as the command line of xdotool takes them.
    words = _text(given).split() or [_text(given)]
    return [action("key", keys=word, repeat=given.get("repeat")) for word in words]


def _hold(name: str, given: dict[str, Any]) -> list[Action]:
    known(given, name, "text", "duration")
    return [action("hold_key", keys=_text(given), seconds=float(number(given, "duration", 0, _MOST_SECONDS)))]


def _type(name: str, given: dict[str, Any]) -> list[Action]:
    known(given, name, "text")
    return [action("type", text=_text(given))]


def _wait(name: str, given: dict[str, Any]) -> list[Action]:
    known(given, name, "duration")
    return [action("wait", seconds=float(number(given, "duration", 0, _MOST_SECONDS)))]


_ACTIONS: dict[str, Callable[[str, dict[str, Any]], list[Action]]] = {
    **dict.fromkeys(_CLICKS, _click), "left_click_drag": _drag, "scroll": _scroll, "mouse_move": _move, "left_mouse_down": _button, "left_mouse_up": _button,
    "key": _key, "hold_key": _hold, "type": _type, "wait": _wait,
}  # fmt: skip


def _text(given: dict[str, Any]) -> str:
    text = given.get("text")
    if not isinstance(text, str):
        raise Malformed("text must be a string")
    return text


def _held(given: dict[str, Any]) -> str | None:
    """Keys held during a click: `text` in the newer versions, `key` in an older one."""
    held = given.get("text", given.get("key"))
    if held is not None and not isinstance(held, str):
        raise Malformed("the keys to hold must be a string")
    return held or None


def _place(given: dict[str, Any], name: str) -> dict[str, int]:
    """`x` and `y`; nothing when there is no such field."""
    place = given.get(name)
    if place is None:
        return {}
    if not isinstance(place, list) or len(place) != 2 or not all(isinstance(part, int) and not isinstance(part, bool) for part in place):
        raise Malformed(f"{name} must be two whole numbers")
    return {"x": place[0], "y": place[1]}


def _region(region: object) -> tuple[int, int, int, int]:
    if not isinstance(region, list) or len(region) != 4 or not all(isinstance(part, int) and not isinstance(part, bool) and part >= 0 for part in region):
        raise Malformed("region must be four whole numbers: left, top, right, bottom")
    left, top, right, bottom = region
    if left >= right or top >= bottom:
        raise Malformed("region must have left before right and top above bottom")
    return left, top, right, bottom


def answer(call: dict[str, Any], picture: str | None, media_type: str, text: str | None, error: str | None) -> dict[str, Any]:
    """The `tool_result` block. `picture` is base64."""
    content: list[dict[str, Any]] = []
    if text is not None or error is not None:
        content.append({"type": "text", "text": error if error is not None else text})
    if picture is not None:
        content.append({"type": "image", "source": {"type": "base64", "media_type": media_type, "data": picture}})
    return {"type": "tool_result", "tool_use_id": str(call.get("id", "")), "content": content, "is_error": error is not None}
