"""What a command loads before it does anything: its own part of the program, and no other's."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from engine.cli import main
from engine.config import REPO
from tests.cli.conftest import Tclone
from tests.cli.fake_engine import FakeEngine


def test_every_command_has_what_carries_it_out() -> None:
    assert "ls" in main._HANDLERS and "type" in main._HANDLERS
    for name in main._HANDLERS:
        assert inspect.iscoroutinefunction(main._handler(name)), name


@pytest.mark.parametrize("words", [["ls"], ["exec", "desk", "--", "true"], ["click", "desk", "5", "5"], ["type", "desk", "x"]])
async def test_a_command_loads_nothing_that_checks_actions(engine: FakeEngine, tclone: Tclone, words: list[str]) -> None:
    engine.add("desk")
    code = f"import sys; from engine.cli import main; main.main({words!r}); print(*sys.modules, file=sys.stderr)"
    # A process of its own: this one has loaded everything long ago.
    argv = [sys.executable, "-c", code]
    done = await tclone.run(argv)
    loaded = done.err.split()
    assert "engine.client" in loaded and "engine.desktop.actions" not in loaded and "pydantic" not in loaded


def test_help_does_not_load_the_engines_client() -> None:
    argv = [sys.executable, "-c", "import sys; from engine.cli import parser; parser.build(); print(*sys.modules)"]
    loaded = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=True).stdout.split()
    assert "engine.cli.parser" in loaded and "aiohttp" not in loaded and "asyncio" not in loaded
