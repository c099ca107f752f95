"""Each fidelity program, checked in the source and in every branch: a workspace runs many of them, so one fork carries all of their state.

The branches go on first and the source last: whatever a branch changed would show in the source.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fidelity import programs
from tests.fidelity.apart import run_apart

pytestmark = [pytest.mark.root, pytest.mark.slow]

_TIMEOUT = 240
# What a fork of a fork must still carry; running every program twice over would only cost time.
_SECOND_GENERATION = ("counter", "events", "files", "memory_private", "memory_shared", "pipes", "process_tree", "signals", "zombies")
# What each of ten generations must still carry.
_DEEP = ("counter", "events", "memory_private", "pipes", "process_tree", "unix_stream")
_DEPTH = 10
# Programs in one workspace: with 30 of them, some of whose parts compute, two busy CPUs still get them ready within half the time allowed.
_GROUP = 30

_HUGE_POOL = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
# As many as memory_hugetlb asks for, 128 MiB.
_HUGE_PAGES = 64


def _run(arguments: list[str]) -> dict:
    """The harness's report."""
    return json.loads(run_apart("tests.fidelity.harness", "run", "--json", *arguments, seconds=_TIMEOUT).splitlines()[-1])


def _groups() -> dict[str, list[str]]:
    """The programs dealt out to workspaces: each runs many at once, so that their states meet, and few enough to be ready in time."""
    names = programs.names()
    count = -(-len(names) // _GROUP)
    return {f"group-{number}": names[number::count] for number in range(count)}


_GROUPS = _groups()


@pytest.fixture(scope="module")
def huge_pages() -> Iterator[None]:
    """Room in the host's pool for what memory_hugetlb holds, which else finds none and checks nothing."""
    before = int(_HUGE_POOL.read_text())
    _HUGE_POOL.write_text(str(before + _HUGE_PAGES))
    yield
    _HUGE_POOL.write_text(str(before))


@pytest.fixture(scope="module")
def reports(huge_pages: None) -> Callable[[str], dict]:
    """The report of a group, made when it is first asked for."""
    return functools.cache(lambda group: _run(["--copies", "2", *_GROUPS[group]]))


@pytest.fixture(scope="module")
def second_generation() -> dict:
    return _run(["--generations", "2", *_SECOND_GENERATION])


@pytest.fixture(scope="module")
def tenth_generation() -> dict:
    return _run(["--generations", str(_DEPTH), *_DEEP])


def _verdicts(report: dict, program: str) -> dict[str, str]:
    return {side: results[program] for side, results in report["results"].items()}


@pytest.mark.timeout(_TIMEOUT + 60)
@pytest.mark.parametrize(("group", "program"), [(group, name) for group, names in _GROUPS.items() for name in names])
def test_state_survives_in_source_and_branches(reports: Callable[[str], dict], group: str, program: str) -> None:
    verdicts = _verdicts(reports(group), program)
    assert len(verdicts) == 3
    assert set(verdicts.values()) == {"pass"}, verdicts


@pytest.mark.timeout(_TIMEOUT + 60)
@pytest.mark.parametrize("program", _SECOND_GENERATION)
def test_state_survives_a_fork_of_a_fork(second_generation: dict, program: str) -> None:
    verdicts = _verdicts(second_generation, program)
    assert len(verdicts) == 3
    assert set(verdicts.values()) == {"pass"}, verdicts


@pytest.mark.timeout(_TIMEOUT + 60)
@pytest.mark.parametrize("program", _DEEP)
def test_state_survives_ten_generations(tenth_generation: dict, program: str) -> None:
    verdicts = _verdicts(tenth_generation, program)
    assert len(verdicts) == 1 + _DEPTH
    assert set(verdicts.values()) == {"pass"}, verdicts


def test_result_names_mode_and_counts(reports: Callable[[str], dict]) -> None:
    group, names = next(iter(_GROUPS.items()))
    report = reports(group)
    done = report["forks"][0]["done"]
    assert done["mode"] == "copy"
    assert done["processes"] > len(names)
    assert done["threads"] > 0 and done["bytes_copied"] > 0
    assert report["forks"][0]["errors"] == {}
