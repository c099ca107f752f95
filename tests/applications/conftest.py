"""One engine and one image for all applications; each test has a workspace of its own."""

from __future__ import annotations

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
def data() -> Iterator[Path]:
    """A data directory with a short path, which Unix sockets need."""
    directory = Path(tempfile.mkdtemp(prefix="tclone-app-", dir="/tmp"))
    yield directory / "data"
    shutil.rmtree(directory)


@pytest.fixture
async def engine(data: Path, leaks: LeakCounter) -> AsyncIterator[Engine]:
    """A running engine that has the image; everything it made must be gone after the test."""
    variables = {"TCLONE_IMAGES": str(IMAGES)}
    if "TCLONE_CACHE" in os.environ:
        variables["TCLONE_CACHE"] = os.environ["TCLONE_CACHE"]
    made = Engine(data, data.parent / "run", variables)
    leaks.own(data.parent)
    await made.start()
    try:
        async with made.client() as client:
            async for _ in client.build(IMAGE):
                pass
        yield made
    finally:
        await made.remove_everything()
        status = await made.stop()
    assert status == 0


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[EngineClient]:
    async with engine.client() as connected:
        yield connected


@pytest.fixture(scope="session")
def programs() -> bytes:
    """A tar of the programs that run inside."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path in sorted(GUEST.glob("*.py")):
            tar.add(path, path.name)
    return archive.getvalue()
