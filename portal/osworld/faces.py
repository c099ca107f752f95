"""Accepts on the loopback ports of workspaces that have an OSWorld server, and hands each connection to that workspace's application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from aiohttp import web

from engine.errors import EngineError
from engine.network.fdclient import FdClient
from engine.network.ports import FACE
from portal.loopback import Loopback

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5
_SHUTDOWN_SECONDS = 1.0

Application = Callable[[str], web.Application]


class Faces:
    """Keeps what listens equal to what the workspaces have; told of them by housekeeping (portal.housekeeping.Keeper)."""

    def __init__(self, descriptors: Callable[[Callable[[], None]], FdClient], application: Application) -> None:
        self._descriptors = descriptors(self._engine_lost)
        self._application = application
        self._faces: dict[tuple[str, int], Loopback] = {}
        self._wanted: dict[str, int] = {}
        self._lost = False
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="osworld")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*(face.close() for face in self._faces.values()))
        self._faces.clear()
        await self._descriptors.close()

    # What housekeeping tells

    async def appeared(self, workspace: dict[str, Any]) -> None:
        port = workspace.get("osworld")
        if port is None or workspace["state"] in ("removing", "gone"):
            await self.gone(workspace["id"])
        elif self._wanted.get(workspace["id"]) != port:
            self._wanted[workspace["id"]] = port
            self._changed.set()

    async def gone(self, workspace: str) -> None:
        if self._wanted.pop(workspace, None) is not None:
            self._changed.set()

    async def present(self, workspaces: set[str]) -> None:
        for workspace in [known for known in self._wanted if known not in workspaces]:
            await self.gone(workspace)

    # Inside

    def _engine_lost(self) -> None:
        self._lost = True
        self._changed.set()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            complete = await self._reconcile()
            try:
                await asyncio.wait_for(self._changed.wait(), None if complete else _RETRY_SECONDS)
            except TimeoutError:
                continue

    async def _reconcile(self) -> bool:
        """False when something has to be tried again."""
        if self._lost:
            self._lost = False
            for face in self._faces.values():
                face.stop_listening()
        wanted = set(self._wanted.items())
        await asyncio.gather(*(self._faces.pop(key).close() for key in self._faces.keys() - wanted))
        for key in wanted - self._faces.keys():
            runner = web.AppRunner(self._application(key[0]), access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS, handle_signals=False)
            await runner.setup()
            self._faces[key] = Loopback(key[0], runner, self._changed.set)
        complete = True
        for face in list(self._faces.values()):
            if face.listening:
                continue
            try:
                face.listen(await self._descriptors.listener(face.workspace, FACE))
            except (EngineError, OSError, TimeoutError) as error:
                log.debug("OSWorld server of %s: %s", face.workspace, error)
                complete = False
        return complete
