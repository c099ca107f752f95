"""The portal of `tests/portal` behind TLS, and a token for it. Blocking calls run in a thread: the portal lives in the test's own loop.

`agent`  an asynchronous client; `blocking(work)` runs `work(client)` with a blocking one
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import tclone
from tclone import aio
from tests.portal.conftest import Client, Portal, config, engine, front, options, plain_config, portal, quick_hashes, token_of
from tests.portal.front import Front

__all__ = ["config", "engine", "front", "options", "plain_config", "portal", "quick_hashes"]

Blocking = Callable[[Callable[[tclone.Client], Any]], Awaitable[Any]]


@pytest.fixture
async def person(portal: Portal) -> Client:
    return await portal.login()


@pytest.fixture
async def reach(portal: Portal, front: Front, person: Client) -> dict[str, Any]:
    """How a client finds the portal: its arguments."""
    token = await token_of(person, "control", "fork")
    return {"url": f"https://tclone.localhost:{front.port}", "token": token, "ca": Path(portal.places.ca_certificate)}


@pytest.fixture
async def agent(reach: dict[str, Any]) -> AsyncIterator[aio.Client]:
    async with aio.Client(**reach, patience=5) as client:
        yield client


@pytest.fixture
async def blocking(reach: dict[str, Any]) -> Blocking:
    def work_with(work: Callable[[tclone.Client], Any]) -> Any:
        with tclone.Client(**reach, patience=5) as client:
            return work(client)

    async def run(work: Callable[[tclone.Client], Any]) -> Any:
        return await asyncio.to_thread(work_with, work)

    return run
