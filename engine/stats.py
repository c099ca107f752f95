"""What a workspace uses now."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from engine.cgroups import Cgroups
from engine.threads import in_thread

# A workspace can fill its layer with millions of files: count this many, a listing must not take minutes.
_MOST_FILES = 200_000
_FRESH_SECONDS = 3.0
# 30 processes of a desktop take 20-40 ms; one with 60 000 mappings alone takes some hundred.
_MEMORY_SECONDS = 0.5


class Stats:
    """Stats of the workspaces of one engine. Memory and disk cost the kernel a walk through every page and file: at most one such
    look at a workspace every few seconds, whoever asks."""

    def __init__(self, cgroups: Cgroups) -> None:
        self._cgroups = cgroups
        self._locks: dict[str, asyncio.Lock] = {}
        self._kept: dict[str, tuple[float, dict[str, Any]]] = {}

    async def of(self, workspace: str, upper: Path) -> dict[str, Any]:
        """The stats object of the API; what is costly is at most _FRESH_SECONDS old."""
        async with self._locks.setdefault(workspace, asyncio.Lock()):
            at, costly = self._kept.get(workspace, (0.0, {}))
            if not costly or time.monotonic() - at > _FRESH_SECONDS:
                costly = await in_thread(lambda: _costly(self._cgroups, workspace, upper))
                self._kept[workspace] = (time.monotonic(), costly)
        return {**await in_thread(lambda: _cheap(self._cgroups, workspace)), **costly}

    def forget(self, keep: Collection[str]) -> None:
        """Drop what is kept of workspaces that have gone."""
        for workspace in self._kept.keys() - keep:
            self._kept.pop(workspace, None)
            self._locks.pop(workspace, None)


@dataclass
class _Memory:
    """Bytes of the processes looked at. `pss` counts a page that several processes map by its part for each of them, `unique` only
    pages that one process alone maps."""

    pss: int = 0
    unique: int = 0


def _cheap(cgroups: Cgroups, workspace: str) -> dict[str, Any]:
    pids = cgroups.processes(workspace)
    threads = 0
    for pid in pids:
        with contextlib.suppress(psutil.Error, OSError):
            threads += psutil.Process(pid).num_threads()
    return {
        "cpu_seconds": round(cgroups.cpu_seconds(workspace), 3),
        "memory_bytes": cgroups.memory_bytes(workspace),
        "processes": len(pids),
        "threads": threads,
    }


def _costly(cgroups: Cgroups, workspace: str, upper: Path) -> dict[str, Any]:
    memory = _Memory()
    deadline = time.monotonic() + _MEMORY_SECONDS
    partial = False
    for pid in cgroups.processes(workspace):
        if time.monotonic() > deadline:
            partial = True
            break
        with contextlib.suppress(OSError, ValueError):
            _add_memory(pid, memory)
    return {
        "pss_bytes": memory.pss,
        "unique_bytes": memory.unique,
        "shared_bytes": max(0, memory.pss - memory.unique),
        "partial": partial,
        "disk_bytes": disk_usage(upper),
    }


def _add_memory(pid: int, memory: _Memory) -> None:
    with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        for line in file:
            name, _, rest = line.partition(b":")
            if name == b"Pss":
                memory.pss += int(rest.split()[0]) * 1024
            elif name in (b"Private_Clean", b"Private_Dirty", b"Private_Hugetlb"):
                memory.unique += int(rest.split()[0]) * 1024


def disk_usage(upper: Path) -> int:
    """Bytes allocated below a workspace's upper, walked by descriptors: a link swapped in meanwhile leads nowhere."""
    total = seen = 0
    try:
        for _, _, files, directory in os.fwalk(upper, follow_symlinks=False):
            for name in files:
                try:
                    total += os.stat(name, dir_fd=directory, follow_symlinks=False).st_blocks * 512
                except OSError:
                    continue
            seen += len(files)
            if seen > _MOST_FILES:
                break
    except OSError:
        pass
    return total
