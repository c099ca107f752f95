"""Leak counters: what the host holds before and after a test, and who of it is ours.

A `Snapshot` is taken of the whole host. The difference between two of them is then narrowed to what this test run can have
made, because other test runs may share the machine: processes by descent (the run is a child subreaper, so a daemon's orphans stay
its descendants), everything else by a path or name under one of the watched *markers*. With `CI` set nothing is
narrowed: there the host is ours alone and any growth is a leak. Tests that run side by side are then others to each other: each counts
what is its own, and tests/conftest.py what all of them left on the host.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_TCP_LISTEN = "0A"
_CGROUP_ROOT = Path("/sys/fs/cgroup")
# Where nobody but an administrator makes directories: one that appears here came of a wrong path, or of a program that believed in a home there.
_ADMINISTRATORS = ("/", "/home")
_POLL_SECONDS = 0.05


def become_subreaper() -> None:
    """Make orphaned descendants re-parent to this process instead of to the host's pid 1. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


@dataclass(frozen=True)
class Process:
    """One host process; `started` (clock ticks since boot) tells a reused pid from the old one."""

    pid: int
    parent: int
    started: int
    state: str
    name: str

    def __str__(self) -> str:
        return f"{self.pid} {self.name} ({self.state})"


def _read(path: str | Path) -> str:
    """A proc or sysfs file as text; empty when it, or its process, is gone."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def processes() -> dict[int, Process]:
    """Every process on the host by pid, zombies included."""
    found: dict[int, Process] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        stat = _read(f"/proc/{entry}/stat")
        if not stat:
            continue
        name = stat[stat.index("(") + 1 : stat.rindex(")")]
        fields = stat[stat.rindex(")") + 2 :].split()
        found[int(entry)] = Process(int(entry), int(fields[1]), int(fields[19]), fields[0], name)
    return found


def descendants(of: int, table: dict[int, Process]) -> set[int]:
    """The pids below `of` in `table`, itself not included."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    waiting = list(children.get(of, ()))
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting.extend(children.get(pid, ()))
    return found


def descriptors(pid: int) -> dict[int, str]:
    """Open descriptors of `pid` and what each leads to; empty when the process is gone."""
    found: dict[int, str] = {}
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return found
    for number in numbers:
        try:
            found[int(number)] = os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:
            continue
    return found


