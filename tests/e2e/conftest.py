"""One stack and one browser for all end-to-end tests. Screenshots and, after a failure, the logs are kept in `test-artifacts/`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.chromium import chromium, sync_driver
from tests.e2e.portal import Portal
from tests.e2e.stack import Stack
from tests.leaks import LeakCounter

ARTIFACTS = Path(__file__).resolve().parents[2] / "test-artifacts"
_FAILED = pytest.StashKey[dict[str, str]]()


@pytest.fixture(scope="package")
def artifacts() -> Path:
    ARTIFACTS.mkdir(exist_ok=True)
    return ARTIFACTS


@pytest.fixture(scope="package")
def host() -> Iterator[LeakCounter]:
    """Counts what the host holds before the stack comes up and after it went down."""
    counter = LeakCounter()
    counter.start()
    yield counter
    counter.check(within=20.0)


@pytest.fixture(scope="package")
def stack(host: LeakCounter, artifacts: Path) -> Iterator[Stack]:
    directory = Path(tempfile.mkdtemp(prefix="tclone-e2e-", dir="/tmp"))
    # The portal's user passes through to its own directories.
    directory.chmod(0o755)
    made = Stack(directory)
    host.own_engine(made.config.data, made.config.run)
    try:
        made.up()
        yield made
    finally:
        made.down()
        for log in (made.config.data / "log").glob("*.log"):
            shutil.copy(log, artifacts / log.name)
        shutil.rmtree(directory)


@pytest.fixture(scope="module", autouse=True)
def emptied(stack: Stack) -> Iterator[None]:
    """No workspace is left to the next file, whose story begins without any: one that failed leaves its own."""
    yield
    if stack.is_up():
        stack.empty()


@pytest.fixture(scope="package")
def browser(host: LeakCounter) -> Iterator[Browser]:
    with sync_driver() as playwright, chromium() as options:
        launched = playwright.chromium.launch(**options)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def portal(stack: Stack, browser: Browser, artifacts: Path) -> Iterator[Portal]:
    made = Portal(stack, browser, artifacts)
    yield made
    made.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if report.failed:
        item.session.stash.setdefault(_FAILED, {}).setdefault(str(item.path), item.name)
        portal = getattr(item, "funcargs", {}).get("portal")
        # Some files have a portal of another kind, without a page.
        if report.when == "call" and isinstance(portal, Portal):
            portal.shot(f"failed-{item.name}")
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    # The tests of a file tell one story on one running stack: what comes after a failed step would only wait for what cannot come.
    failed = item.session.stash.get(_FAILED, {}).get(str(item.path))
    if failed is not None and item.path.is_relative_to(Path(__file__).parent):
        pytest.fail(f"not run: {failed}, an earlier step of this story, failed", pytrace=False)
