"""Completion for shells, made of the parser: commands and options stand in the script, names of workspaces and images are asked for."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.client import EngineClient

SHELLS = ("bash", "zsh", "fish")
# What a metavar stands for.
_KINDS = {"WS": "workspaces", "SRC": "workspaces", "IMAGE": "images", "FILE": "files", "PATH": "files"}


@dataclass
class Option:
    """`names` as they are typed; `values`: words to choose from, `workspaces`, `images`, `files`, or None when it takes no value."""

    names: list[str]
    help: str
    values: list[str] | str | None


@dataclass
class Command:
    """A command by its path (`image build`), what it takes and what comes below it."""

    path: str
    help: str
    options: list[Option] = field(default_factory=list)
    places: list[list[str] | str] = field(default_factory=list)
    below: dict[str, str] = field(default_factory=dict)


def commands(parser: argparse.ArgumentParser, path: str = "", help: str = "") -> Iterator[Command]:
    """The parser's grammar, from the top."""
    found = Command(path, help)
    under: list[Command] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for choice in action._choices_actions:
                found.below[choice.dest] = choice.help or ""
            for name, child in action.choices.items():
                under += commands(child, f"{path} {name}".strip(), found.below.get(name, ""))
        elif action.help == argparse.SUPPRESS:
            continue
        elif action.option_strings:
            takes = action.nargs != 0
            found.options.append(Option(list(action.option_strings), action.help or "", _values(action) if takes else None))
        else:
            found.places.append(_values(action))
    yield found
    yield from under


def _values(action: argparse.Action) -> list[str] | str:
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    return _KINDS.get(str(action.metavar), "")


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """What the shell has to read."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](list(commands(parser)))


async def names(client: EngineClient, arguments: argparse.Namespace) -> int:
    """What the scripts ask for: a name a line."""
    found = await (client.list() if arguments.names == "workspaces" else client.images())
    for one in found:
        print(one["name"])
    return 0


# bash

_BASH = """\
# Completion of tclone for bash. Made by `tclone completion bash`.
_tclone_words() {
    case $1 in
        workspaces|images) COMPREPLY=($(compgen -W "$(tclone completion --names "$1" 2>/dev/null)" -- "$cur")) ;;
        files) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$cur")) ;;
        '') COMPREPLY=() ;;
        *) COMPREPLY=($(compgen -W "$*" -- "$cur")) ;;
    esac
}
_tclone() {
    local cur=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} path= place=0 index word skip=
    for ((index = 1; index < COMP_CWORD; index++)); do
        word=${COMP_WORDS[index]}
        if [[ -n $skip ]]; then skip=; continue; fi
        if [[ $word == -- ]]; then return; fi
        if [[ $word == -* ]]; then
            case "$path $word" in
@takes@
            esac
            continue
        fi
        case "$path $word" in
@paths@
            *) place=$((place + 1)) ;;
        esac
    done
    case "$path $previous" in
@values@
    esac
    if [[ $cur == -* ]]; then
        case $path in
@options@
        esac
        return
    fi
    case "$path $place" in
