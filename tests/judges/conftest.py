"""The portal's real processes, judged by programs of other people: `judge(name)` is the path of one.

They live in an environment of their own (`scripts/setup judges`, which costs nothing when they are there): one of them needs an older
cryptography than the portal, and what they load into pytest is not for the other tests.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from engine.config import REPO
from tests.stream.stack import Stack, running

JUDGES = Path(os.environ.get("TCLONE_JUDGES", "/var/cache/tclone/judges"))


@pytest_asyncio.fixture
async def stack() -> AsyncIterator[Stack]:
    async with running(workers=1) as made:
        yield made


@pytest.fixture(scope="session")
def judge() -> Callable[[str], Path]:
    setup = subprocess.run([REPO / "scripts/setup", "judges"], capture_output=True, text=True, errors="replace")
    if setup.returncode != 0:
        pytest.fail(f"the judges could not be installed into {JUDGES}: {setup.stderr[-2000:]}")
    return lambda name: JUDGES / "bin" / name
