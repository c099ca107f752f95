"""Control groups of workspaces on every layout: v2, v1 and hybrid.

A workspace has two groups in each hierarchy: `/<parent>/<workspace>`, which carries its limits, and `inside` below it, where its
processes live. Its root may make a user namespace with a cgroup namespace and mount the hierarchies there: such a mount begins
at the group of the process that made it, and what lies above, limits and all, is out of reach.

Beside v1 hierarchies the kernel always has the v2 tree, mounted or not, and whoever may mount it sees it from its own group on:
from the host's root, for a process that nobody has placed. So there too each workspace has its groups, without controllers.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from engine import syscalls

ROOT = Path("/sys/fs/cgroup")
HYBRID_V2 = ROOT / "unified"
INSIDE = "inside"
_DEFAULT_RUN = Path("/run/tclone")
_LIMITED = ("memory", "pids")
# Microseconds in which a workspace may use its share of the processors. Short: one that has used it up stands still until the next, and a fork that wants to
# stop it waits as long.
_CPU_PERIOD = 20_000
# Groups that a workspace may make below its own in the v2 tree: each takes the host's memory.
_MOST_GROUPS = 256
_REMOVE_SECONDS = 20.0
# With groups left that a workspace made by the thousand (v1 has no limit for them), as long as there are fewer every time.
_REMOVE_MANY_SECONDS = 30.0


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
    cpus: float | None = None


def parent_of(run: Path) -> str:
    """The name of the group that holds an engine's workspaces: `tclone` for the machine's engine, another for each other run directory."""
    if run == _DEFAULT_RUN:
        return "tclone"
    return "tclone-" + hashlib.sha256(os.fsencode(run)).hexdigest()[:8]


class Cgroups:
    """The groups `/<parent>/<workspace>` of one engine, in every hierarchy the host has. All methods block shortly."""

    def __init__(self, parent: str) -> None:
        self.parent = parent
        self.v2 = layout() == "v2"
        self._beside = -1

    def open(self) -> None:
        """Get hold of the v2 tree beside v1 hierarchies, by a mount of one's own that is attached nowhere. Raises OSError.

        Without this call workspaces get no groups there.
        """
        if layout() in ("v1", "hybrid"):
            self._beside = _whole_v2_tree()

    def close(self) -> None:
        if self._beside >= 0:
            os.close(self._beside)
            self._beside = -1

    def _beside_root(self) -> Path | None:
        """The root of the v2 tree beside v1, by the number of this process: also programs that it starts can use the path."""
        return Path(f"/proc/{os.getpid()}/fd/{self._beside}") if self._beside >= 0 else None

    def oci_path(self, workspace: str) -> str:
        """The value of linux.cgroupsPath."""
        return f"/{self.parent}/{workspace}/{INSIDE}"

    def prepare(self, workspace: str, limits: Limits) -> None:
        """Make the groups that must be there before the container: with the limits, and in a v2 tree beside v1. Raises OSError."""
        if self.v2:
            # A group has only the files of the controllers that each group above passes on.
            pass_on(ROOT, _LIMITED)
            (ROOT / self.parent).mkdir(exist_ok=True)
            pass_on(ROOT / self.parent, _LIMITED)
        for name in _LIMITED:
            if self.v2 or (ROOT / name).is_dir():
                self._controller(name, workspace).mkdir(parents=True, exist_ok=True)
        self.set_limits(workspace, limits)
        if limits.cpus is not None:
            self.limit_cpus(workspace, limits.cpus)
        top = self._beside_root()
        if top is not None:
            (top / self.parent / workspace / INSIDE).mkdir(parents=True, exist_ok=True)
        if self.v2 or top is not None:
            ((top or ROOT) / self.parent / workspace / "cgroup.max.descendants").write_text(str(_MOST_GROUPS))

    def entry(self, workspace: str) -> Path | None:
        """The file that a program writes "0" to before it becomes crun, or None: in a v2 tree beside v1 crun places nobody."""
        top = self._beside_root()
        path = None if top is None else top / self.parent / workspace / INSIDE / "cgroup.procs"
        return path if path is not None and path.exists() else None

    def _roots(self) -> list[Path]:
        if self.v2:
            return [ROOT]
        # Named hierarchies may be symlinks of each other (cpu,cpuacct): keep one of each.
        roots: dict[Path, None] = {}
        for path in ROOT.iterdir() if ROOT.is_dir() else ():
            if path != HYBRID_V2 and (path / "cgroup.procs").exists():
                roots[path.resolve()] = None
        top = self._beside_root()
        return [*roots] if top is None else [*roots, top]

    def _controller(self, name: str, workspace: str) -> Path:
        base = ROOT if self.v2 else ROOT / name
        return base / self.parent / workspace

    def set_limits(self, workspace: str, limits: Limits) -> None:
        """Change the limits of an existing group, above what the workspace can reach. Raises OSError when the kernel refuses."""
        memory = self._controller("memory", workspace)
        pids = self._controller("pids", workspace) / "pids.max"
        if self.v2:
            (memory / "memory.max").write_text(_number(limits.memory, "max"))
        else:
            (memory / "memory.limit_in_bytes").write_text(_number(limits.memory, "-1"))
        if pids.exists():
            pids.write_text(_number(limits.pids, "max"))

    def limit_cpus(self, workspace: str, cpus: float) -> None:
        """How many processors' time a workspace gets at most, also where more stand idle. Raises OSError when this host cannot limit it."""
        if self.v2:
            pass_on(ROOT, ("cpu",))
            pass_on(ROOT / self.parent, ("cpu",))
        group = self._controller("cpu", workspace)
        if self.v2 or (ROOT / "cpu").is_dir():
            group.mkdir(parents=True, exist_ok=True)
        quota = round(cpus * _CPU_PERIOD)
        if self.v2:
            (group / "cpu.max").write_text(f"{quota} {_CPU_PERIOD}")
        else:
            # By itself each has to fit to the other, as it is then.
            (group / "cpu.cfs_quota_us").write_text("-1")
            (group / "cpu.cfs_period_us").write_text(str(_CPU_PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(quota))

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
        """Whether the processes' group, or one above it, is frozen by a cgroup freezer: they stand still, and no fork could stop them."""
        group = self._controller("freezer", workspace) / INSIDE
        if self.v2:
            return "frozen 1" in _read(group / "cgroup.events").splitlines()
        top = self._beside_root()
        if top is not None and "frozen 1" in _read(top / self.parent / workspace / INSIDE / "cgroup.events").splitlines():
            return True
        return _read(group / "freezer.state").strip() in ("FREEZING", "FROZEN")

    def freeze(self, workspace: str, still: bool) -> None:
        """Let the processes of a workspace stand still, or go on, by the group above what it can reach. Raises OSError."""
        group, top = self._controller("freezer", workspace), self._beside_root()
        if self.v2:
            (group / "cgroup.freeze").write_text("1" if still else "0")
        elif (group / "freezer.state").exists() or top is None:
            (group / "freezer.state").write_text("FROZEN" if still else "THAWED")
        else:
            (top / self.parent / workspace / "cgroup.freeze").write_text("1" if still else "0")

    def memory_bytes(self, workspace: str) -> int:
        name = "memory.current" if self.v2 else "memory.usage_in_bytes"
        return int(_read(self._controller("memory", workspace) / name) or 0)

    def memory_kills(self, workspace: str) -> int:
        """How many processes the kernel has killed in the group, or below it, for want of memory."""
        top = self._controller("memory", workspace)
        # v1 counts in the group of who was killed, v2 in those above, too.
        texts = [_read(top / "memory.events")] if self.v2 else [_read(group / "memory.oom_control") for group in (top, top / INSIDE)]
        return sum(int(line.split()[1]) for text in texts for line in text.splitlines() if line.startswith("oom_kill "))

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
        """Remove the (dead) groups everywhere, waiting up to 20 s for their last tasks; returns what could not be removed."""
        began = progress = time.monotonic()
        left = [root / self.parent / workspace for root in self._roots()]
        while True:
            removed = sum(_remove_tree(path, began + _REMOVE_MANY_SECONDS) for path in left)
            left = [path for path in left if path.exists()]
            now = time.monotonic()
            progress = now if removed else progress
            if not left or now > progress + _REMOVE_SECONDS or now > began + _REMOVE_MANY_SECONDS:
                return [str(path) for path in left]
            time.sleep(0.01)

    def remove_parent(self) -> None:
        """Remove the engine's own group where it is empty."""
        for root in self._roots():
            with contextlib.suppress(OSError):
                (root / self.parent).rmdir()


def _whole_v2_tree() -> int:
    """A detached mount of the v2 tree from its root on. Raises OSError.

    A new mount made in the host's own cgroup namespace would set the tree's options (nsdelegate, memory_recursiveprot), which are one set
    for all mounts, to none. So one that is there is cloned; where there is none, the new one is made in another cgroup namespace.
    """
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        root, place, options = fields.split(" ")[3:6]
        if kind.startswith("cgroup2 ") and root == "/" and "rw" in options.split(","):
            with contextlib.suppress(OSError):      # something else may lie over it
                return syscalls.open_tree(_unescaped(place), clone=True)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_new_v2_mount).result()


