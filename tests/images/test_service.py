"""Builds are told to everybody who watches the engine, whoever asked for them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from engine import image_build
from engine.config import Config
from engine.errors import Unavailable
from engine.events import Events
from engine.image_service import ImageService
from engine.images import Image, ImageStore

_IMAGE = Image("tiny", "0" * 64, 0.0, 1, ["/bin/true"], {}, "/", None, [])


class Served:
    """The image routes on a socket, and what a watcher has heard."""

    def __init__(self, config: Config) -> None:
        self.events = Events(list)
        self._watcher = self.events.watch(None)
        self._service = ImageService(config, ImageStore(config), set, self.events)
        self.client: aiohttp.ClientSession

    async def __aenter__(self) -> Served:
        app = web.Application()
        app.add_routes([web.post("/{name}/build", self._service.build)])
        self._runner = web.AppRunner(app, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.client = aiohttp.ClientSession(f"http://127.0.0.1:{port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self._runner.cleanup()

    async def heard(self, count: int) -> list[dict[str, Any]]:
        """The data of so many `build` events."""
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(20):
            while len(found) < count:
                event = await self._watcher.queue.get()
                assert event is not None
                if event["type"] == "build":
                    found.append(event["data"])
        return found


async def test_progress_and_outcome_are_events(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def build(name: str, _: Config, progress: Any) -> Image:
        progress("fetch", "41 of 212 packages", 12.34)
        if name == "broken":
            raise Unavailable("no mirror answers; check the network")
        return _IMAGE

    monkeypatch.setattr(image_build, "build", build)
    async with Served(config) as served:
        for name, error in (("tiny", None), ("broken", "no mirror answers; check the network")):
            async with served.client.post(f"/{name}/build") as answer:
                await answer.read()
            begun, ended = await served.heard(2)
            assert begun == {"image": name, "phase": "fetch", "detail": "41 of 212 packages", "elapsed_ms": 12.3, "done": False, "error": None}
            assert (ended["image"], ended["done"], ended["error"]) == (name, error is None, error)
            assert served.events.builds == {}
        async with served.client.post("/Not%20A%20Name/build") as answer:
            await answer.read()
        assert served.events.builds == {} and served.events.watch(None).queue.get_nowait()["builds"] == []  # type: ignore[index]


async def test_a_build_whose_reader_goes_away_has_ended(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    async def build(_: str, __: Config, progress: Any) -> Image:
        progress("fetch", "", 1.0)
        await asyncio.Event().wait()
        return _IMAGE

    monkeypatch.setattr(image_build, "build", build)
    async with Served(config) as served:
        async with served.client.post("/tiny/build") as answer:
            await answer.content.readline()
            # Whoever begins to watch now hears of it.
            later = served.events.watch(None).queue.get_nowait()
            assert later is not None and [state["image"] for state in later["builds"]] == ["tiny"]
        assert [state["error"] is None for state in await served.heard(2)] == [True, False]
        assert served.events.builds == {}


def test_packages_are_counted_with_their_total() -> None:
    heard: list[tuple[str, str]] = []
    progress = image_build._PackageProgress(lambda phase, detail: heard.append((phase, detail)))  # type: ignore[arg-type]
    progress("0 upgraded, 30 newly installed, 0 to remove and 0 not upgraded.")
    for number in range(30):
        progress(f"Get:{number} http://mirror/debian trixie/main amd64 package{number}")
    progress("0 upgraded, 12 newly installed, 0 to remove and 0 not upgraded.")
    for number in range(42):
        progress(f"Unpacking package{number} (1.0) ...")
    assert heard == [("fetch", "1 of 30 packages"), ("fetch", "21 of 30 packages"), ("unpack", "1 of 42 packages"), ("unpack", "21 of 42 packages"), ("unpack", "41 of 42 packages")]
