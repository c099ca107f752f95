"""What is measured, each in the same way: `measure(copies)` does it once, checks it, takes it away again, and gives ms by phase."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from bench.launch import Launched, launch_many
from bench.own_engine import OwnEngine, remove_quietly
from bench.workload import Workload
from engine.errors import EngineError, Internal

# The engine makes spare containers again after each fork; they shall not be made during the next measurement.
_REST_SECONDS = 1.0


class Contender(Protocol):
    """`usable` is the ms from the request until all copies run; `pause` the ms that the source stood still."""

    name: str

    async def measure(self, copies: int) -> dict[str, float]: ...


class Fork:
    """A live fork by the engine."""

    name = "tclone"

    def __init__(self, engine: OwnEngine, workload: Workload, source: Launched) -> None:
        self._engine = engine
        self._workload = workload
        self._source = source
        self.last: dict[str, int | str] = {}

    async def measure(self, copies: int) -> dict[str, float]:
        client = self._engine.client
        result = await client.fork(self._source.id, copies=copies)
        branches = [branch["id"] for branch in result["branches"]]
        try:
            for branch in result["branches"]:
                if branch["error"]:
                    raise Internal(f"branch {branch['id']}: {branch['error']}")
            await self._check(result, branches)
        finally:
            left = await asyncio.shield(remove_quietly(client, branches))
        if left:
            raise Internal(f"branches could not be removed: {'; '.join(left)}")
        await asyncio.sleep(_REST_SECONDS)
        self.last = {key: result[key] for key in ("mode", "processes", "threads", "bytes_copied")}
        return {name: value for name, value in result["ms"].items() if value is not None}

    async def _check(self, result: dict, branches: list[str]) -> None:
        """A fast fork of less than everything is no result."""
        if result["bytes_copied"] < self._workload.dirty:
            raise Internal(f"{result['bytes_copied']} bytes were copied of {self._workload.dirty} dirty ones")
        for branch in branches:
            stats = await self._engine.client.stats(branch)
            expected = self._source.processes
            if not self._workload.desktop and stats["processes"] != expected:
                raise Internal(f"branch {branch} has {stats['processes']} processes instead of {expected}")


class FreshStart:
    """What there is without fork: launch as many anew and bring each into the same state."""

    name = "fresh start"

    def __init__(self, engine: OwnEngine, workload: Workload, program: Path) -> None:
        self._engine = engine
        self._workload = workload
        self._program = program

    async def measure(self, copies: int) -> dict[str, float]:
        client = self._engine.client
        launched = await launch_many(client, self._workload, self._program, copies)
        left = await asyncio.shield(remove_quietly(client, [one.id for one in launched]))
        if left:
            raise Internal(f"workspaces could not be removed: {'; '.join(left)}")
        await asyncio.sleep(_REST_SECONDS)
        return {"usable": round(max(one.milliseconds for one in launched), 2)}


def reason(error: EngineError | OSError) -> str:
    """An error as one line of a report."""
    return " ".join(str(error).split())
