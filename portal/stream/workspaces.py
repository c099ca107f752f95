"""The engine's workspaces as the data plane sees them, followed by the engine's events."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from engine.errors import EngineError

_log = logging.getLogger(__name__)

_RETRY_FIRST = 0.1
_RETRY_MOST = 2.0
_ENDED_STATES = frozenset({"removing", "gone"})


class Engine(Protocol):
    """What is used of `engine.client.EngineClient`."""

    def events(self, since: int | None = None) -> AsyncIterator[dict[str, Any]]: ...

    async def stream_token(self, ref: str, role: str = "controller") -> dict[str, Any]: ...


class Descriptors(Protocol):
    """What is used of `engine.network.fdclient.FdClient`."""

    async def connect(self, workspace: str, port: int) -> socket.socket: ...

    async def listener(self, workspace: str, port: int) -> socket.socket: ...

    async def close(self) -> None: ...


class Workspaces:
    """The present workspaces by id. `on_change(present)` is called after each change with the whole table, `on_gone(id)` for each lost one.

    While the engine is down the last known table stays: streams outlive an engine's restart.
    """

    def __init__(
        self,
        engine: Engine,
        on_change: Callable[[dict[str, dict[str, Any]]], Any],
        on_gone: Callable[[str], Any],
    ) -> None:
        self._engine = engine
        self._on_change = on_change
        self._on_gone = on_gone
        self._table: dict[str, dict[str, Any]] = {}
        self._task: asyncio.Task[None] | None = None
        self.connected = False
        self.known = False

    def get(self, workspace: str) -> dict[str, Any] | None:
        """The workspace object, or None."""
        return self._table.get(workspace)

    def __len__(self) -> int:
        return len(self._table)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        pause = _RETRY_FIRST
        while True:
            started = time.monotonic()
            try:
                async for event in self._engine.events():
                    # The client connects again by itself; it says so once.
                    self.connected = event["type"] != "disconnected"
                    self._take(event)
            except (EngineError, OSError, TimeoutError) as exc:
                _log.debug("events of the engine: %s", exc)
            except Exception:
                # A message that is not understood must not end the watch for good: the next snapshot makes up for it.
                _log.exception("events of the engine")
            self.connected = False
            pause = _RETRY_FIRST if time.monotonic() - started > _RETRY_MOST else min(pause * 2, _RETRY_MOST)
            await asyncio.sleep(pause)

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "disconnected":
            _log.warning("the engine is gone; open streams go on")
        elif kind == "snapshot":
            self._replace({item["id"]: item for item in event["workspaces"]})
        elif kind == "workspace":
            self._replace({**self._table, event["workspace"]: event["data"]})
        elif kind == "gone":
            self._replace({key: item for key, item in self._table.items() if key != event["workspace"]})

    def _replace(self, table: dict[str, dict[str, Any]]) -> None:
        present = {key: item for key, item in table.items() if item.get("state") not in _ENDED_STATES}
        lost = self._table.keys() - present.keys()
        self._table = present
        self.known = True
        for workspace in lost:
            self._on_gone(workspace)
        self._on_change(present)
