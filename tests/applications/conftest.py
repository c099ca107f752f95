"""One engine and one image for all applications; each test has a workspace of its own."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine.client import EngineClient
from tests.applications.programs import GUEST
from tests.engine.support import Engine, own_engine

IMAGE = "applications"
IMAGES = Path(__file__).with_name("images")
PLACE = "/opt/applications"


@pytest.fixture(scope="package")
def engine() -> Iterator[Engine]:
    """A running engine that has the image, for all tests: filling the pool takes longer than most of them."""
    with own_engine("tclone-app-", IMAGE, TCLONE_IMAGES=str(IMAGES)) as made:
        yield made


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
