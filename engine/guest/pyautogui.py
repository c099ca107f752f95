"""Mouse and keyboard of this desktop under pyautogui's names, for commands of the OSWorld server.

The server's side of the actions does the work: text arrives exactly (pyautogui types `<` as `>`, and nothing that is not on a US keyboard), a person who
holds the desktop is respected, and every action is on record. What pyautogui has beside mouse, keys and screenshots is not here.
"""

import base64
import collections
import contextlib
import io
import json
import math
import os
import socket
import time

FAILSAFE = True
PAUSE = 0.1
MINIMUM_DURATION = 0.1
MINIMUM_SLEEP = 0.05
LEFT, MIDDLE, RIGHT, PRIMARY, SECONDARY = "left", "middle", "right", "primary", "secondary"
_STEP_SECONDS = 0.1
_MOST_NOTCHES = 100
_MOST_ACTIONS = 64
_MOST_TEXT = 10_000
_TYPED_MS = 3.0

Point = collections.namedtuple("Point", "x y")
Size = collections.namedtuple("Size", "width height")


class PyAutoGUIException(Exception):
    """The desktop did not take what was asked; says why."""


class FailSafeException(PyAutoGUIException):
    """Never raised here: a corner of the screen is a place like others."""


class ImageNotFoundException(PyAutoGUIException):
    """Never raised here: nothing looks for pictures."""


_BUTTONS = {1: "left", 2: "middle", 3: "right", "primary": "left", "secondary": "right", "left": "left", "middle": "middle", "right": "right"}
# Names of pyautogui that X and the engine do not know by the same name.
_KEYS = {
    "add": "KP_Add", "subtract": "KP_Subtract", "multiply": "KP_Multiply", "divide": "KP_Divide", "decimal": "KP_Decimal", "separator": "KP_Separator",
    "optionleft": "alt", "optionright": "altright", "prntscrn": "print", "prtscr": "print", "nexttrack": "XF86AudioNext", "prevtrack": "XF86AudioPrev",
    "stop": "XF86AudioStop", "browserhome": "XF86HomePage", "browserrefresh": "XF86Refresh", "browsersearch": "XF86Search", "+": "plus", " ": "space",
    "\n": "Return", "\r": "Return", "\t": "Tab", "\b": "BackSpace", **{f"num{digit}": f"KP_{digit}" for digit in range(10)},
}  # fmt: skip
KEYBOARD_KEYS = [
    *("\t\n\r !\"#$%&'()*+,-./0123456789:;<=>?@[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~"), *_KEYS, *(f"f{number}" for number in range(1, 25)),
    "alt", "altleft", "altright", "apps", "backspace", "capslock", "command", "ctrl", "ctrlleft", "ctrlright", "del", "delete", "down", "end", "enter", "esc", "escape",
    "home", "insert", "left", "numlock", "option", "pagedown", "pageup", "pause", "pgdn", "pgup", "playpause", "print", "printscreen", "prtsc", "return", "right",
    "scrolllock", "shift", "shiftleft", "shiftright", "space", "tab", "up", "volumedown", "volumemute", "volumeup", "win", "winleft", "winright",
]  # fmt: skip
KEY_NAMES = KEYBOARD_KEYS

_screen = None


def _ask(question):
    name = os.environ.get("TCLONE_INPUT")
    if not name:
        raise PyAutoGUIException("only commands of the OSWorld server reach the desktop by this module; in a terminal use xdotool")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect("\0" + name)
        with connection.makefile("rwb") as file:
            file.write(json.dumps(question).encode() + b"\n")
            file.flush()
            line = file.readline()
    if not line:
        raise PyAutoGUIException("the OSWorld server has gone")
    answer = json.loads(line)
    if "error" in answer:
        raise PyAutoGUIException(answer["error"])
    return answer


