"""Each fidelity program, checked in the source and in every branch: one workspace runs them all, so one fork carries all of their state.

The branches go on first and the source last: whatever a branch changed would show in the source.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fidelity import programs

pytestmark = [pytest.mark.root, pytest.mark.slow]

_TIMEOUT = 240
# What a fork of a fork must still carry; running every program twice over would only cost time.
_SECOND_GENERATION = ("counter", "events", "files", "memory_private", "memory_shared", "pipes", "process_tree", "signals", "zombies")


def _run(arguments: list[str]) -> dict:
    """The harness's report. In a process of its own, because it takes a private mount namespace."""
    argv = [sys.executable, "-m", "tests.fidelity.harness", "run", "--json", *arguments]
    done = subprocess.run(
        argv, cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, timeout=_TIMEOUT, check=False, env=os.environ
    )
    assert done.returncode == 0, f"{' '.join(argv)}:\n{done.stderr}\n{done.stdout}"
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def report() -> dict:
    return _run(["--copies", "2", *programs.names()])


@pytest.fixture(scope="module")
def second_generation() -> dict:
    return _run(["--generations", "2", *_SECOND_GENERATION])


def _verdicts(report: dict, program: str) -> dict[str, str]:
    return {side: results[program] for side, results in report["results"].items()}


@pytest.mark.timeout(_TIMEOUT + 60)
@pytest.mark.parametrize("program", programs.names())
def test_state_survives_in_source_and_branches(report: dict, program: str) -> None:
    verdicts = _verdicts(report, program)
    assert len(verdicts) == 3
    assert set(verdicts.values()) == {"pass"}, verdicts


@pytest.mark.timeout(_TIMEOUT + 60)
@pytest.mark.parametrize("program", _SECOND_GENERATION)
def test_state_survives_a_fork_of_a_fork(second_generation: dict, program: str) -> None:
    verdicts = _verdicts(second_generation, program)
    assert len(verdicts) == 3
    assert set(verdicts.values()) == {"pass"}, verdicts


def test_result_names_mode_and_counts(report: dict) -> None:
    done = report["forks"][0]["done"]
    assert done["mode"] == "copy"
    assert done["processes"] > len(programs.names())
    assert done["threads"] > 0 and done["bytes_copied"] > 0
    assert report["forks"][0]["errors"] == {}
