"""What every test shares: the leak counter, the refusal to run without root where root is needed, and the rule on skips."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.leaks import LeakCounter, become_subreaper

# Tests below these directories make namespaces, mounts and cgroups for real.
_ROOT_DIRECTORIES = {"applications", "engine", "fidelity", "sanitize", "faults", "network", "images", "e2e", "native", "security"}

# Skips that a complete run may have: the start of the test's id, and the reason. Everything else that skips fails the run
# (`--fail-on-skip`), because a test which nobody runs keeps no promise.
ALLOWED_SKIPS: dict[str, str] = {}

_SKIPPED: pytest.StashKey[list[str]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fail-on-skip", action="store_true", help="fail the run when a test outside the allow-list was skipped"
    )


def pytest_configure(config: pytest.Config) -> None:
    become_subreaper()
    config.stash[_SKIPPED] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        area = item.path.relative_to(here).parts[0] if item.path.is_relative_to(here) else ""
        if area in _ROOT_DIRECTORIES:
            item.add_marker(pytest.mark.root)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") is not None and os.geteuid() != 0:
        pytest.fail("needs root: it makes namespaces, mounts and cgroups. Run `make test` as root.", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        if not any(item.nodeid.startswith(start) for start in ALLOWED_SKIPS):
            item.config.stash[_SKIPPED].append(item.nodeid)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--fail-on-skip") and session.config.stash[_SKIPPED] and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = config.stash[_SKIPPED]
    if skipped and config.getoption("--fail-on-skip"):
        terminalreporter.section("unexpected skips (each fails the run)", red=True)
        for name in skipped:
            terminalreporter.line(name)


@pytest.fixture
def leaks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeakCounter]:
    """A started leak counter, checked after the test.

    `leaks.own(path)` adds a data or run directory whose mounts, loop devices, cgroups and namespaces are counted; `leaks.watch(pid)` a
    daemon whose descriptors are counted. Request it *before* the fixtures that make things, so that it is checked after their teardown.
    """
    counter = LeakCounter()
    counter.own(tmp_path_factory.getbasetemp())
    for variable in ("TCLONE_DATA", "TCLONE_RUN"):
        if os.environ.get(variable):
            counter.own(os.environ[variable])
    counter.start()
    yield counter
    counter.check()