def _do(*actions):
    """Have actions carried out in order; their results."""
    global _screen
    results = []
    for start in range(0, len(actions), _MOST_ACTIONS):
        answer = _ask({"actions": list(actions[start : start + _MOST_ACTIONS])})
        _screen = answer["screen"]
        results += answer["results"]
    return results


def _pause(wanted):
    if wanted and PAUSE:
        time.sleep(PAUSE)


def position(x=None, y=None):
    """Where the pointer is, or (x, y) with what is given."""
    found = _do({"action": "cursor"})[-1]["cursor"]
    return Point(found[0] if x is None else int(x), found[1] if y is None else int(y))


def size():
    """Of the screen."""
    if _screen is None:
        position()
    return Size(*_screen)


resolution = size


def onScreen(x, y=None):
    if y is None:
        x, y = x
    width, height = size()
    return 0 <= x < width and 0 <= y < height


def _place(x, y):
    """A place on the screen: what is outside becomes the nearest inside, as an X server has it."""
    if isinstance(x, (tuple, list)):
        x, y = (x[0] + x[2] / 2, x[1] + x[3] / 2) if len(x) == 4 else x
    if x is None or y is None:
        x, y = position(x, y)
    width, height = size()
    return min(max(int(x), 0), width - 1), min(max(int(y), 0), height - 1)


def _button(name):
    try:
        return _BUTTONS[name.lower() if isinstance(name, str) else name]
    except KeyError:
        raise PyAutoGUIException(f"button must be left, middle or right, not {name!r}") from None


def _key(name):
    text = str(name)
    return _KEYS.get(text) or _KEYS.get(text.lower()) or (text if len(text) == 1 else text.lower())


def _way(x, y, duration, tween):
    """The places between here and there, a tenth of a second apart."""
    if duration <= MINIMUM_DURATION:
        return [(x, y)]
    begun = position()
    steps = max(1, round(duration / _STEP_SECONDS))
    places = []
    for step in range(1, steps + 1):
        part = tween(step / steps) if step < steps else 1.0
        places.append(_place(begun.x + (x - begun.x) * part, begun.y + (y - begun.y) * part))
    return places


def _moves(x, y, duration, tween):
    """The actions that take the pointer there within that time."""
    places = _way(x, y, duration, tween)
    actions = []
    for place in places:
        actions.append({"action": "move", "x": place[0], "y": place[1]})
        if len(places) > 1:
            actions.append({"action": "wait", "seconds": duration / len(places)})
    return actions


def linear(n):
    return n


def moveTo(x=None, y=None, duration=0.0, tween=linear, logScreenshot=False, **more):
    """Move the pointer."""
    x, y = _place(x, y)
    _do(*_moves(x, y, duration, tween))
    _pause(more.get("_pause", True))


def moveRel(xOffset=None, yOffset=None, duration=0.0, tween=linear, logScreenshot=False, **more):
    if isinstance(xOffset, (tuple, list)):
        xOffset, yOffset = xOffset
    here = position()
    moveTo(here.x + (xOffset or 0), here.y + (yOffset or 0), duration, tween, **more)


move = moveRel


def dragTo(x=None, y=None, duration=0.0, tween=linear, button=PRIMARY, logScreenshot=False, mouseDownUp=True, **more):
    """Move the pointer with a button pressed; without `mouseDownUp` pressing and releasing it is somebody else's."""
    x, y = _place(x, y)
    actions = _moves(x, y, duration, tween)
    if mouseDownUp:
        down, up = ({"action": action, "button": _button(button)} for action in ("mouse_down", "mouse_up"))
        # Nearly there first: programs take a first step for the beginning of a drag.
        actions = [down, *actions, {"action": "wait", "seconds": 0.05}, up]
    _do(*actions)
    _pause(more.get("_pause", True))


