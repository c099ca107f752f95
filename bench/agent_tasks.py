"""Ten small tasks in OSWorld's four groups, over what the desktop image has: what is there at first, what to do, and how it is seen to be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Action = dict[str, Any]
Actions = list[Action]
Colour = tuple[int, int, int]

COLOURS: dict[str, Colour] = {"white": (255, 255, 255), "black": (0, 0, 0), "red": (200, 20, 40), "green": (20, 140, 60), "blue": (20, 60, 200)}
GROUPS = ("browser", "office", "creative and communication", "several applications")


@dataclass(frozen=True)
class Pixels:
    """What is to be seen on the screen: colours at places, in pixels of the screen, by the names of COLOURS."""

    places: tuple[tuple[int, int, str], ...]


# How an effect is seen: by a shell script, run as the desktop's user, that ends with 0, or by what the screen shows.
Check = str | Pixels


@dataclass(frozen=True)
class Step:
    """`right` is what a good agent does here, `wrong` what weaker ones do; `reached`: whether it worked."""

    right: Actions
    wrong: tuple[Actions, ...]
    reached: Check

    def candidates(self) -> list[Actions]:
        return [self.right, *self.wrong]


@dataclass(frozen=True)
class Task:
    """`setup`, a shell script, starts what the task needs; `shown`: it is on the screen."""

    name: str
    group: str
    instruction: str
    setup: str
    shown: Check
    steps: tuple[Step, ...]

    @property
    def done(self) -> Check:
        return self.steps[-1].reached


def key(keys: str) -> Action:
    return {"action": "key", "keys": keys}


def text(written: str) -> Action:
    return {"action": "type", "text": written}


def click(x: int, y: int) -> Action:
    return {"action": "click", "x": x, "y": y}


def drag(*path: tuple[int, int]) -> Action:
    return {"action": "drag", "path": [list(place) for place in path]}


def _title(part: str) -> str:
    return f"wmctrl -l | grep -qF -- '{part}'"


def _page(name: str, title: str, body: str) -> str:
    return f"mkdir -p site; cat >site/{name}.html <<'PAGE'\n<!doctype html><title>{title}</title><body style='font: 24px sans-serif'>{body}</body>\nPAGE\n"


def _browser(name: str) -> str:
    return f"setsid -f chromium --new-window file:///home/user/site/{name}.html >/dev/null 2>&1\n"


def _whole_screen(name: str) -> str:
    """The page alone: its places are the screen's."""
    return f"setsid -f chromium --kiosk file:///home/user/site/{name}.html >/dev/null 2>&1\n"


def _box(x: int, y: int, width: int, height: int, colour: str) -> str:
    """The style of a part of a page with a place of its own."""
    red, green, blue = COLOURS[colour]
    return f"position:absolute; left:{x}px; top:{y}px; width:{width}px; height:{height}px; background:rgb({red},{green},{blue})"


def _editor(file: str, content: str) -> str:
    return f"printf '%s' '{content}' >{file}; setsid -f mousepad {file} >/dev/null 2>&1\n"


_TERMINAL = "setsid -f xfce4-terminal --title=shell >/dev/null 2>&1\n"
_SAVE = key("ctrl+s")

# Three links to a page each, whose colour is that of the link.
_TOPICS = (("news", "blue", 100), ("archive", "green", 300), ("about", "red", 500))
_LINKS = "".join(f"<a href={name}.html style=\"{_box(200, y, 400, 100, colour)}\">{name}</a>" for name, colour, y in _TOPICS)

