"""Tells the parts that keep something about each workspace when one appears and when one is gone."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from typing import Any, Protocol

from portal.feed import Event, Feed

log = logging.getLogger(__name__)

_AGAIN_SECONDS = 1.0


class Keeper(Protocol):
    """A part with facts about workspaces."""

    async def appeared(self, workspace: dict[str, Any]) -> None:
        """A workspace is new or has changed; called again for one that is known."""

    async def gone(self, workspace: str) -> None:
        """A workspace, by its id, is gone for good."""

    async def present(self, workspaces: set[str]) -> None:
        """These ids are all there are: others went while nobody looked."""


class Housekeeping:
    """Follows the feed for all keepers, in the order they were given."""

    def __init__(self, feed: Feed, keepers: list[Keeper]) -> None:
        self._feed = feed
        self._keepers = keepers
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="housekeeping")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        # Before that an empty list would mean nothing.
        await self._feed.listed.wait()
        while True:
            try:
                async with self._feed.watch(None) as events:
                    while (event := await events.get()) is not None:
                        await self._take(event)
            except sqlite3.Error:
                log.exception("housekeeping: cannot reach the database; trying again")
            # None in the queue: too slow. The next watch begins with everything.
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _take(self, event: Event) -> None:
        kind = event["type"]
        if kind == "snapshot":
            for workspace in event["workspaces"]:
                await self._each_appeared(workspace)
            for keeper in self._keepers:
                await keeper.present({workspace["id"] for workspace in event["workspaces"]})
        elif kind == "workspace":
            await self._each_appeared(event["data"])
        elif kind == "gone":
            for keeper in self._keepers:
                await keeper.gone(event["workspace"])

    async def _each_appeared(self, workspace: dict[str, Any]) -> None:
        for keeper in self._keepers:
            await keeper.appeared(workspace)
