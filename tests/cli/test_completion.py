"""Completion in the shells themselves, each with the script that is made for it."""

from __future__ import annotations

import asyncio
import os
import select
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.cli import completion, parser
from engine.config import REPO
from tests.cli.conftest import Tclone
from tests.cli.fake_engine import FakeEngine

# zsh completes at a terminal only. What it is about to offer it writes into a file.
_ZSH = [
    "autoload -Uz compinit", "compinit -u -D", "source $PLACE/zsh", "offer() { _main_complete }", "zle -C offered complete-word offer", "bindkey '^T' offered",
    'compadd() { local -a hits; [[ ${@[(I)-[OAD]*]} -eq 0 ]] && { builtin compadd -O hits "$@"; print -l -- $hits >>$PLACE/hits }; builtin compadd "$@" }',
    # The prompt comes when the terminal takes every key as it is.
    "PS1=PRO''MPT",
]  # fmt: skip
_PATIENCE = 60.0


def _at_a_terminal(place: Path, environment: dict[str, str], line: str) -> None:
    """Let zsh complete a line, as if Tab was typed."""
    ours, its = os.openpty()
    process = subprocess.Popen(["zsh", "-f", "-i"], env={**environment, "PLACE": str(place)}, stdin=its, stdout=its, stderr=its, start_new_session=True)
    os.close(its)
    try:
        os.write(ours, "; ".join(_ZSH).encode() + b"\n")
        _read_until(ours, b"PROMPT")
        # What is typed ahead it takes when it has completed.
        os.write(ours, line.encode() + b"\x14\x15print DO''NE\n")
        _read_until(ours, b"DONE")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _read_until(terminal: int, mark: bytes) -> None:
    seen, deadline = b"", time.monotonic() + _PATIENCE
    while mark not in seen:
        ready, _, _ = select.select([terminal], [], [], deadline - time.monotonic())
        assert ready, f"zsh did not come to {mark!r}:\n{seen.decode(errors='replace')}"
        seen += os.read(terminal, 65536)


class Shells:
    """Completes a line in a shell: the words it offers."""

    def __init__(self, place: Path, tclone: Tclone) -> None:
        self._place = place
        bin = place / "bin"
        bin.mkdir()
        command = bin / "tclone"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m engine.cli.main "$@"\n')
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
        self._environment = {**tclone.environment, "PATH": f"{bin}:{os.environ['PATH']}", "PYTHONPATH": str(REPO), "HOME": str(place), "TERM": "dumb"}
        for shell in completion.SHELLS:
            (place / shell).write_text(completion.script(shell, parser.build()))

    async def offers(self, shell: str, line: str) -> list[str]:
        if shell == "bash":
            words = line.split(" ")
            array = " ".join(f"'{word}'" for word in words)
            text = f"source {self._place}/bash; COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; _tclone; printf '%s\\n' \"${{COMPREPLY[@]}}\""
            return (await self._run("bash", "--norc", "-c", text)).split()
        if shell == "fish":
            out = await self._run("fish", "--no-config", "-c", f"source {self._place}/fish; complete -C '{line}'")
            return [row.partition("\t")[0] for row in out.splitlines()]
        hits = self._place / "hits"
        hits.unlink(missing_ok=True)
        await asyncio.to_thread(_at_a_terminal, self._place, self._environment, line)
        return hits.read_text().split() if hits.exists() else []

    async def _run(self, *argv: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *argv, env=self._environment, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, err.decode()
        return out.decode()


@pytest.fixture
def shells(place: Path, tclone: Tclone) -> Shells:
    return Shells(place, tclone)


@pytest.mark.parametrize("shell", completion.SHELLS)
async def test_commands_options_values_and_names(shells: Shells, engine: FakeEngine, shell: str) -> None:
    engine.add("desk")
    engine.add("lab-1")
    assert {"fork", "forget"} & set(await shells.offers(shell, "tclone fo")) == {"fork"}
    assert {"build", "import", "ls", "rm"} <= set(await shells.offers(shell, "tclone image "))
    assert "--copies" in await shells.offers(shell, "tclone fork --co")
    assert {"open", "none"} <= set(await shells.offers(shell, "tclone run --network "))
    assert {"desk", "lab-1"} <= set(await shells.offers(shell, "tclone fork --copies 2 "))
    assert "lab-1" in await shells.offers(shell, "tclone rm desk l")


async def test_without_an_engine_no_names_and_no_noise(shells: Shells) -> None:
    assert await shells.offers("bash", "tclone fork d") == []


async def test_the_command_prints_the_script(tclone: Tclone) -> None:
    for shell in completion.SHELLS:
        done = await tclone("completion", shell)
        assert (done.status, done.err) == (0, "") and done.out == completion.script(shell, parser.build())
    assert (await tclone("completion", "tcsh")).status == 2


def test_what_is_hidden_is_not_offered() -> None:
    found = {command.path: command for command in completion.commands(parser.build())}
    assert all("--supervised" not in option.names for option in found["up"].options)
