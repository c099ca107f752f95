"""The machine a benchmark ran on, and its memory made warm."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import psutil

from engine.errors import Internal

_GIGABYTE = 1 << 30
# Memory beyond this stays as it is: the largest workload needs less.
_TOUCH_LIMIT = 4 * _GIGABYTE


def load_average() -> list[float]:
    """The load averages of 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def facts() -> dict[str, Any]:
    """What a figure must be read with. Sizes in bytes."""
    memory = psutil.virtual_memory()
    system = os.uname()
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "kernel": f"{system.sysname} {system.release}",
        "architecture": system.machine,
        "memory_total": memory.total,
        "memory_available": memory.available,
        "transparent_hugepage": _selected(Path("/sys/kernel/mm/transparent_hugepage/enabled")),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown"


def _selected(path: Path) -> str:
    """The bracketed choice of a sysfs file; `absent` on kernels without it."""
    try:
        text = path.read_text()
    except OSError:
        return "absent"
    return text[text.find("[") + 1 : text.find("]")]


def touch_size() -> int:
    """How much to touch at the start: half of what is free, at most 4 GiB. Bytes."""
    return min(psutil.virtual_memory().free // 2, _TOUCH_LIMIT)


async def touch(program: Path, size: int) -> float:
    """Write to `size` bytes of memory and give them back; the milliseconds it took.

    In a virtual machine a page that was never touched, or that the guest has reported as free, must first be backed by the
    host: measured at 0.2-0.5 GB/s against 1-2 GB/s for warm memory. Without this the first runs measure the hypervisor.
    """
    process = await asyncio.create_subprocess_exec(
        str(program), "touch", str(size), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        raise Internal(f"cannot touch {size >> 20} MiB of memory: {err.decode().strip() or process.returncode}; is it free?")
    return float(out)
