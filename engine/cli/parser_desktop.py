"""The grammar of the commands that look at desktops and act in them, and of those that follow what happens."""

from __future__ import annotations

import argparse

from engine.cli import values
from engine.cli.completion import SHELLS
from engine.cli.grammar import Commands, command, json_option, workspace


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    """Add them to the parser."""
    _following(commands)
    _looking(commands)
    _acting(commands)
    shells = command(
        commands, "completion", "print what lets a shell complete tclone's commands", "tclone completion bash > /etc/bash_completion.d/tclone",
        "tclone completion zsh > /usr/local/share/zsh/site-functions/_tclone", "tclone completion fish > ~/.config/fish/completions/tclone.fish",
    )  # fmt: skip
    wanted = shells.add_mutually_exclusive_group(required=True)
    wanted.add_argument("shell", nargs="?", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    wanted.add_argument("--names", choices=("workspaces", "images"), help="print the names of what there is, a line each, as the scripts ask for them")


def _following(commands: "Commands[argparse.ArgumentParser]") -> None:
    attach = command(
        commands, "attach", "join a workspace's terminal multiplexer (tmux); what runs in it lives on, and is forked", "tclone attach lab",
        "tclone attach lab --session build",
    )  # fmt: skip
    attach.add_argument("-u", "--user", default="@desktop", metavar="USER", help="the multiplexer of this user (default: whoever the desktop belongs to)")
    attach.add_argument("--session", type=values.session, metavar="NAME", help="this session, made when it is not there (default: the one used last, or main)")
    attach.add_argument("-r", "--read-only", action="store_true", help="only look")
    workspace(attach)

    events = command(
        commands, "events", "print what happened to workspaces since the engine started", "tclone events", "tclone events -f desk", "tclone events -f --json",
    )  # fmt: skip
    events.add_argument("workspace", nargs="?", type=values.reference, metavar="WS", help="only of this workspace")
    events.add_argument("-f", "--follow", action="store_true", help="go on until Ctrl-C")
    events.add_argument("-n", "--tail", type=values.positive, metavar="N", help="start with the last N")
    json_option(events)


def _looking(commands: "Commands[argparse.ArgumentParser]") -> None:
    shot = command(
        commands, "screenshot", "take a picture of a desktop's screen", "tclone screenshot desk -o desk.png", "tclone screenshot desk --width 640 --format jpeg > small.jpg",
    )  # fmt: skip
    shot.add_argument("-o", "--output", metavar="FILE", help="write it there (default: to stdout)")
    shot.add_argument("--format", choices=("png", "jpeg", "webp"), help="its kind (default: by the name of FILE, else png)")
    shot.add_argument("--width", type=values.positive, metavar="N", help="at most so many pixels wide")
    shot.add_argument("--region", type=values.region, metavar="L,T,R,B", help="only this part of the screen: left, top, right, bottom")
    shot.add_argument("--settle", type=values.seconds, metavar="S", help="wait until it has come to rest, at most so many seconds")
    workspace(shot)


def _acting(commands: "Commands[argparse.ArgumentParser]") -> None:
    click = command(commands, "click", "click in a desktop", "tclone click desk 640 400", "tclone click desk 640 400 --button right --modifiers ctrl")
    workspace(click)
    click.add_argument("x", type=values.natural, metavar="X", help="pixels from the left")
    click.add_argument("y", type=values.natural, metavar="Y", help="pixels from the top")
    click.add_argument("--button", choices=("left", "middle", "right", "back", "forward"), default="left", help="left, middle, right, back, forward (default: left)")
    click.add_argument("--count", type=int, choices=(1, 2, 3), default=1, help="2 is a double click")
    click.add_argument("--modifiers", metavar="KEYS", help="hold these meanwhile, as ctrl+shift")

    typed = command(commands, "type", "type a text into a desktop", "tclone type desk 'echo hello'", "tclone type desk - < letter.txt")
    workspace(typed)
    typed.add_argument("text", metavar="TEXT", help="the text, or - for what comes by stdin, which no list of processes shows")

    key = command(commands, "key", "press keys in a desktop", "tclone key desk Return", "tclone key desk ctrl+a Delete")
    workspace(key)
    key.add_argument("keys", nargs="+", metavar="KEYS", help="one after the other: Return, ctrl+c, Page_Down, U+20AC")
