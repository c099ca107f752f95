"""The loopback ports of workspaces that have an OSWorld server: each connection goes to that workspace's application."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from engine.network.fdclient import FdClient
from engine.network.ports import FACE
from portal.listeners import Listeners
from portal.loopback import Loopback

_SHUTDOWN_SECONDS = 1.0

Application = Callable[[str], web.Application]
# Workspace, host port: another port is another server.
Key = tuple[str, int]


class Faces:
    """Keeps what listens equal to what the workspaces have; told of them by housekeeping (portal.housekeeping.Keeper)."""

    def __init__(self, descriptors: Callable[[Callable[[], None]], FdClient], application: Application) -> None:
        self._application = application
        self._wanted: dict[str, int] = {}
        self._listeners: Listeners[Key, Loopback] = Listeners(self._make, lambda key: self._descriptors.listener(key[0], FACE))
        self._descriptors = descriptors(self._listeners.engine_lost)

    def start(self) -> None:
        self._listeners.start()

    async def close(self) -> None:
        await self._listeners.close()
        await self._descriptors.close()

    # What housekeeping tells

    async def appeared(self, workspace: dict[str, Any]) -> None:
        port = workspace.get("osworld")
        if port is None or workspace["state"] in ("removing", "gone"):
            await self.gone(workspace["id"])
        else:
            self._wanted[workspace["id"]] = port
            self._want()

    async def gone(self, workspace: str) -> None:
        if self._wanted.pop(workspace, None) is not None:
            self._want()

    async def present(self, workspaces: set[str]) -> None:
        for workspace in [known for known in self._wanted if known not in workspaces]:
            await self.gone(workspace)

    # Inside

    def _want(self) -> None:
        self._listeners.want(set(self._wanted.items()))

    async def _make(self, key: Key, on_dead: Callable[[], None]) -> Loopback:
        runner = web.AppRunner(self._application(key[0]), access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS, handle_signals=False)
        await runner.setup()
        return Loopback(runner, on_dead)
