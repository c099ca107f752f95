"""Control groups of workspaces on every layout: v2, v1 and hybrid."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
HYBRID_V2 = ROOT / "unified"
_CONTROLLERS = ("memory", "pids", "cpuacct", "cpu", "freezer", "devices", "blkio", "cpuset", "systemd")
_REMOVE_SECONDS = 2.0


def layout() -> str:
    """`v2`, `hybrid` (v1 plus a v2 tree beside it), `v1`, or `none`."""
    if (ROOT / "cgroup.controllers").exists():
        return "v2"
    if (HYBRID_V2 / "cgroup.controllers").exists():
        return "hybrid"
    return "v1" if (ROOT / "memory").is_dir() else "none"


@dataclass(frozen=True)
class Limits:
    """Limits of one workspace; None is unlimited."""

    memory: int | None
    pids: int | None


class Cgroups:
    """The groups `/<parent>/<workspace>` of one engine, in every hierarchy the host has. All methods block shortly."""

    def __init__(self, parent: str) -> None:
        self.parent = parent
        self.v2 = layout() == "v2"

    def oci_path(self, workspace: str) -> str:
        """The value of linux.cgroupsPath."""
        return f"/{self.parent}/{workspace}"

    def _roots(self) -> list[Path]:
        if self.v2:
            return [ROOT]
        # Named hierarchies may be symlinks of each other (cpu,cpuacct): keep one of each.
        roots: dict[Path, None] = {}
        for name in _CONTROLLERS:
            path = ROOT / name
            if path.is_dir():
                roots[path.resolve()] = None
        return list(roots)

    def _controller(self, name: str, workspace: str) -> Path:
        base = ROOT if self.v2 else ROOT / name
        return base / self.parent / workspace

    def set_limits(self, workspace: str, limits: Limits) -> None:
        """Change the limits of an existing group. Raises OSError when the kernel refuses."""
        memory = self._controller("memory", workspace)
        pids = self._controller("pids", workspace) / "pids.max"
        if self.v2:
            (memory / "memory.max").write_text(_number(limits.memory, "max"))
        else:
            (memory / "memory.limit_in_bytes").write_text(_number(limits.memory, "-1"))
        if pids.exists():
            pids.write_text(_number(limits.pids, "max"))

    def processes(self, workspace: str) -> list[int]:
        """Host pids of all processes in the group and below."""
        base = self._controller("pids" if (ROOT / "pids").is_dir() else "memory", workspace)
        found: list[int] = []
        for directory, _, files in os.walk(base):
            if "cgroup.procs" in files:
                with contextlib.suppress(OSError):
                    found += [int(pid) for pid in Path(directory, "cgroup.procs").read_text().split()]
        return found

    def frozen(self, workspace: str) -> bool:
        """Whether the group, or one above it, is frozen by a cgroup freezer: its processes stand still, and no fork could stop them."""
        if self.v2:
            return "frozen 1" in _read(ROOT / self.parent / workspace / "cgroup.events").splitlines()
        return _read(ROOT / "freezer" / self.parent / workspace / "freezer.state").strip() in ("FREEZING", "FROZEN")

    def memory_bytes(self, workspace: str) -> int:
        name = "memory.current" if self.v2 else "memory.usage_in_bytes"
        return int(_read(self._controller("memory", workspace) / name) or 0)

    def cpu_seconds(self, workspace: str) -> float:
        if not self.v2:
            return int(_read(self._controller("cpuacct", workspace) / "cpuacct.usage") or 0) / 1e9
        for line in _read(self._controller("cpu", workspace) / "cpu.stat").splitlines():
            if line.startswith("usage_usec "):
                return int(line.split()[1]) / 1e6
        return 0.0

    def names(self) -> set[str]:
        """Workspaces that have a group in at least one hierarchy."""
        found: set[str] = set()
        for root in self._roots():
            with contextlib.suppress(OSError):
                found.update(entry.name for entry in os.scandir(root / self.parent) if entry.is_dir())
        return found

    def remove(self, workspace: str) -> list[str]:
        """Remove the (dead) group everywhere, waiting up to 2 s for its last tasks; returns what could not be removed."""
        deadline = time.monotonic() + _REMOVE_SECONDS
        left = [root / self.parent / workspace for root in self._roots()]
        while True:
            left = [path for path in left if not _remove_tree(path)]
            if not left or time.monotonic() > deadline:
                return [str(path) for path in left]
            time.sleep(0.01)

    def remove_parent(self) -> None:
        """Remove the engine's own group where it is empty."""
        for root in self._roots():
            with contextlib.suppress(OSError):
                (root / self.parent).rmdir()


def _remove_tree(path: Path) -> bool:
    """Remove a group and the groups below it, deepest first; True when it is gone."""
    for directory, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(directory)
    return not path.exists()


def _number(value: int | None, unlimited: str) -> str:
    return unlimited if value is None else str(value)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
