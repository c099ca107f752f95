"""One engine and one image for all applications; each test has a workspace of its own."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.client import EngineClient
from tests.applications.programs import GUEST
from tests.engine.support import Engine
from tests.leaks import LeakCounter

IMAGE = "applications"
IMAGES = Path(__file__).with_name("images")
PLACE = "/opt/applications"


@pytest.fixture(scope="package")
def host() -> Iterator[LeakCounter]:
    """Counts what the host holds before the engine starts and after it ended."""
    counter = LeakCounter()
    counter.start()
    yield counter
    counter.check(within=20.0)


@pytest.fixture(scope="package")
def engine(host: LeakCounter) -> Iterator[Engine]:
    """A running engine that has the image, for all tests: filling the pool takes longer than most of them."""
    # A short path, which Unix sockets need.
    directory = Path(tempfile.mkdtemp(prefix="tclone-app-", dir="/tmp"))
    variables = {"TCLONE_IMAGES": str(IMAGES)}
    if "TCLONE_CACHE" in os.environ:
        variables["TCLONE_CACHE"] = os.environ["TCLONE_CACHE"]
    made = Engine(directory / "data", directory / "run", variables)
    host.own_engine(made.config.data, made.run)
    try:
        asyncio.run(_start(made))
        yield made
        asyncio.run(made.remove_everything())
    finally:
        status = asyncio.run(made.stop())
        shutil.rmtree(directory)
    assert status == 0


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