@places@
    esac
}
complete -F _tclone tclone
"""


def _bash(found: list[Command]) -> str:
    takes, paths, values, options, places = [], [], [], [], []
    for one in found:
        for name in one.below:
            path = f"{one.path} {name}".strip()
            paths.append(f"            {shlex.quote(f'{one.path} {name}')}) path={shlex.quote(path)}; place=0 ;;")
        for option in one.options:
            if option.values is not None:
                words = "|".join(shlex.quote(f"{one.path} {name}") for name in option.names)
                takes.append(f"                {words}) skip=1 ;;")
                values.append(f"        {words}) _tclone_words {_bash_words(option.values)}; return ;;")
        every = " ".join(name for option in one.options for name in option.names)
        options.append(f"            {shlex.quote(one.path)}) _tclone_words {every} ;;")
        if one.below:
            places.append(f"        {shlex.quote(f'{one.path} 0')}) _tclone_words {' '.join(one.below)} ;;")
        for number, kind in enumerate(one.places):
            # What may be given again and again is the last of them.
            pattern = shlex.quote(f"{one.path} {number}") if number + 1 < len(one.places) else shlex.quote(f"{one.path} ") + "*"
            places.append(f"        {pattern}) _tclone_words {_bash_words(kind)} ;;")
    text = _BASH
    for name, lines in (("takes", takes), ("paths", paths), ("values", values), ("options", options), ("places", places)):
        text = text.replace(f"@{name}@", "\n".join(lines))
    return text


def _bash_words(kind: list[str] | str) -> str:
    return " ".join(map(shlex.quote, kind)) if isinstance(kind, list) else shlex.quote(kind)


# zsh

_ZSH = """\
#compdef tclone
# Completion of tclone for zsh. Made by `tclone completion zsh`.
_tclone_names() {
    local -a found
    # The kind comes last: before it stands what _arguments wants compadd to be told.
    found=(${(f)"$(tclone completion --names $@[-1] 2>/dev/null)"})
    compadd "${@[1,-2]}" -a found
}
@functions@
if [[ $funcstack[1] == _tclone ]]; then _tclone "$@"; else compdef _tclone tclone; fi
"""


def _zsh(found: list[Command]) -> str:
    return _ZSH.replace("@functions@", "\n".join(_zsh_function(one) for one in reversed(found)))


def _zsh_function(one: Command) -> str:
    rules = [_zsh_option(option) for option in one.options]
    lines = [f"{_zsh_name(one.path)}() {{"]
    if one.below:
        entries = " ".join(shlex.quote(f"{name}:{help}") for name, help in one.below.items())
        cases = " ".join(f"{name}) {_zsh_name(f'{one.path} {name}')} ;;" for name in one.below)
        lines += [
            "    local context state state_descr line", "    typeset -A opt_args",
            f"    _arguments -C {' '.join(rules)} '1: :->command' '*:: :->rest'",
            "    case $state in",
            f"        command) local -a found; found=({entries}); _describe command found ;;",
            f"        rest) case $words[1] in {cases} esac ;;",
            "    esac",
        ]  # fmt: skip
    else:
        kinds = [_zsh_kind(kind) for kind in one.places]
        places = [shlex.quote(f"{number}: :{kind}") for number, kind in enumerate(kinds[:-1], 1)] + [shlex.quote(f"*: :{kind}") for kind in kinds[-1:]]
        lines.append(f"    _arguments {' '.join([*rules, *places])}")
    return "\n".join([*lines, "}"])


def _zsh_name(path: str) -> str:
    return "_tclone" + "".join(f"_{word.replace('-', '_')}" for word in path.split())


def _zsh_option(option: Option) -> str:
    help = option.help.replace("[", "(").replace("]", ")").replace(":", "\\:").replace("%%", "%")
    value = "" if option.values is None else f": :{_zsh_kind(option.values)}"
    return " ".join(shlex.quote(f"*{name}[{help}]{value}") for name in option.names)


def _zsh_kind(kind: list[str] | str) -> str:
    if isinstance(kind, list):
        return f"({' '.join(kind)})"
    return {"workspaces": "_tclone_names workspaces", "images": "_tclone_names images", "files": "_files", "": " "}[kind]


# fish

_FISH = """\
# Completion of tclone for fish. Made by `tclone completion fish`.
function __tclone_at
    # Whether the words so far, without options, begin with these and no further command follows.
    set -l words (commandline -opc)[2..-1]
    set -l plain (string match --invert -- '-*' $words)
    for word in $argv
        test (count $plain) -gt 0; and test "$plain[1]" = "$word"; or return 1
        set -e plain[1]
    end
    return 0
end
function __tclone_before
    # The same, when nothing but options comes after them.
    __tclone_at $argv; or return 1
    set -l plain (string match --invert -- '-*' (commandline -opc)[2..-1])
    test (count $plain) -eq (count $argv)
end
complete -c tclone -f
"""


def _fish(found: list[Command]) -> str:
    lines = [_FISH.rstrip()]
    for one in found:
        at, before = (shlex.quote(f"__tclone_{word} {one.path}".strip()) for word in ("at", "before"))
        for name, help in one.below.items():
            lines.append(f"complete -c tclone -n {before} -a {name} -d {shlex.quote(help)}")
        for option in one.options:
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
            value = "" if option.values is None else f" -x -a {_fish_kind(option.values)}" if option.values != "files" else " -r -F"
            lines.append(f"complete -c tclone -n {at} {names}{value} -d {shlex.quote(option.help)}")
        for kind in one.places:
            if kind == "files":
                lines.append(f"complete -c tclone -n {at} -F")
            elif kind:
                lines.append(f"complete -c tclone -n {at} -a {_fish_kind(kind)}")
    return "\n".join(lines) + "\n"


def _fish_kind(kind: list[str] | str) -> str:
    if isinstance(kind, list):
        return shlex.quote(" ".join(kind))
    return shlex.quote(f"(tclone completion --names {kind} 2>/dev/null)" if kind else "")