def _unescaped(place: str) -> str:
    """A path as mountinfo writes it, with blanks and the like as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), place)


def _new_v2_mount() -> int:
    """For a thread that ends afterwards. Its cgroup namespace begins at the group it is in: the root, while nobody uses the tree."""
    syscalls.unshare(syscalls.CLONE_NEWCGROUP)
    context = syscalls.fsopen("cgroup2")
    try:
        syscalls.fsconfig_create(context)
        return syscalls.fsmount(context)
    finally:
        os.close(context)


def pass_on(group: Path, controllers: tuple[str, ...]) -> None:
    """Let the groups below a v2 group have controllers. Raises OSError when the kernel refuses."""
    passed = _read(group / "cgroup.subtree_control").split()
    missing = [name for name in controllers if name not in passed]
    if missing:
        (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in missing))


def _remove_tree(path: Path, deadline: float) -> int:
    """Remove a group and the groups below it, deepest first, until `deadline` (monotonic); how many it removed.

    By one descriptor that goes down and up again: a workspace may have nested its groups deeper than a path, or a process's
    descriptors, can reach. A group that cannot be removed yet is passed over, and so are those above it.
    """
    removed = 0
    names = [path.name]
    try:
        current = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return 0
    pending = [_groups_in(current)]
    try:
        while names and time.monotonic() < deadline:
            if pending[-1]:
                name = pending[-1].pop()
                try:
                    below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
                except OSError:
                    continue  # it has gone
                os.close(current)
                current = below
                names.append(name)
                pending.append(_groups_in(current))
                continue
            above = os.open("..", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=current)
            os.close(current)
            current = above
            pending.pop()
            with contextlib.suppress(OSError):
                os.rmdir(names.pop(), dir_fd=current)
                removed += 1
    finally:
        os.close(current)
    return removed


def _groups_in(directory: int) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []  # it has gone


def _number(value: int | None, unlimited: str) -> str:
    return unlimited if value is None else str(value)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