def dragRel(xOffset=0, yOffset=0, duration=0.0, tween=linear, button=PRIMARY, logScreenshot=False, mouseDownUp=True, **more):
    if isinstance(xOffset, (tuple, list)):
        xOffset, yOffset = xOffset
    here = position()
    dragTo(here.x + (xOffset or 0), here.y + (yOffset or 0), duration, tween, button, mouseDownUp=mouseDownUp, **more)


drag = dragRel


def _there(x, y, duration, tween):
    """As fields of an action; none without a place. A way that takes time is gone first."""
    if x is None and y is None:
        return {}
    x, y = _place(x, y)
    if duration > MINIMUM_DURATION:
        moveTo(x, y, duration, tween, _pause=False)
    return {"x": x, "y": y}


def click(x=None, y=None, clicks=1, interval=0.0, button=PRIMARY, duration=0.0, tween=linear, logScreenshot=None, **more):
    there = _there(x, y, duration, tween)
    actions = []
    # Together they are a double or triple click; with time between them each is one of its own.
    at_once = 1 if interval else 3
    while clicks > 0:
        actions.append({"action": "click", "button": _button(button), "count": min(clicks, at_once), **there})
        clicks -= at_once
        if interval:
            actions.append({"action": "wait", "seconds": interval})
    _do(*actions)
    _pause(more.get("_pause", True))


def leftClick(x=None, y=None, interval=0.0, duration=0.0, tween=linear, logScreenshot=None, **more):
    click(x, y, 1, interval, LEFT, duration, tween, **more)


def rightClick(x=None, y=None, interval=0.0, duration=0.0, tween=linear, logScreenshot=None, **more):
    click(x, y, 1, interval, RIGHT, duration, tween, **more)


def middleClick(x=None, y=None, interval=0.0, duration=0.0, tween=linear, logScreenshot=None, **more):
    click(x, y, 1, interval, MIDDLE, duration, tween, **more)


def doubleClick(x=None, y=None, interval=0.0, button=LEFT, duration=0.0, tween=linear, logScreenshot=None, **more):
    click(x, y, 2, interval, button, duration, tween, **more)


def tripleClick(x=None, y=None, interval=0.0, button=LEFT, duration=0.0, tween=linear, logScreenshot=None, **more):
    click(x, y, 3, interval, button, duration, tween, **more)


def mouseDown(x=None, y=None, button=PRIMARY, duration=0.0, tween=linear, logScreenshot=None, **more):
    _do({"action": "mouse_down", "button": _button(button), **_there(x, y, duration, tween)})
    _pause(more.get("_pause", True))


def mouseUp(x=None, y=None, button=PRIMARY, duration=0.0, tween=linear, logScreenshot=None, **more):
    _do({"action": "mouse_up", "button": _button(button), **_there(x, y, duration, tween)})
    _pause(more.get("_pause", True))


def _scroll(field, notches, x, y, more):
    there = _there(x, y, 0.0, linear)
    notches, actions = int(notches), []
    while notches:
        part = min(max(notches, -_MOST_NOTCHES), _MOST_NOTCHES)
        actions.append({"action": "scroll", field: part, **there})
        notches -= part
    if actions:
        _do(*actions)
    _pause(more.get("_pause", True))


def scroll(clicks, x=None, y=None, logScreenshot=None, **more):
    """Notches of the wheel; positive is up."""
    _scroll("dy", -clicks, x, y, more)


vscroll = scroll


def hscroll(clicks, x=None, y=None, logScreenshot=None, **more):
    """Positive is right."""
    _scroll("dx", clicks, x, y, more)


def write(message, interval=0.0, logScreenshot=None, **more):
    """Type a text, or press the keys of a list."""
    delay = interval * 1000 if interval else _TYPED_MS
    if isinstance(message, str):
        parts = [message[start : start + _MOST_TEXT] for start in range(0, len(message), _MOST_TEXT)]
        _do(*({"action": "type", "text": part, "delay_ms": min(delay, 1000.0)} for part in parts))
    else:
        for part in message:
            _do({"action": "key", "keys": _key(part)})
            time.sleep(interval)
    _pause(more.get("_pause", True))


