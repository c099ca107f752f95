"""Chosen files of one workspace made those of another: a branch is kept for what it found, the rest of it thrown away.

What there is to do is what a comparison of the chosen paths finds (engine/changes.py). It is written into the running workspace as
an upload is (engine/files.py): each file whole or not at all, under the name that the kernel's walk inside its root leads to. Nothing
is written before everything has been looked at, so that what would be lost is told first.

Everything here blocks and belongs in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote_to_bytes

from engine import files
from engine.changes import Comparison
from engine.errors import BadRequest, Conflict, EngineError, LimitReached, NotFound
from engine.files import BELOW, encoded, kind_of, parent_of, root_of, shown
from engine.syscalls import openat2
from engine.views import Directory, Node, View
from engine.workspace import Workspace

MOST_PATHS = 1_000
_MOST_CHANGES = 10_000
# Looked through below a directory that is to be removed or replaced.
_MOST_LOOKED_AT = 20_000
_MOST_BYTES = 16 << 30
_PIECE = 1 << 20
_NAMED = 5
_PROMOTED = frozenset({"file", "directory", "link"})


@dataclass
class Step:
    """One path: what becomes of it (`added`, `changed`, `deleted`), what it will be (`kind`), and what keeps it from that, if anything does."""

    path: bytes
    change: str
    kind: str
    size: int
    outcome: str = "planned"
    reason: str | None = None

    def public(self) -> dict[str, Any]:
        """The promoted path object of the API."""
        return {
            "path": shown(self.path), "encoded": encoded(self.path), "change": self.change, "kind": self.kind, "size": self.size,
            "outcome": self.outcome, "reason": self.reason,
        }  # fmt: skip

    def stop(self, outcome: str, reason: str) -> None:
        self.outcome, self.reason = outcome, reason


def parted_at(one: list[tuple[str, str]], other: list[tuple[str, str]]) -> float:
    """When two workspaces last had the same files, in seconds since the epoch: 0 when they have no ancestor in common.

    Each is told by its line: ids and times of making, itself first, then its ancestors.
    """
    ids = [[identity for identity, _ in line] for line in (one, other)]
    common = next((identity for identity in ids[0] if identity in ids[1]), None)
    if common is None:
        return 0.0
    below = [line[at - 1] for line, named in zip((one, other), ids, strict=True) if (at := named.index(common)) > 0]
    return min((_seconds(created) for _, created in below), default=0.0)


def _seconds(created: str) -> float:
    return datetime.fromisoformat(created).timestamp()


class Promotion:
    """From `source`, seen as `after`, into the running `target`, seen as `before`: what is at or below `chosen` in either.

    `parted`: what changed in the target after that moment (seconds since the epoch) is not replaced or removed, unless `force`.
    """

    def __init__(self, target: Workspace, before: View, after: View, chosen: Iterable[bytes], parted: float, force: bool) -> None:
        self._target = target
        self._before = before
        self._after = after
        self._chosen = set(chosen)
        self._parted = parted
        self._force = force
        self.steps: list[Step] = []

    def plan(self) -> None:
        """Find the steps and what stands against each. Raises LimitReached for more than can be told, BadRequest for a chosen path on another mount, NotFound for one on neither side."""
        with root_of(self._target) as root:
            for chosen in sorted(self._chosen):
                self._must_be_reached(root, chosen)
        comparison = Comparison(self._before, self._after, below=self._chosen)
        added: dict[bytes, Step] = {}
        for change in comparison:
            path = unquote_to_bytes(change["encoded"])
            step = Step(path, change["change"], change["kind"], change["size"] or 0)
            if self._is_chosen(path):
                self._add(step)
            elif step.kind == "directory" and step.change == "added":
                added[path] = step
        if comparison.truncated:
            raise LimitReached("what was chosen differs in more than can be compared; choose less at once")
        for chosen in sorted(self._chosen):
            self._must_exist(chosen)
        # Directories on the way to what was chosen.
        for path in {place for step in self.steps for place in _places(step.path)} & added.keys():
            self._add(added[path])
        self.steps.sort(key=lambda step: step.path.split(b"/"))
        if sum(step.size for step in self.steps if step.kind == "file" and step.change != "deleted") > _MOST_BYTES:
            raise LimitReached(f"these files have more than {_MOST_BYTES >> 30} GiB; promote them in parts")
        with root_of(self._target) as root:
            for step in self.steps:
                self._judge(root, step)

    @property
    def bytes(self) -> int:
        """How much is written, at most."""
        return sum(step.size for step in self.steps if step.change != "deleted" and step.outcome == "planned")

    def conflicts(self) -> None:
        """Raises Conflict, naming the first few, when something stands against what was planned."""
        against = [step for step in self.steps if step.outcome != "planned"]
        if not against:
            return
        told = "; ".join(f"{shown(step.path)}: {step.reason}" for step in against[:_NAMED])
        more = f"; and {len(against) - _NAMED} more" if len(against) > _NAMED else ""
        hint = "" if any(step.outcome == "refused" for step in against) else "; ask for `force` to replace it all the same"
        raise Conflict(f"nothing was promoted into {self._target.id}: {told}{more}{hint}")

    def carry_out(self) -> None:
        """Do what is planned. What fails is told in its step, and the rest goes on."""
        for step in self.steps:
            if step.outcome != "planned":
                continue
            try:
                self._do(step)
                step.outcome = "done"
            except EngineError as error:
                step.stop("failed", error.message)
            except OSError as error:
                step.stop("failed", (error.strerror or str(error)).lower())

    def _add(self, step: Step) -> None:
        if len(self.steps) >= _MOST_CHANGES:
            raise LimitReached(f"more than {_MOST_CHANGES} paths differ under what was chosen; choose less at once")
        self.steps.append(step)

    def _is_chosen(self, path: bytes) -> bool:
        return path in self._chosen or not self._chosen.isdisjoint(_places(path))

    def _must_be_reached(self, root: int, chosen: bytes) -> None:
        """What lies on another mount is in no comparison, so that it would seem to be the same on both sides."""
        try:
            os.close(openat2(root, os.fsdecode(chosen.lstrip(b"/") or b"."), os.O_PATH | os.O_NOFOLLOW, BELOW))
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise BadRequest(f"{shown(chosen)} is on another mount (such as /proc or /dev); only files of the root file system are promoted") from error

    def _must_exist(self, chosen: bytes) -> None:
        if chosen == b"/" or any(_find(view, chosen) is not None for view in (self._before, self._after)):
            return
        raise NotFound(f"there is no {shown(chosen)} in either workspace")

    # What stands against a step

    def _judge(self, root: int, step: Step) -> None:
        if step.kind not in _PROMOTED and step.change != "deleted":
            return step.stop("refused", f"it is a {step.kind}: only files, directories and links are promoted")
        try:
            kind, newest = _look(root, step.path)
        except OSError:
            return step.stop("refused", "it is on another mount of the workspace, or its directories cannot be walked")
        if kind is None or self._force or (kind == step.kind == "directory" and step.change != "deleted"):
            return None
        if newest > self._parted:
            there = "since the two parted" if self._parted else "at some time; the two have no ancestor in common"
            return step.stop("conflict", f"{self._target.id} changed it, too, {there}")
        return None

    # Steps

    def _do(self, step: Step) -> None:
        there = _find(self._before, step.path)
        if step.change == "deleted":
            return files.remove(self._target, step.path, recursive=True)
        if there is not None and kind_of(there.status.st_mode) != step.kind:
            files.remove(self._target, step.path, recursive=True)
        with _found(self._after, step.path) as (directory, name, node):
            if kind_of(node.status.st_mode) != step.kind:
                raise Conflict(f"{shown(step.path)} has become another kind of file meanwhile; try again")
            if step.kind == "file":
                self._file(step, directory, name, node)
            elif step.kind == "link":
                self._link(step.path, directory.link_target(name, node), node.status)
            else:
                self._directory(step.path, node.status)

    def _file(self, step: Step, directory: Directory, name: bytes, node: Node) -> None:
        content = directory.open_file(name, node)
        try:
            upload = files.Upload.begin(self._target, step.path, True)
            try:
                position = 0
                while data := os.pread(content, _PIECE, position):
                    position += len(data)
                    if position > _MOST_BYTES:
                        raise LimitReached(f"{shown(step.path)} grows beyond {_MOST_BYTES >> 30} GiB")
                    upload.write(data)
                _dress(upload.fd, node.status)
                upload.commit()
                step.size = position
            finally:
                upload.close()
        finally:
            os.close(content)

    def _link(self, path: bytes, goal: bytes, status: os.stat_result) -> None:
        if not goal:
            raise Conflict(f"{shown(path)} went away meanwhile; try again")
        with parent_of(self._target, path) as (parent, name):
            with files.in_place_of(parent, name) as temporary:
                os.symlink(goal, temporary, dir_fd=parent)
                os.chown(temporary, status.st_uid, status.st_gid, dir_fd=parent, follow_symlinks=False)

    def _directory(self, path: bytes, status: os.stat_result) -> None:
        with parent_of(self._target, path) as (parent, name):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=parent)
            made = openat2(parent, os.fsdecode(name), os.O_RDONLY | os.O_DIRECTORY, BELOW)
            try:
                os.fchown(made, status.st_uid, status.st_gid)
                os.fchmod(made, stat.S_IMODE(status.st_mode))
            finally:
                os.close(made)


def _places(path: bytes) -> list[bytes]:
    """The directories that an absolute path leads through."""
    return [path[:at] or b"/" for at in range(len(path)) if path[at : at + 1] == b"/"]


def _find(view: View, path: bytes) -> Node | None:
    """What a view has at a path; links on the way lead nowhere."""
    with contextlib.suppress(Conflict), _found(view, path) as (_, _, node):
        return node
    return None


@contextlib.contextmanager
def _found(view: View, path: bytes) -> Iterator[tuple[Directory, bytes, Node]]:
    """What a view has at a path, with the directory that it is in, open. Raises Conflict when there is nothing."""
    wanted = len([part for part in path.split(b"/") if part])
    with contextlib.closing(view.walk(path)) as walk:
        for depth, (directory, name, node) in enumerate(walk, 1):
            if depth == wanted and node is not None:
                yield directory, name, node
                return
    raise Conflict(f"{shown(path)} went away meanwhile; try again")


def _dress(fd: int, status: os.stat_result) -> None:
    """Owner, mode and time of change of an open file."""
    os.fchown(fd, status.st_uid, status.st_gid)
    os.fchmod(fd, stat.S_IMODE(status.st_mode))
    os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))


def _look(root: int, path: bytes) -> tuple[str | None, float]:
    """The kind of what a running workspace has at a path, None for nothing, and when it, or anything in it, last changed (ctime, which programs cannot set).

    A link on the way is no directory, as in a comparison: what is below becomes possible when the link is replaced. Raises OSError when
    the path leads to another mount.
    """
    try:
        probe = openat2(root, os.fsdecode(path.lstrip(b"/") or b"."), os.O_PATH | os.O_NOFOLLOW, BELOW)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None, 0.0
        raise
    try:
        status = os.fstat(probe)
        if not stat.S_ISDIR(status.st_mode):
            return kind_of(status.st_mode), status.st_ctime
        return "directory", _newest(probe)
    finally:
        os.close(probe)


def _newest(top: int) -> float:
    """The latest change of what is in a directory; infinite when there is more than is looked through: then nobody knows."""
    newest, seen, pending = 0.0, 0, [b"."]
    while pending:
        place = pending.pop()
        try:
            directory = openat2(top, os.fsdecode(place), os.O_RDONLY | os.O_DIRECTORY, BELOW)
        except FileNotFoundError:
            continue
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    seen += 1
                    if seen > _MOST_LOOKED_AT:
                        return float("inf")
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISDIR(status.st_mode):
                            pending.append(place + b"/" + os.fsencode(entry.name))
                        else:
                            newest = max(newest, status.st_ctime)
        finally:
            os.close(directory)
    return newest
