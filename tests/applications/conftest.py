"""One engine and one image for all applications; each test has a workspace of its own."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.client import EngineClient
from tests.applications.programs import GUEST
from tests.engine.support import Engine, host_counted, own_engine
from tests.leaks import LeakCounter

IMAGE = "applications"
IMAGES = Path(__file__).with_name("images")
PLACE = "/opt/applications"


@pytest.fixture(scope="package")
def host() -> Iterator[LeakCounter]:
    with host_counted() as counter:
        yield counter


@pytest.fixture(scope="package")
def engine(host: LeakCounter) -> Iterator[Engine]:
    """A running engine that has the image, for all tests: filling the pool takes longer than most of them."""
    with own_engine(host, "tclone-app-", _start, TCLONE_IMAGES=str(IMAGES)) as made:
        yield made


async def _start(engine: Engine) -> None:
    await engine.start()
    async with engine.client() as client:
        async for _ in client.build(IMAGE):
            pass


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[EngineClient]:
    """A client; the workspaces of a test are removed after it."""
    async with engine.client() as connected:
        yield connected
    await engine.remove_everything()


@pytest.fixture(scope="session")
def programs() -> bytes:
    """A tar of the programs that run inside."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path in sorted(GUEST.glob("*.py")):
            tar.add(path, path.name)
    return archive.getvalue()