typewrite = write


def press(keys, presses=1, interval=0.0, logScreenshot=None, **more):
    """Press a key, or those of a list, one after the other."""
    names = [keys] if isinstance(keys, str) else list(keys)
    for _ in range(int(presses)):
        _do(*({"action": "key", "keys": _key(name)} for name in names))
        time.sleep(interval)
    _pause(more.get("_pause", True))


def hotkey(*args, interval=0.0, logScreenshot=None, **more):
    """Press keys together."""
    names = list(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else list(args)
    if names:
        _do({"action": "key", "keys": "+".join(_key(name) for name in names)})
    _pause(more.get("_pause", True))


def keyDown(key, logScreenshot=None, **more):
    _do({"action": "key_down", "keys": _key(key)})
    _pause(more.get("_pause", True))


def keyUp(key, logScreenshot=None, **more):
    _do({"action": "key_up", "keys": _key(key)})
    _pause(more.get("_pause", True))


@contextlib.contextmanager
def hold(keys, logScreenshot=None, **more):
    """Keys that are down in the block."""
    names = [keys] if isinstance(keys, str) else list(keys)
    for name in names:
        keyDown(name, _pause=False)
    try:
        yield
    finally:
        for name in reversed(names):
            keyUp(name, _pause=False)
        _pause(more.get("_pause", True))


def isValidKey(key):
    return key in KEYBOARD_KEYS


def screenshot(imageFilename=None, region=None, **more):
    """A picture of the screen without the pointer: saved as PNG under the name, and as an image of Pillow when that is installed here."""
    content = base64.b64decode(_ask({"screenshot": True, "region": list(region) if region else None})["png"])
    if imageFilename:
        with open(imageFilename, "wb") as file:
            file.write(content)
    try:
        from PIL import Image
    except ImportError:
        if imageFilename:
            return None
        raise PyAutoGUIException("a picture as an object needs Pillow in this workspace; with a file name it is saved") from None
    return Image.open(io.BytesIO(content))


def sleep(seconds):
    time.sleep(seconds)


def failSafeCheck():
    """There is no fail-safe corner here."""


# Easing, as pytweening has it: each of them begins slowly; `Out` ends slowly, `InOut` does both.

_LEAPS = ((1.0, 0.0, 0.0), (2.0, 1.5, 0.75), (2.5, 2.25, 0.9375), (math.inf, 2.625, 0.984375))


def _bounce(n):
    """Three leaps, each lower than the one before, told from their end."""
    left = 1 - n
    for end, middle, height in _LEAPS:
        if left < end / 2.75:
            return 1 - (7.5625 * (left - middle / 2.75) ** 2 + height)
    raise AssertionError("unreachable: the last leap has no end")


_BEGINNINGS = {
    "Quad": lambda n: n**2,
    "Cubic": lambda n: n**3,
    "Quart": lambda n: n**4,
    "Quint": lambda n: n**5,
    "Sine": lambda n: 1 - math.cos(n * math.pi / 2),
    "Expo": lambda n: 0.0 if n == 0 else 2 ** (10 * (n - 1)),
    "Circ": lambda n: 1 - math.sqrt(1 - n * n),
    "Back": lambda n: n * n * (2.70158 * n - 1.70158),
    "Elastic": lambda n: 1 - (2 ** (-10 * (1 - n)) * math.sin(((1 - n) - 0.075) * 2 * math.pi / 0.3) + 1),
    "Bounce": _bounce,
}


def _easings():
    for name, begin in _BEGINNINGS.items():
        yield f"easeIn{name}", begin
        yield f"easeOut{name}", lambda n, begin=begin: 1 - begin(1 - n)
        yield f"easeInOut{name}", lambda n, begin=begin: begin(2 * n) / 2 if n < 0.5 else 1 - begin(2 - 2 * n) / 2


globals().update(_easings())