# A box of paints above a sheet; the strip beside them shows the paint that was chosen last, black at first.
_PAINTS = (("red", 100), ("green", 250), ("blue", 400))
_SHEET = "".join(f"<button style=\"{_box(x, 20, 100, 60, colour)}\" onclick=\"chosen(this)\"></button>" for colour, x in _PAINTS) + (
    f"<div id=paint style=\"{_box(600, 20, 200, 60, 'black')}\"></div>"
    f"<canvas id=sheet width=1000 height=600 style=\"{_box(100, 120, 1000, 600, 'white')}; outline:2px solid black\"></canvas><script>"
    "const pen = sheet.getContext('2d'); pen.lineWidth = 40; pen.lineCap = 'round';"
    "function chosen(button) { pen.strokeStyle = paint.style.background = button.style.background }"
    "let from = null; const at = event => [event.offsetX, event.offsetY];"
    "sheet.onmousedown = event => { from = at(event) }; document.onmouseup = () => { from = null };"
    "sheet.onmousemove = event => { if (!from) return; pen.beginPath(); pen.moveTo(...from); from = at(event); pen.lineTo(...from); pen.stroke() };"
    "</script>"
)
_BAR = (200, 420), (700, 420)

TASKS = (
    Task(
        "find the price list", "browser", "Open the page prices.html, which lies beside the page that is shown.",
        _page("index", "Shop", "Welcome. The price list is at prices.html.") + _page("prices", "Prices 2026", "Tea 3, coffee 4") + _browser("index"),
        _title("Shop"),
        (
            Step([key("ctrl+l"), text("file:///home/user/site/prices.html\n")],
                 ([key("F5")], [key("ctrl+l"), text("file:///home/user/site/price.html\n")], [key("ctrl+t")]), _title("Prices 2026")),
        ),
    ),
    Task(
        "fill in a form", "browser", "Enter Anna as the name and 7 as the number, then send the form.",
        _page("form", "empty form", "<form onsubmit=\"document.title = 'sent ' + n.value + ' ' + k.value; return false\">"
              "<input id=n autofocus oninput=\"document.title = 'name ' + n.value\"> <input id=k oninput=\"document.title = 'number ' + k.value\"> <button>Send</button></form>") + _browser("form"),
        _title("empty form"),
        (
            Step([text("Anna")], ([text("Ana")], [key("Tab"), text("Anna")], [key("Return")]), _title("name Anna - ")),
            Step([key("Tab"), text("7")], ([text("7")], [key("shift+Tab"), text("7")], [key("Return")]), _title("number 7 - ")),
            Step([key("Return")], ([key("Escape")], [key("Tab")], [text("7")]), _title("sent Anna 7")),
        ),
    ),
    Task(
        "follow the second link", "browser", "Follow the link to the archive.",
        _page("links", "Links", _LINKS) + "".join(_page(name, f"The {name}", f"<div style='{_box(0, 0, 1280, 800, colour)}'>{name}</div>") for name, colour, _ in _TOPICS) + _whole_screen("links"),
        Pixels(((500, 120, "blue"), (500, 320, "green"), (500, 520, "red"), (1000, 320, "white"))),
        (
            Step([click(400, 350)], ([click(400, 150)], [click(400, 550)], [click(400, 250)]), Pixels(((1000, 320, "green"), (500, 520, "green")))),
        ),
    ),
    Task(
        "write a letter", "office", "Write `Dear Ben,` and below it `see you on Friday.` and save the letter.",
        _editor("letter.txt", ""), _title("letter.txt"),
        (
            Step([text("Dear Ben,\n"), _SAVE], ([text("Dear Ken,\n"), _SAVE], [text("Dear Ben\n"), _SAVE], [_SAVE]), "[ \"$(cat letter.txt)\" = 'Dear Ben,' ]"),
            Step([text("see you on Friday."), _SAVE], ([text("see you on Monday."), _SAVE], [key("ctrl+Home"), text("see you on Friday."), _SAVE], [key("ctrl+z"), _SAVE]),
                 "[ \"$(cat letter.txt)\" = \"$(printf 'Dear Ben,\\nsee you on Friday.')\" ]"),
        ),
    ),
    Task(
        "strike out a line", "office", "Remove the second line, and only it.",
        _editor("notes.txt", "first\nsecond\nthird\n"), _title("notes.txt"),
        (
            Step([key("ctrl+Home"), key("Down"), key("shift+Down"), key("Delete"), _SAVE],
                 ([key("ctrl+Home"), key("shift+Down"), key("Delete"), _SAVE], [key("ctrl+a"), key("Delete"), _SAVE], [key("ctrl+End"), key("BackSpace"), _SAVE]),
                 "[ \"$(cat notes.txt)\" = \"$(printf 'first\\nthird')\" ]"),
        ),
    ),
    Task(
        "add up a table", "office", "Add a line `total,42` at the end of the table.",
        _editor("table.csv", "tea,12\ncoffee,30\n"), _title("table.csv"),
        (
            Step([key("ctrl+End"), text("total,42\n"), _SAVE], ([key("ctrl+End"), text("total,32\n"), _SAVE], [key("ctrl+Home"), text("total,42\n"), _SAVE], [_SAVE]),
                 "[ \"$(cat table.csv)\" = \"$(printf 'tea,12\\ncoffee,30\\ntotal,42')\" ]"),
        ),
    ),
    Task(
        "draw a picture", "creative and communication", "Draw a red bar across the sheet from its left half to its right half, at half of its height.",
        _page("sheet", "Sheet", _SHEET) + _whole_screen("sheet"),
        Pixels(((150, 50, "red"), (450, 50, "blue"), (700, 50, "black"), (600, 420, "white"))),
        (
            Step([click(150, 50)], ([click(300, 50)], [click(450, 50)], [click(220, 50)]), Pixels(((700, 50, "red"), (600, 420, "white")))),
            Step([drag(*_BAR)], ([drag((200, 420), (300, 420))], [click(200, 420), click(700, 420)], [drag((200, 620), (700, 620))]),
                 Pixels(((250, 420, "red"), (450, 420, "red"), (650, 420, "red"), (450, 350, "white"), (450, 490, "white")))),
        ),
    ),
    Task(
        "send a message", "creative and communication", "Send `on my way` to ben with the program ./send, which takes name and message.",
        "cat >send <<'CODE'\n#!/bin/sh\nprintf '%s: %s\\n' \"$1\" \"$2\" >>sent\nCODE\nchmod +x send\n" + _TERMINAL, _title("shell"),
        (
            Step([text("./send ben 'on my way'\n")], ([text("./send ben on my way\n")], [text("send ben 'on my way'\n")], [text("./send 'on my way' ben\n")]), "[ \"$(cat sent)\" = 'ben: on my way' ]"),
        ),
    ),
    Task(
        "open what a file names", "several applications", "The file address names a page: find it out with the terminal, and open that page from there in the browser.",
        _page("prices", "Prices 2026", "Tea 3, coffee 4") + "printf prices.html >address\n" + _TERMINAL, _title("shell"),
        (
            Step([text("cat address | tee found\n")], ([text("cat adress\n")], [text("cat found\n")], [text("ls\n")]), "[ \"$(cat found)\" = prices.html ]"),
            Step([text("chromium file:///home/user/site/$(cat found) >/dev/null 2>&1 &\n"), {"action": "wait", "seconds": 3.0}],
                 ([text("chromium $(cat found) >/dev/null 2>&1 &\n")], [text("cat site/$(cat found)\n")], [text("mousepad site/$(cat found) &\n")]), _title("Prices 2026")),
        ),
    ),
    Task(
        "list files and open the list", "several applications", "Write the names of the files in Documents into list.txt with the terminal, and open that in the editor.",
        "touch Documents/one Documents/two\n" + _TERMINAL, _title("shell"),
        (
            Step([text("ls Documents >list.txt\n")], ([text("ls >list.txt\n")], [text("ls Documents\n")], [text("ls Document >list.txt\n")]), "[ \"$(cat list.txt)\" = \"$(printf 'one\\ntwo')\" ]"),
            Step([text("mousepad list.txt\n"), {"action": "wait", "seconds": 1.0}], ([text("cat list.txt\n")], [text("mousepad\n"), {"action": "wait", "seconds": 1.0}], [text("exit\n")]), _title("list.txt - Mousepad")),
        ),
    ),
)  # fmt: skip


def choose(wanted: list[str]) -> list[Task]:
    """Tasks whose name or group contains one of `wanted`; all when it is empty."""
    return [task for task in TASKS if not wanted or any(word in task.name or word in task.group for word in wanted)]
