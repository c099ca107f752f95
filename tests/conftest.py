"""What every test shares: the leak counter, the refusal to run without root where root is needed, the rule on skips, and which tests run alone."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import sharing
from tests.leaks import LeakCounter, become_subreaper
from tests.times import Times

# Tests below these directories make namespaces, mounts and cgroups for real.
_ROOT_DIRECTORIES = {"applications", "engine", "fidelity", "sanitize", "faults", "network", "images", "e2e", "native", "security"}

# Skips that a complete run may have: the start of the test's id, and the reason. Everything else that skips fails the run
# (`--fail-on-skip`), because a test which nobody runs keeps no promise.
ALLOWED_SKIPS: dict[str, str] = {}

_SKIPPED: pytest.StashKey[Skipped] = pytest.StashKey()
_TIMES: pytest.StashKey[Times] = pytest.StashKey()
_HOST: pytest.StashKey[LeakCounter] = pytest.StashKey()
_LEFT: pytest.StashKey[str] = pytest.StashKey()
# How long a run's last processes may take to go, in seconds.
_SETTLE_SECONDS = 20.0


class Skipped:
    """Names of the tests that were skipped outside the allow-list. With several processes, their reports come together here."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail") and not any(report.nodeid.startswith(start) for start in ALLOWED_SKIPS):
            self.names.append(report.nodeid)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fail-on-skip", action="store_true", help="fail the run when a test outside the allow-list was skipped"
    )
    parser.addoption(
        "--alone", choices=("no", "only"), help="leave the tests out that are marked `alone`, or run only them (default: run all)"
    )
    parser.addoption("--times", action="store_true", help="tell at the end how long the tests of each directory took, and the longest files")
    parser.addoption(
        "--settle", type=float, default=_SETTLE_SECONDS, metavar="SECONDS", help="how long what a whole run left may take to go (default: %(default)s)"
    )


def pytest_configure(config: pytest.Config) -> None:
    become_subreaper()
    config.stash[_SKIPPED] = Skipped()
    config.pluginmanager.register(config.stash[_SKIPPED])
    if config.getoption("--times"):
        config.stash[_TIMES] = Times()
        config.pluginmanager.register(config.stash[_TIMES])


def _deals_out(config: pytest.Config) -> bool:
    """Whether this process hands the tests to others and runs none itself."""
    return not hasattr(config, "workerinput") and config.getoption("dist", "no") != "no"


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> sharing.Dealing:
    return sharing.Dealing(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    # A test beside others can only count what is recognisably its own. Where the host is ours alone, all that is left of all of them is counted.
    if _deals_out(session.config) and os.environ.get("CI"):
        counter = session.config.stash[_HOST] = LeakCounter(whole_host=True)
        counter.start()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--alone"):
        kinds: dict[bool, list[pytest.Item]] = {True: [], False: []}
        for item in items:
            kinds[(item.get_closest_marker("alone") is not None) == (config.getoption("--alone") == "only")].append(item)
        config.hook.pytest_deselected(items=kinds[False])
        items[:] = kinds[True]
    if config.getoption("dist", "no") != "no" or hasattr(config, "workerinput"):
        items.sort(key=lambda item: sharing.rank(item.nodeid))
    here = Path(__file__).parent
    for item in items:
        area = item.path.relative_to(here).parts[0] if item.path.is_relative_to(here) else ""
        if area in _ROOT_DIRECTORIES:
            item.add_marker(pytest.mark.root)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") is not None and os.geteuid() != 0:
        pytest.fail("needs root: it makes namespaces, mounts and cgroups. Run `make test` as root.", pytrace=False)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if config.getoption("--fail-on-skip") and config.stash[_SKIPPED].names and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if counter := config.stash.get(_HOST, None):
        try:
            counter.check(within=config.getoption("--settle"))
        except AssertionError as error:
            config.stash[_LEFT] = str(error)
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = config.stash[_SKIPPED].names
    if skipped and config.getoption("--fail-on-skip"):
        terminalreporter.section("unexpected skips (each fails the run)", red=True)
        for name in skipped:
            terminalreporter.line(name)
    if times := config.stash.get(_TIMES, None):
        terminalreporter.section("where the time went")
        for line in times.lines():
            terminalreporter.line(line)
    if left := config.stash.get(_LEFT, None):
        terminalreporter.section("left on the host by some test (fails the run)", red=True)
        terminalreporter.line(left)


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


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose path leaves room for the names of Unix sockets, which have 107 bytes in all."""
    with tempfile.TemporaryDirectory(prefix="tclone-s-") as made:
        yield Path(made)
