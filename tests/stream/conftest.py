"""A real stream server on TLS, with control, engine and descriptor socket played by `world.py`. Parametrised over both event loops where it matters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
import uvloop

from engine.config import Config
from portal.certificates import ensure
from portal.places import Places
from portal.stream.native import LIBRARY
from tests.stream.world import World, config_for


@pytest.fixture(scope="session")
def tls_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The local CA and the certificate, made once."""
    places = Places(config_for(tmp_path_factory.mktemp("tls")))
    ensure(places)
    return places.tls


class NativeLoop(uvloop.Loop):
    """The loop of worlds whose bytes the native relay carries."""

    relay_library = Config.from_environment().libexec / LIBRARY


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Everything runs on both loops, whose transports differ in just what a relay depends on, and with the native relay."""
    if item.path.name == "test_native.py":
        return {"native": NativeLoop}
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop, "native": NativeLoop}


@pytest_asyncio.fixture
async def world(tmp_path: Path, tls_directory: Path) -> AsyncIterator[World]:
    """Started, with workspaces ws-1 and ws-2 ready and a session that may enter both."""
    made = World(tmp_path, tls_directory)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
