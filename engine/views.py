"""The file system of a workspace put together by hand: its upper over the layers of its image, without its mount.

So two workspaces can be compared, running or stopped, and only what their uppers hold has to be looked at. Uppers are written by the
workspaces meanwhile: everything is opened by descriptors that follow no link (openat2: RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine import syscalls
from engine.syscalls import openat2

_RESOLVE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS | syscalls.RESOLVE_NO_XDEV
_OPAQUE = "trusted.overlay.opaque"
MOST_NAMES = 50_000


@dataclass(frozen=True)
class Node:
    """What is at a path. `upper`: the upper has it, so that it may differ from the image. `lower`: a directory that the image has too."""

    status: os.stat_result
    upper: bool
    lower: bool

    @property
    def directory(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)


class Directory:
    """One directory of a view, open: its part in the upper and its parts in the image. Close it."""

    def __init__(self, upper: int | None, lowers: list[int]) -> None:
        self._upper = upper
        self._lowers = lowers
        if upper is not None and _opaque(upper):
            self._close_lowers()

    def close(self) -> None:
        self._close_lowers()
        if self._upper is not None:
            os.close(self._upper)
            self._upper = None

    def _close_lowers(self) -> None:
        for fd in self._lowers:
            os.close(fd)
        self._lowers = []

    @property
    def whole(self) -> bool:
        """Whether the image's part shows through."""
        return bool(self._lowers)

    def upper_names(self) -> set[bytes]:
        """Names in the upper, whiteouts included; MOST_NAMES at most."""
        return set() if self._upper is None else _names(self._upper)

    def lower_names(self) -> set[bytes]:
        return set().union(*(_names(fd) for fd in self._lowers))

    def node(self, name: bytes) -> Node | None:
        below = self._lower(name)
        if self._upper is not None:
            with contextlib.suppress(OSError):
                status = os.stat(name, dir_fd=self._upper, follow_symlinks=False)
                if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
                    return None  # a whiteout: deleted
                merged = stat.S_ISDIR(status.st_mode) and below is not None and stat.S_ISDIR(below.st_mode)
                return Node(status, True, merged)
        return None if below is None else Node(below, False, stat.S_ISDIR(below.st_mode))

    def _lower(self, name: bytes) -> os.stat_result | None:
        for fd in self._lowers:
            with contextlib.suppress(OSError):
                return os.stat(name, dir_fd=fd, follow_symlinks=False)
        return None

    def open_file(self, name: bytes, node: Node) -> int:
        """A descriptor of the regular file that `node` was. Raises OSError when it is something else by now."""
        for fd in [self._upper] if node.upper and self._upper is not None else self._lowers:
            with contextlib.suppress(FileNotFoundError):
                probe = openat2(fd, os.fsdecode(name), os.O_PATH | os.O_NOFOLLOW, _RESOLVE)
                try:
                    if not stat.S_ISREG(os.fstat(probe).st_mode):
                        raise OSError(22, "not a regular file")
                    return os.open(f"/proc/self/fd/{probe}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                finally:
                    os.close(probe)
        raise FileNotFoundError(2, "it went away")

    def link_target(self, name: bytes, node: Node) -> bytes:
        """Where a link leads; empty when it has gone."""
        for fd in [self._upper] if node.upper and self._upper is not None else self._lowers:
            with contextlib.suppress(OSError):
                return os.readlink(name, dir_fd=fd)
        return b""


class View:
    """A workspace's file system, or an image's (`upper` None). `lowers`: topmost first."""

    def __init__(self, upper: Path | None, lowers: list[Path]) -> None:
        self._upper_path = upper
        self._lower_paths = lowers
        self._upper: int | None = None
        self._lowers: list[int] = []

    def __enter__(self) -> "View":
        try:
            if self._upper_path is not None:
                self._upper = _open_root(self._upper_path)
            for path in self._lower_paths:
                self._lowers.append(_open_root(path))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for fd in [*self._lowers, *([] if self._upper is None else [self._upper])]:
            os.close(fd)
        self._lowers, self._upper = [], None

    def directory(self, path: bytes, lower: bool) -> Directory:
        """The directory at a path relative to the root (empty for the root itself). `lower`: whether the image's part belongs to it."""
        upper = None if self._upper is None else _open_directory(self._upper, path)
        lowers: list[int] = []
        for root in self._lowers if lower else []:
            fd = _open_directory(root, path)
            if fd is not None:
                lowers.append(fd)
        return Directory(upper, lowers)

    def walk(self, path: bytes) -> Iterator[tuple[Directory, bytes, Node | None]]:
        """Each component of an absolute path from the root on, with the directory it lies in; ends where there is nothing more.

        A directory is closed when the next one is asked for.
        """
        lower, walked = True, b""
        for name in [part for part in path.split(b"/") if part]:
            directory = self.directory(walked, lower)
            try:
                node = directory.node(name)
                yield directory, name, node
            finally:
                directory.close()
            if node is None or not node.directory:
                return
            lower = node.lower
            walked = walked + b"/" + name if walked else name


def _open_root(path: Path) -> int:
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _open_directory(root: int, path: bytes) -> int | None:
    """None when there is no directory at that path, or none that can be reached."""
    try:
        return openat2(root, os.fsdecode(path or b"."), os.O_RDONLY | os.O_DIRECTORY, _RESOLVE)
    except OSError:
        return None


def _opaque(directory: int) -> bool:
    """Whether a directory of an upper hides the image's."""
    try:
        return os.getxattr(directory, _OPAQUE) == b"y"
    except OSError:
        return False


def _names(directory: int) -> set[bytes]:
    found: set[bytes] = set()
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if len(found) == MOST_NAMES:
                break
            found.add(os.fsencode(entry.name))
    return found