def mounts(pid: int | str = "self") -> dict[int, str]:
    """Mount id to `target <- fstype root source` of one process's mount namespace."""
    found: dict[int, str] = {}
    for line in _read(f"/proc/{pid}/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        ours, theirs = left.split(), right.split()
        found[int(ours[0])] = f"{ours[4]} <- {theirs[0]} {ours[3]} {theirs[1]}"
    return found


def network_namespaces(pids: Iterable[int]) -> dict[str, str]:
    """`net:[inode]` to where it is held: a bind mount, a name in /run/netns, a process or a descriptor of `pids`."""
    found: dict[str, str] = {}
    for where in mounts().values():
        target, _, rest = where.partition(" <- ")
        parts = rest.split()
        if parts[0] == "nsfs" and parts[1].startswith("net:["):
            found.setdefault(parts[1], target)
    for pid in pids:
        try:
            found.setdefault(os.readlink(f"/proc/{pid}/ns/net"), f"process {pid}")
        except OSError:
            pass
        for number, target in descriptors(pid).items():
            if target.startswith("net:["):
                found.setdefault(target, f"descriptor {number} of process {pid}")
    return found


def cgroups() -> set[str]:
    """Every cgroup directory on the host, whichever hierarchy."""
    found: set[str] = set()
    for directory, names, _ in os.walk(_CGROUP_ROOT):
        found.update(os.path.join(directory, name) for name in names)
    return found


def loop_devices() -> dict[str, str]:
    """Attached loop devices and their backing files."""
    found: dict[str, str] = {}
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        backing = _read(path).strip()
        if backing:
            found[path.parent.parent.name] = backing
    return found


def listening_ports() -> dict[int, int]:
    """Socket inode to TCP port of every listener in this network namespace."""
    found: dict[int, int] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _read(table).splitlines()[1:]:
            fields = line.split()
            if fields[3] == _TCP_LISTEN:
                found[int(fields[9])] = int(fields[1].rpartition(":")[2], 16)
    return found


def links() -> set[str]:
    """Network interfaces of this network namespace."""
    return set(os.listdir("/sys/class/net"))


def directories() -> set[str]:
    """Directories in those that only an administrator fills; not the home of whoever runs the tests."""
    home = os.path.expanduser("~")
    found = {os.path.join(directory, name) for directory in _ADMINISTRATORS if os.path.isdir(directory) for name in os.listdir(directory)}
    return {path for path in found if os.path.isdir(path) and not f"{home}/".startswith(f"{path}/")}


@dataclass(frozen=True)
class Snapshot:
    """Everything countable on the host at one moment. `ours` are this run's processes then."""

    processes: dict[int, Process]
    ours: set[int]
    mounts: dict[int, str]
    namespaces: dict[str, str]
    cgroups: set[str]
    loops: dict[str, str]
    listeners: dict[int, int]
    links: set[str]
    directories: set[str]
    descriptors: dict[int, dict[int, str]]

    @classmethod
    def take(cls, watched: Iterable[int] = ()) -> "Snapshot":
        """Read the host; descriptors are kept for this process and the `watched` ones."""
        table = processes()
        ours = descendants(os.getpid(), table)
        return cls(
            processes=table,
            ours=ours,
            mounts=mounts(),
            namespaces=network_namespaces(ours),
            cgroups=cgroups(),
            loops=loop_devices(),
            listeners=listening_ports(),
            links=links(),
            directories=directories(),
            descriptors={pid: descriptors(pid) for pid in {os.getpid(), *watched}},
        )


@dataclass
class LeakCounter:
    """Counts growth since `start()`. `markers` are paths or name parts that belong to this test."""

    markers: set[str] = field(default_factory=set)
    watched: set[int] = field(default_factory=set)
    whole_host: bool = field(default_factory=lambda: bool(os.environ.get("CI")) and "PYTEST_XDIST_WORKER" not in os.environ)
    before: Snapshot | None = None

    def start(self) -> None:
        """Remember the host as it is now."""
        self.before = Snapshot.take(self.watched)

    def own(self, *markers: str | Path) -> None:
        """Count mounts, loop devices, namespaces, cgroups and links that have one of `markers` in their path or name."""
        self.markers.update(str(marker) for marker in markers)

    def own_engine(self, data: Path, run: Path) -> None:
        """Count everything of the engine with these directories; its cgroup is named after the run directory."""
        self.own(data, run, "tclone-" + hashlib.sha256(os.fsencode(run)).hexdigest()[:8])

    def watch(self, pid: int) -> None:
        """Count the descriptors of a long-lived process (a daemon) too. Call before `start()`, or its present ones become the base."""
        self.watched.add(pid)
        if self.before is not None:
            self.before.descriptors.setdefault(pid, descriptors(pid))

    def growth(self) -> list[str]:
        """One line for each thing that is there now, was not before, and is ours."""
        assert self.before is not None, "start() was not called"
        _reap_orphans(self.before)
        before, now = self.before, Snapshot.take(self.watched)
        found: list[str] = []
        known = {(process.pid, process.started) for process in before.processes.values()}
        for process in now.processes.values():
            if (process.pid, process.started) not in known and process.pid in now.ours:
                found.append(f"process {process}")
        for identity, where in now.mounts.items():
            if identity not in before.mounts and self._is_ours(where):
                found.append(f"mount {where}")
        for name, where in now.namespaces.items():
            held_by_us = not where.startswith("/") or self._is_ours(where)
            if name not in before.namespaces and held_by_us and not self._was_host_namespace(name):
                found.append(f"network namespace {name}, held by {where}")
        found += [f"cgroup {path}" for path in sorted(now.cgroups - before.cgroups) if self._is_ours(path)]
        found += [f"interface {name}" for name in sorted(now.links - before.links) if self._is_ours(name)]
        found += [f"directory {path}" for path in sorted(now.directories - before.directories) if self._is_ours(path)]
        for device, backing in now.loops.items():
            if before.loops.get(device) != backing and self._is_ours(backing):
                found.append(f"loop device {device} of {backing}")
        found += self._new_listeners(before, now)
        found += self._new_descriptors(before, now)
        return found

    def check(self, within: float = 20.0) -> None:
        """Raise AssertionError naming each leak that is still there after `within` seconds."""
        deadline = time.monotonic() + within
        while left := self.growth():
            if time.monotonic() >= deadline:
                raise AssertionError("left behind:\n  " + "\n  ".join(left))
            time.sleep(_POLL_SECONDS)

    def _is_ours(self, text: str) -> bool:
        return self.whole_host or any(marker in text for marker in self.markers)

    @staticmethod
    def _was_host_namespace(name: str) -> bool:
        return name == os.readlink("/proc/self/ns/net")

    def _new_listeners(self, before: Snapshot, now: Snapshot) -> list[str]:
        held: set[str] = set()
        for pid in {os.getpid(), *now.ours}:
            held.update(descriptors(pid).values())
        return [
            f"listening port {port}"
            for inode, port in now.listeners.items()
            if inode not in before.listeners and (self.whole_host or f"socket:[{inode}]" in held)
        ]

    def _new_descriptors(self, before: Snapshot, now: Snapshot) -> list[str]:
        found = []
        for pid, open_now in now.descriptors.items():
            open_before = before.descriptors.get(pid, {})
            if len(open_now) > len(open_before):
                new = sorted(f"{number} -> {target}" for number, target in open_now.items() if number not in open_before)
                found.append(f"{len(open_now) - len(open_before)} descriptors of process {pid}, new: {', '.join(new)}")
        return found


def _reap_orphans(before: Snapshot) -> None:
    """Collect zombies that were handed to us as the subreaper, which nobody else will wait for. A pid may have been used before."""
    known = {(process.pid, process.started) for process in before.processes.values()}
    for process in processes().values():
        if process.state == "Z" and process.parent == os.getpid() and (process.pid, process.started) not in known:
            try:
                os.waitpid(process.pid, os.WNOHANG)
            except ChildProcessError:
                pass
