"""What a workspace uses now."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil

from engine.cgroups import Cgroups

# A workspace can fill its layer with millions of files: count this many, a listing must not take minutes.
_MOST_FILES = 200_000


def stats_of(cgroups: Cgroups, workspace: str, upper: Path) -> dict[str, Any]:
    """The stats object of the API: bytes, seconds and counts. Blocks (PSS is computed by the kernel from every page)."""
    pss = threads = 0
    pids = cgroups.processes(workspace)
    for pid in pids:
        try:
            process = psutil.Process(pid)
            threads += process.num_threads()
            pss += _pss(pid)
        except (psutil.Error, OSError):
            continue
    return {
        "cpu_seconds": round(cgroups.cpu_seconds(workspace), 3),
        "memory_bytes": cgroups.memory_bytes(workspace),
        "pss_bytes": pss,
        "processes": len(pids),
        "threads": threads,
        "disk_bytes": disk_usage(upper),
    }


def _pss(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


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
