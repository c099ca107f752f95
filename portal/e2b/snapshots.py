"""E2B's snapshots: a fork that is kept and paused. A sandbox that is made from one is a fork of it."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator
from typing import Any

from engine.errors import EngineError
from portal import audit
from portal.e2b.metadata import Metadata
from portal.errors import Conflicting, PortalError
from portal.forks import Forks, Wanted
from portal.node import Node
from portal.owners import Owners
from portal.principal import Principal

Workspace = dict[str, Any]


class Snapshots:
    """Which workspaces are snapshots is kept with what clients wrote onto them (metadata.py)."""

    def __init__(self, node: Node, owners: Owners, forks: Forks, metadata: Metadata) -> None:
        self._node = node
        self._owners = owners
        self._forks = forks
        self._metadata = metadata
        # Only those in use.
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def is_one(self, workspace: str) -> bool:
        return self._metadata.snapshot(workspace) is not None

    def shown(self, workspace: str) -> dict[str, Any]:
        """As E2B's API tells of one."""
        name, _ = self._metadata.snapshot(workspace) or ("", "")
        return {"snapshotID": workspace, "names": [name] if name else []}

    async def take(self, principal: Principal, workspace: str, name: str) -> str:
        """The id of a new one of a sandbox, which goes on; also of a paused one, which stays so. Raises PortalError, EngineError; then there is none."""
        async with self._awake(principal, workspace):
            made = await self._fork(principal, workspace, Wanted(persistent=True))
        try:
            await self._pause(principal, made["id"])
            await self._metadata.note_snapshot(made["id"], name, workspace)
        except BaseException:
            with contextlib.suppress(PortalError, EngineError):
                await self._node.remove(made["id"])
            raise
        return str(made["id"])

    async def start(self, principal: Principal, snapshot: str, seconds: float, network: str | None) -> Workspace:
        """A new sandbox in the state of a snapshot, which ends after so many seconds. Raises PortalError, EngineError."""
        async with self._awake(principal, snapshot):
            return await self._fork(principal, snapshot, Wanted(timeout=max(1.0, seconds), network=network))

    async def seen_by(self, principal: Principal, source: str | None, name: str | None) -> list[Workspace]:
        """Those that there are; of one sandbox, of one name."""
        found = []
        for item in await self._node.workspaces():
            noted = self._metadata.snapshot(item["id"])
            if noted is not None and self._owners.sees(principal, item["id"]) and name in (None, noted[0]) and source in (None, noted[1]):
                found.append(item)
        return found

    async def remove(self, principal: Principal, snapshot: str) -> None:
        """Raises EngineError. The sandboxes that were made from it stay."""
        with audit.outcome("discard", principal, snapshot):
            await self._node.remove(snapshot)

    # Inside

    async def _fork(self, principal: Principal, source: str, wanted: Wanted) -> Workspace:
        result = (await self._forks.fork(principal, source, wanted))["results"][0]
        if "workspace" not in result:
            raise Conflicting(f"{source} could not be forked: {result['error']['message']}")
        made: Workspace = result["workspace"]
        # Not when the news of it comes: what it has of its parent's is added to at once.
        await self._metadata.appeared(made)
        return made

    @contextlib.asynccontextmanager
    async def _awake(self, principal: Principal, workspace: str) -> AsyncIterator[None]:
        """A paused workspace cannot be forked: it goes on for as long as that takes, and stands still again whatever came of it. One at a time."""
        lock = self._locks.setdefault(workspace, asyncio.Lock())
        async with lock:
            still = (await self._node.workspace(workspace))["paused"]
            if still:
                with audit.outcome("resume", principal, workspace):
                    await self._node.resume(workspace)
            try:
                yield
            finally:
                # Also a snapshot that a portal which ended in the midst has left running.
                if still or self.is_one(workspace):
                    await self._pause(principal, workspace)

    async def _pause(self, principal: Principal, workspace: str) -> None:
        with audit.outcome("pause", principal, workspace):
            await self._node.pause(workspace)
