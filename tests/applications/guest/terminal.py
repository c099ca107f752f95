"""tmux with an editor holding unsaved text, a parallel make under way, a shell with variables and a stopped job, a Python prompt."""

from __future__ import annotations

from application import HOME, expect, main, output, wait_for

_TARGETS = 40
_MAKEFILE = """all: {targets}
t%:
\t@sleep 0.5; echo done $@ >> made
t{held}:
\t@while [ ! -e make-goes-on ]; do sleep 0.1; done; echo done $@ >> made
"""


def _tmux(*words: str) -> str:
    return output("tmux", "-S", str(HOME / "tmux"), *words)


def _type(window: str, text: str, enter: bool = True) -> None:
    _tmux("send-keys", "-t", window, "-l", text)
    if enter:
        _tmux("send-keys", "-t", window, "Enter")


def _screen(window: str) -> str:
    return _tmux("capture-pane", "-p", "-J", "-t", window)


def start() -> None:
    HOME.mkdir(exist_ok=True)
    targets = " ".join(f"t{number}" for number in range(_TARGETS))
    (HOME / "Makefile").write_text(_MAKEFILE.format(targets=targets, held=_TARGETS // 2))
    (HOME / "made").write_text("")
    _tmux("-f", "/dev/null", "new-session", "-d", "-s", "s", "-n", "editor", "-x", "100", "-y", "30", "-c", str(HOME), "vim -u NONE -n note")
    for window, command in {"shell": "bash --norc", "python": "python3 -q", "make": "bash --norc"}.items():
        _tmux("new-window", "-d", "-n", window, "-c", str(HOME), command)
    wait_for("the editor", lambda: "note" in _screen("editor"))
    _type("editor", "iunsaved text", enter=False)
    wait_for("the text", lambda: "unsaved text" in _screen("editor"))
    wait_for("the shell", lambda: "$" in _screen("shell"))
    _type("shell", "answer=41; sleep 100000")
    wait_for("the job's start", lambda: "sleep" in _tmux("display-message", "-p", "-t", "shell", "#{pane_current_command}"))
    _tmux("send-keys", "-t", "shell", "C-z")
    wait_for("the stopped job", lambda: "Stopped" in _screen("shell"))
    wait_for("the prompt", lambda: ">>>" in _screen("python"))
    _type("python", "value = 41; words = ['kept']")
    _type("make", "make -j2; echo make ended $?")
    wait_for("the first targets", lambda: (HOME / "made").read_text().count("done") >= 2)


def _make_has_ended() -> bool:
    return "make ended" in _screen("make").replace("echo make ended", "")


def check(side: str) -> None:
    _type("shell", f"echo {side}-$((answer + 1))-$(jobs -s | wc -l) > shell-mark")
    _type("python", f"open('python-mark', 'w').write(f'{side}-{{value + 1}}-{{words}}')  and None")
    _type("editor", f" of {side}", enter=False)
    _tmux("send-keys", "-t", "editor", "Escape")
    _type("editor", ":w")
    for name, content in _expected(side).items():
        wait_for(f"{name}", lambda file=name, text=content: (HOME / file).read_text().strip() == text)
    expect(not _make_has_ended(), f"make was not under way: {_screen('make')}")
    (HOME / "make-goes-on").touch()
    _type("shell", "kill %1; fg")
    wait_for("the end of the job", lambda: "Terminated" in _screen("shell"))
    wait_for("the end of make", _make_has_ended)
    expect("make ended 0" in _screen("make"), _screen("make"))
    made = (HOME / "made").read_text().split("\n")[:-1]
    expect(sorted(made) == sorted(f"done t{number}" for number in range(_TARGETS)), f"targets made: {made}")


def _expected(side: str) -> dict[str, str]:
    return {"shell-mark": f"{side}-42-1", "python-mark": f"{side}-42-['kept']", "note": f"unsaved text of {side}"}


def verify(side: str) -> None:
    for name, content in _expected(side).items():
        expect((HOME / name).read_text().strip() == content, f"{name}: {(HOME / name).read_text()}")


if __name__ == "__main__":
    main(start, check, verify)
