"""OpenAI's computer calls: one `action`, or a batch of `actions`."""

from __future__ import annotations

from typing import Any

from engine.desktop.actions import MOST_ACTIONS, Action
from portal.errors import Malformed
from portal.models.plan import Plan, action, known, number

_BUTTONS = {"left": "left", "right": "right", "wheel": "middle", "middle": "middle", "back": "back", "forward": "forward"}
# Its distances are pixels; a notch of the wheel scrolls about so many.
_PIXELS_A_NOTCH = 100
_MOST_NOTCHES = 50
_FARTHEST = 1_000_000
_WAIT_SECONDS = 1.0


def plan(call: dict[str, Any], size: tuple[int, int] | None) -> Plan:
    """Of a `computer_call`, or of its action alone. Raises Malformed."""
    if call.get("type") == "computer_call":
        given = call.get("actions") if call.get("actions") is not None else [call.get("action")]
    else:
        given = call["actions"] if "actions" in call else [call]
    if not isinstance(given, list) or not 1 <= len(given) <= MOST_ACTIONS or not all(isinstance(one, dict) for one in given):
        raise Malformed(f"a computer_call has `action`, or `actions` with 1 to {MOST_ACTIONS}")
    actions = [made for one in given for made in _actions(one)]
    if len(actions) > MOST_ACTIONS:
        raise Malformed(f"at most {MOST_ACTIONS} actions at once")
    return Plan(actions, size)


def _actions(one: dict[str, Any]) -> list[Action]:
    kind, given = one.get("type"), {name: value for name, value in one.items() if name != "type"}
    match kind:
        case "click":
            known(given, "click", "button", "x", "y", "keys")
            button = given.get("button", "left")
            if not isinstance(button, str) or button not in _BUTTONS:
                raise Malformed(f"button must be one of {', '.join(_BUTTONS)}")
            return [action("click", x=given.get("x"), y=given.get("y"), button=_BUTTONS[button], modifiers=_chord(given))]
        case "double_click":
            known(given, "double_click", "x", "y", "keys")
            return [action("click", x=given.get("x"), y=given.get("y"), count=2, modifiers=_chord(given))]
        case "drag":
            known(given, "drag", "path", "keys")
            return [action("drag", path=_path(given.get("path")), modifiers=_chord(given))]
        case "keypress":
            known(given, "keypress", "keys")
            return [action("key", keys=_chord(given) or "")]
        case "move":
            known(given, "move", "x", "y", "keys")
            return [action("move", x=given.get("x"), y=given.get("y"))]
        case "scroll":
            known(given, "scroll", "x", "y", "scroll_x", "scroll_y", "keys")
            dx, dy = (_notches(given, name) for name in ("scroll_x", "scroll_y"))
            return [action("scroll", x=given.get("x"), y=given.get("y"), dx=dx, dy=dy, modifiers=_chord(given))]
        case "type":
            known(given, "type", "text")
            return [action("type", text=given.get("text"))]
        case "wait":
            known(given, "wait")
            return [action("wait", seconds=_WAIT_SECONDS)]
        case "screenshot":
            known(given, "screenshot")
            return []
    raise Malformed(f"no action has the type {str(kind)[:40]!r}")


def _chord(given: dict[str, Any]) -> str | None:
    keys = given.get("keys")
    if keys is None:
        return None
    if not isinstance(keys, list) or not all(isinstance(key, str) and key for key in keys):
        raise Malformed("keys must be a list of names of keys")
    return "+".join(keys) or None


def _path(path: object) -> list[list[Any]]:
    if not isinstance(path, list) or not all(isinstance(place, dict) for place in path):
        raise Malformed("path must be a list of places with x and y")
    return [[place.get("x"), place.get("y")] for place in path]


def _notches(given: dict[str, Any], name: str) -> int:
    """A distance in pixels as notches of the wheel: at least one for any, a screenful or so at most."""
    if given.get(name) is None:
        return 0
    distance = number(given, name, -_FARTHEST, _FARTHEST)
    notches = min(_MOST_NOTCHES, max(1, round(abs(distance) / _PIXELS_A_NOTCH))) if distance else 0
    return notches if distance > 0 else -notches


def answer(call: dict[str, Any], picture: str, media_type: str) -> dict[str, Any]:
    """The `computer_call_output` item. `picture` is base64. Safety checks are a person's to acknowledge: none is here."""
    output = {"type": "computer_screenshot", "image_url": f"data:{media_type};base64,{picture}"}
    return {"type": "computer_call_output", "call_id": str(call.get("call_id", "")), "output": output, "acknowledged_safety_checks": []}
