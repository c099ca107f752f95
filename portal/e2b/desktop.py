"""What E2B's desktop SDK has done by programs inside (`xdotool click 1`, `scrot --pointer FILE`), recognised word by word and done by the engine.

So input is exact in every layout, refused while a person has control, and in the audit log; and images need neither of these programs.
The SDK also starts a display and streams it; here a desktop has one already, so it is told that all went well. Any other command runs as it is.
"""

from __future__ import annotations

import re
import shlex
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from engine.desktop.actions import Action
from engine.errors import EngineError
from portal import audit, pieces
from portal.api.actions import Actions, succeeded
from portal.e2b.running import Wanted
from portal.errors import Held, PortalError, TooMany
from portal.inside import Inside
from portal.models.plan import action_of
from portal.node import Node
from portal.routes import Call

_SHELL = ["/bin/bash", "-l", "-c"]
# The SDK's `launch`. Images need not have that program, which does the same as GLib's with an application's file.
_LAUNCH = """
command -v gtk-launch >/dev/null && exec gtk-launch "$@"
name=${1%.desktop}
shift
for place in "${XDG_DATA_HOME:-$HOME/.local/share}" /usr/local/share /usr/share; do
    [ -f "$place/applications/$name.desktop" ] && exec gio launch "$place/applications/$name.desktop" "$@"
done
echo "gtk-launch: no such application $name" >&2
exit 2
"""
_BUTTONS = {"1": "left", "2": "middle", "3": "right", "8": "back", "9": "forward"}
_WHEEL = {"4": (0, -1), "5": (0, 1), "6": (-1, 0), "7": (1, 0)}
_LISTENS = re.compile(r'netstat -tuln \| grep ":([0-9]{1,5}) "')
_DISPLAY = re.compile(r":[0-9]{1,2}")
_MOST_STREAMED = 10_000
_MOST_CLICKS = 3


@dataclass(frozen=True)
class Answered:
    """What the client is told that a program did."""

    code: int = 0
    out: bytes = b""
    err: bytes = b""


class Desktop:
    """`answered` looks at every command before it would be run."""

    def __init__(self, actions: Actions, node: Node, inside: Inside) -> None:
        self._actions = actions
        self._node = node
        self._inside = inside
        # Where a client has "started" its stream; it looks for the server before and after.
        self._streamed: OrderedDict[str, None] = OrderedDict()

    async def answered(self, call: Call, wanted: Wanted) -> Answered | None:
        """What to tell the client; None: run it. Raises Held, TooMany."""
        script = wanted.argv[3] if len(wanted.argv) == 4 and wanted.argv[:3] == _SHELL else ""
        if not script or not (await self._node.workspace(call.workspace))["desktop"]:
            return None
        # The SDK's word for the only display there is; the workspace has its own name for it.
        if _DISPLAY.fullmatch(wanted.env.get("DISPLAY", "")):
            del wanted.env["DISPLAY"]
        try:
            words = shlex.split(script)
        except ValueError:
            return None
        try:
            if words[:1] == ["xdotool"]:
                return await self._xdotool(call, words[1:])
            if words[:2] == ["scrot", "--pointer"] and len(words) == 3 and words[2].startswith("/"):
                return await self._shot(call, words[2])
        except (Held, TooMany):
            raise
        except (EngineError, PortalError) as error:
            return Answered(1, err=f"{words[0]}: {error.message}\n".encode())
        if words[:1] == ["gtk-launch"] and len(words) in (2, 3):
            wanted.argv[:] = ["/bin/sh", "-c", _LAUNCH, *words]
            return None
        return self._pretended(call.workspace, script, words)

    async def _xdotool(self, call: Call, words: list[str]) -> Answered | None:
        actions = _planned(words)
        if actions is None:
            return None
        results = succeeded(answer := await self._actions.act_by_key(call, actions, None, None))
        assert len(results) == len(actions), "all of them went well"
        if words == ["getmouselocation"]:
            x, y = answer["cursor"]
            return Answered(out=f"x:{x} y:{y} screen:0 window:0\n".encode())
        return Answered()

    async def _shot(self, call: Call, path: str) -> Answered:
        """The picture, with the pointer, as a file inside."""
        with audit.outcome("screenshot", call.principal, call.workspace):
            shot = await self._node.screenshot(call.workspace, None, pointer=1)
            assert shot is not None, "only a picture that is asked for with a tag can be the one that is known"
            await self._inside.write_file(call.workspace, await self._inside.path(call.workspace, path), pieces.of_whole(shot.content), len(shot.content), True)
        return Answered()

    def _pretended(self, workspace: str, script: str, words: list[str]) -> Answered | None:
        first = words[0] if words else ""
        if first in ("Xvfb", "startxfce4") or (first == "xdpyinfo" and words[1:2] == ["-display"] and len(words) == 3):
            return Answered()
        if script == "pgrep -x x11vnc":
            return Answered(0 if workspace in self._streamed else 1)
        if script == "pkill x11vnc":
            return Answered(0 if self._streamed.pop(workspace, "") is None else 1)
        if first == "x11vnc":
            self._streamed[workspace] = None
            while len(self._streamed) > _MOST_STREAMED:
                self._streamed.popitem(last=False)
            return Answered()
        if script.startswith("cd /opt/noVNC/utils && ./novnc_proxy "):
            return Answered()
        listens = _LISTENS.fullmatch(script)
        if listens is not None and workspace in self._streamed:
            return Answered(out=f"tcp 0 0 0.0.0.0:{listens[1]} 0.0.0.0:* LISTEN\n".encode())
        return None


def _planned(words: list[str]) -> list[Action] | None:
    """The actions of one xdotool command as the SDK sends it; None for others. Raises Malformed."""
    match words:
        case ["click", button]:
            wanted = _clicks(button, 1)
        case ["click", "--repeat", count, button] if _is_number(count):
            wanted = _clicks(button, int(count))
        case ["mousemove", "--sync", x, y] | ["mousemove", x, y] if _is_number(x) and _is_number(y):
            wanted = [{"action": "move", "x": int(x), "y": int(y)}]
        case ["mousedown", button] if button in _BUTTONS:
            wanted = [{"action": "mouse_down", "button": _BUTTONS[button]}]
        case ["mouseup", button] if button in _BUTTONS:
            wanted = [{"action": "mouse_up", "button": _BUTTONS[button]}]
        case ["type", "--delay", delay, "--", text] if _is_number(delay):
            wanted = [{"action": "type", "text": text, "delay_ms": float(min(int(delay), 1000))}]
        case ["key", chord]:
            wanted = [{"action": "key", "keys": chord}]
        case ["getmouselocation"]:
            wanted = [{"action": "cursor"}]
        case _:
            return None
    return None if wanted is None else [action_of(action) for action in wanted]


def _is_number(word: str) -> bool:
    """Of so few digits that Python takes it for one."""
    return word.isdecimal() and len(word) <= 9


def _clicks(button: str, count: int) -> list[dict[str, Any]] | None:
    if button in _WHEEL and 1 <= count <= 100:
        dx, dy = _WHEEL[button]
        return [{"action": "scroll", "dx": dx * count, "dy": dy * count}]
    if button not in _BUTTONS or not 1 <= count <= 64:
        return None
    whole, rest = divmod(count, _MOST_CLICKS)
    return [{"action": "click", "button": _BUTTONS[button], "count": part} for part in [_MOST_CLICKS] * whole + [rest] * bool(rest)]
