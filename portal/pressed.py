"""What one connection has pressed and not released, so that it can be let go of when the connection ends."""

from __future__ import annotations

from typing import Any

from engine.desktop import keysyms
from engine.desktop.actions import MOST_ACTIONS, Action, Button, KeyDown, KeyUp, MouseDown, MouseUp

# More than keyboards have keys: only a program that makes up names comes near.
_MOST = 256


class Pressed:
    """Keys by what they are, under whatever name they were pressed; buttons; in the order in which they went down."""

    def __init__(self) -> None:
        self._keys: dict[tuple[int, ...], str] = {}
        self._buttons: dict[Button, None] = {}

    def note(self, actions: list[Action], results: list[dict[str, Any]]) -> None:
        """A batch and what came of it. After a failure the engine has let go of everything."""
        if not all(result["ok"] for result in results):
            self._keys.clear()
            self._buttons.clear()
            return
        for action in actions:
            if isinstance(action, KeyDown):
                self._keys[_keys(action)] = action.keys
            elif isinstance(action, KeyUp):
                self._keys.pop(_keys(action), None)
            elif isinstance(action, MouseDown):
                self._buttons[action.button] = None
            elif isinstance(action, MouseUp):
                self._buttons.pop(action.button, None)
        while len(self._keys) > _MOST:
            del self._keys[next(iter(self._keys))]

    def releases(self) -> list[list[Action]]:
        """Batches that let go of all of it, the last pressed first."""
        ups: list[Action] = [MouseUp(action="mouse_up", button=button) for button in reversed(self._buttons)]
        ups += [KeyUp(action="key_up", keys=keys) for keys in reversed(self._keys.values())]
        return [ups[start : start + MOST_ACTIONS] for start in range(0, len(ups), MOST_ACTIONS)]


def _keys(action: KeyDown | KeyUp) -> tuple[int, ...]:
    return tuple(keysyms.of_chord(action.keys))
