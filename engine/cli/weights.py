"""Shares of the processor for the portal's services, by control groups beside the workspaces' own, on every layout: v2, v1 and hybrid.

Streams are short work that must not wait; what runs inside workspaces can wait, and there may be any amount of it. All workspaces of an
engine are below one group with the kernel's default weight, so together they count as much as one ordinary program.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine import cgroups

# What the kernel gives a group that says nothing: the workspaces' together.
DEFAULT_WEIGHT = 100
# v1 counts in shares; the default is 1024.
_SHARES_OF_DEFAULT = 1024


@dataclass(frozen=True)
class Standing:
    """What a service gets beside others: `weight` of the processor as in cpu.weight (1 to 10000, default 100), and its oom_score_adj
    (-1000 to 1000; lower is killed later)."""

    weight: int = DEFAULT_WEIGHT
    oom_score_adj: int = 0


class Standings:
    """Gives the services of one `tclone up` their standing. What the host does not permit is left out and told, once for each service."""

    def __init__(self, prefix: str, standings: Mapping[str, Standing]) -> None:
        """`prefix`: the name of the group that holds the engine's workspaces; the services' are `<prefix>-<service>` beside it."""
        self._prefix = prefix
        self._standings = standings
        self._told: set[str] = set()

    def give(self, service: str, pid: int) -> list[str]:
        """Place a service's first process, before it has started others; what could not be done, each as a line for the log."""
        standing = self._standings.get(service)
        if standing is None:
            return []
        notes = []
        try:
            self._place(service, standing.weight, pid)
        except OSError as error:
            notes.append(f"{service} runs without a processor weight of its own (cpu.weight {standing.weight}): {_reason(error)}")
        if standing.oom_score_adj:
            try:
                Path(f"/proc/{pid}/oom_score_adj").write_text(str(standing.oom_score_adj))
            except OSError as error:
                notes.append(f"{service} is not protected when memory runs out (oom_score_adj {standing.oom_score_adj}): {_reason(error)}")
        new = [note for note in notes if note not in self._told]
        self._told.update(new)
        return new

    def close(self) -> None:
        """Remove the groups, whose processes have ended. One that is not empty stays for the next `tclone up`."""
        for service in self._standings:
            with contextlib.suppress(OSError):
                self._group(service).rmdir()

    def _group(self, service: str) -> Path:
        root = cgroups.ROOT if cgroups.layout() == "v2" else cgroups.ROOT / "cpu"
        return root / f"{self._prefix}-{service}"

    def _place(self, service: str, weight: int, pid: int) -> None:
        """Raises OSError."""
        layout = cgroups.layout()
        group = self._group(service)
        if layout == "v2":
            cgroups.pass_on(cgroups.ROOT, ("cpu",))
        elif not (cgroups.ROOT / "cpu" / "cpu.shares").exists():
            raise FileNotFoundError(2, "this host has no cpu controller", str(cgroups.ROOT))
        group.mkdir(exist_ok=True)
        if layout == "v2":
            _write(group / "cpu.weight", weight)
        else:
            _write(group / "cpu.shares", weight * _SHARES_OF_DEFAULT // DEFAULT_WEIGHT)
        _write(group / "cgroup.procs", pid)


def _write(path: Path, value: int) -> None:
    """Not `Path.write_text`: that would make a file where a kernel without the controller has none."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)


def _reason(error: OSError) -> str:
    return f"{error.filename or ''}: {error.strerror or error}".removeprefix(": ")
