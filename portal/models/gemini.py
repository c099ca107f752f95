"""Gemini's computer use: functions whose places go from 0 to 1000 over the screen, whatever its size."""

from __future__ import annotations

from typing import Any

from engine.desktop.actions import Action
from portal.errors import Malformed
from portal.models.plan import Plan, action, known, number

# As a picture of 1001 pixels, 0 is the first and 1000 the last pixel of the screen: none is outside.
SIZE = (1001, 1001)
_MOST = 1000
_WAIT_SECONDS = 5.0
_PIXELS_A_NOTCH = 100
_DEFAULT_MAGNITUDE, _MOST_MAGNITUDE = 800, 10_000
_DIRECTIONS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
_PRESSED = {"go_back": "alt+Left", "go_forward": "alt+Right"}
# They need a browser of which this knows nothing: opening one is the harness's part.
_BROWSERS = {"open_web_browser", "search", "navigate"}


def plan(call: dict[str, Any]) -> Plan:
    """Of a function call `{"name","args"}`. Raises Malformed."""
    name, given = call.get("name"), call.get("args", {})
    if not isinstance(name, str) or not isinstance(given, dict):
        raise Malformed("a function call has name and args")
    # What the user has to agree to is asked and answered between the model and its harness.
    given = {key: value for key, value in given.items() if key != "safety_decision"}
    return Plan(_actions(name, given), SIZE)


def _actions(name: str, given: dict[str, Any]) -> list[Action]:
    if name in _PRESSED:
        known(given, name)
        return [action("key", keys=_PRESSED[name])]
    match name:
        case "click_at":
            known(given, name, "x", "y")
            return [action("click", **_place(given))]
        case "hover_at":
            known(given, name, "x", "y")
            return [action("move", **_place(given))]
        case "type_text_at":
            known(given, name, "x", "y", "text", "press_enter", "clear_before_typing")
            cleared = [action("key", keys="ctrl+a"), action("key", keys="BackSpace")] if _switch(given, "clear_before_typing", True) else []
            entered = [action("key", keys="Return")] if _switch(given, "press_enter", False) else []
            return [action("click", **_place(given)), *cleared, action("type", text=given.get("text")), *entered]
        case "scroll_document":
            known(given, name, "direction")
            return [action("scroll", **_wheel(given, _DEFAULT_MAGNITUDE))]
        case "scroll_at":
            known(given, name, "x", "y", "direction", "magnitude")
            magnitude = number(given, "magnitude", 0, _MOST_MAGNITUDE) if "magnitude" in given else _DEFAULT_MAGNITUDE
            return [action("scroll", **_place(given), **_wheel(given, magnitude))]
        case "key_combination":
            known(given, name, "keys")
            return [action("key", keys=given.get("keys"))]
        case "drag_and_drop":
            known(given, name, "x", "y", "destination_x", "destination_y")
            start, end = _place(given), _place(given, "destination_x", "destination_y")
            return [action("drag", path=[[start["x"], start["y"]], [end["x"], end["y"]]])]
        case "wait_5_seconds":
            known(given, name)
            return [action("wait", seconds=_WAIT_SECONDS)]
    if name in _BROWSERS:
        raise Malformed(f"{name} is for a browser, this is a desktop: leave it out of the functions, or carry it out by others")
    raise Malformed(f"no function is called {name[:40]!r}")


def _place(given: dict[str, Any], x: str = "x", y: str = "y") -> dict[str, int]:
    """Clamped to the screen: the model's own arithmetic may end a little outside."""
    return {to: min(_MOST, max(0, round(number(given, name, -_MOST, 2 * _MOST)))) for to, name in (("x", x), ("y", y))}


def _wheel(given: dict[str, Any], magnitude: float) -> dict[str, int]:
    direction = given.get("direction")
    if not isinstance(direction, str) or direction not in _DIRECTIONS:
        raise Malformed(f"direction must be one of {', '.join(_DIRECTIONS)}")
    notches = max(1, round(magnitude / _PIXELS_A_NOTCH)) if magnitude else 0
    dx, dy = (part * notches for part in _DIRECTIONS[direction])
    return {"dx": dx, "dy": dy}


def _switch(given: dict[str, Any], name: str, default: bool) -> bool:
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise Malformed(f"{name} must be true or false")
    return value


def answer(call: dict[str, Any], picture: str, media_type: str, error: str | None) -> dict[str, Any]:
    """The `function_response` with its picture. `picture` is base64."""
    response: dict[str, Any] = {"error": error} if error is not None else {}
    part = {"inline_data": {"mime_type": media_type, "data": picture}}
    return {"function_response": {"name": str(call.get("name", "")), "response": response, "parts": [part]}}
