"""Ten small tasks in OSWorld's four groups, over what the desktop image has: what is there at first, what to do, and how it is seen to be done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Action = dict[str, Any]
Actions = list[Action]

GROUPS = ("browser", "office", "creative and communication", "several applications")


@dataclass(frozen=True)
class Step:
    """`right` is what a good agent does here, `wrong` what weaker ones do; `reached`: a shell script, run as the desktop's user, that ends with 0 when it worked."""

    right: Actions
    wrong: tuple[Actions, ...]
    reached: str

    def candidates(self) -> list[Actions]:
        return [self.right, *self.wrong]


@dataclass(frozen=True)
class Task:
    """`setup` and `shown` are scripts: the first starts what the task needs, the second ends with 0 when it is on the screen."""

    name: str
    group: str
    instruction: str
    setup: str
    shown: str
    steps: tuple[Step, ...]

    @property
    def done(self) -> str:
        return self.steps[-1].reached


def key(keys: str) -> Action:
    return {"action": "key", "keys": keys}


def text(written: str) -> Action:
    return {"action": "type", "text": written}


def _title(part: str) -> str:
    return f"wmctrl -l | grep -qF -- '{part}'"


def _page(name: str, title: str, body: str) -> str:
    return f"mkdir -p site; cat >site/{name}.html <<'PAGE'\n<!doctype html><title>{title}</title><body style='font: 24px sans-serif'>{body}</body>\nPAGE\n"


def _browser(name: str) -> str:
    return f"setsid -f chromium --new-window file:///home/user/site/{name}.html >/dev/null 2>&1\n"


def _editor(file: str, content: str) -> str:
    return f"printf '%s' '{content}' >{file}; setsid -f mousepad {file} >/dev/null 2>&1\n"


_TERMINAL = "setsid -f xfce4-terminal --title=shell >/dev/null 2>&1\n"
_SAVE = key("ctrl+s")
_EDITOR: Action = {"action": "click", "x": 60, "y": 600}
# A picture of one colour without any library: a PNG by zlib.
_PICTURE = (
    "python3 - <<'CODE'\nimport struct, zlib\n"
    "def chunk(kind, body): return struct.pack('>I', len(body)) + kind + body + struct.pack('>I', zlib.crc32(kind + body))\n"
    "for name, colour in (('a-dawn', (250, 180, 90)), ('b-noon', (90, 180, 250)), ('c-dusk', (80, 60, 140))):\n"
    "    rows = zlib.compress((b'\\0' + bytes(colour) * 320) * 200)\n"
    "    open(f'Pictures/{name}.png', 'wb').write(b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', 320, 200, 8, 2, 0, 0, 0)) + chunk(b'IDAT', rows) + chunk(b'IEND', b''))\nCODE\n"
)

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
        _page("links", "Links", "<a href=news.html>news</a> <a href=archive.html>archive</a> <a href=about.html>about</a>")
        + "".join(_page(name, f"The {name}", name) for name in ("news", "archive", "about")) + _browser("links"),
        _title("Links - "),
        (
            Step([key("Tab"), key("Tab"), key("Return")], ([key("Tab"), key("Return")], [key("Tab"), key("Tab"), key("Tab"), key("Return")], [key("Return")]), _title("The archive")),
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
        "look through pictures", "creative and communication", "Show the third picture of the folder.",
        _PICTURE + "setsid -f ristretto Pictures/a-dawn.png >/dev/null 2>&1\n", _title("a-dawn"),
        (
            Step([key("Page_Down")], ([key("Page_Up")], [key("plus")], [key("Escape")]), _title("b-noon")),
            Step([key("Page_Down")], ([key("Page_Up")], [key("plus")], [key("Escape")]), _title("c-dusk")),
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
        "copy from the browser into the editor", "several applications", "Put the code that the page shows into code.txt and save it.",
        _page("code", "Your code", "<input id=c value=TC-4711 autofocus onfocus='this.select()'>") + _editor("code.txt", "") + "until " + _title("code.txt") + "; do sleep 0.1; done\nwmctrl -r code.txt -e 0,20,420,400,300\n" + _browser("code"),
        _title("Your code"),
        (
            Step([key("ctrl+a"), key("ctrl+c"), {"action": "wait", "seconds": 0.3}], ([key("ctrl+a")], [key("ctrl+x"), text("x"), key("ctrl+a"), key("ctrl+c")], [key("Escape")]),
                 "[ \"$(timeout 5 xclip -o -selection clipboard)\" = TC-4711 ]"),
            # What of the editor is to be seen beside the browser's window.
            Step([_EDITOR, key("ctrl+v"), _SAVE], ([key("ctrl+v"), _SAVE], [_EDITOR, _SAVE], [_EDITOR, text("TC-4771"), _SAVE]),
                 "[ \"$(cat code.txt)\" = TC-4711 ]"),
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
