"""What differs between the file systems of two workspaces, or of a workspace and its image, found by their uppers alone."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from engine.errors import Conflict, LimitReached, NotFound
from engine.files import encoded, kind_of, shown
from engine.own_files import is_own
from engine.views import MOST_NAMES, Directory, Node, View

_MOST_LOOKED_AT = 200_000
_MOST_TOLD = 20_000
# Of files that have the same size, until the rest counts as changed without a look.
_COMPARED_BYTES = 256 << 20
_PIECE = 1 << 20
_LARGEST_TEXT = 1 << 20
_DIFF_SECONDS = 5.0
# What TClone itself writes into each workspace says nothing about what became of it.
_OWN = b"run/tclone"


@dataclass(frozen=True)
class _Place:
    """A directory to be compared, by its path from the root without a slash before it."""

    path: bytes
    whole: bool
    before: bool | None
    after: bool | None


def _ways(paths: Iterable[bytes]) -> dict[bytes, set[bytes]]:
    """The names that lead to absolute paths, by the directory (as in _Place) that each is in."""
    ways: dict[bytes, set[bytes]] = {}
    for path in paths:
        walked = b""
        for name in [part for part in path.split(b"/") if part]:
            ways.setdefault(walked, set()).add(name)
            walked = walked + b"/" + name if walked else name
    return ways


class Comparison:
    """One comparison. Iterate over the change objects; then `truncated` says whether there is more.

    `below`: only what is at or below these absolute paths, and the directories on the way to them, is looked at. `own`: what the desktop
    writes by itself is told, too; `owned` counts it either way.
    """

    def __init__(self, before: View, after: View, *, below: Iterable[bytes] = (b"/",), own: bool = True) -> None:
        self._before = before
        self._after = after
        self._chosen = set(below)
        self._ways = _ways(self._chosen)
        self._own = own
        self._looked_at = 0
        self._told = 0
        self._budget = _COMPARED_BYTES
        self.owned = 0
        self.truncated = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        # Paths; whether everything in there is of interest; and on which side the image's part of that directory shows: None where there is no
        # such directory at all.
        pending: list[_Place] = [_Place(b"", b"/" in self._chosen, True, True)]
        while pending:
            place = pending.pop()
            sides: list[Directory | None] = []
            try:
                for view, lower in ((self._before, place.before), (self._after, place.after)):
                    sides.append(None if lower is None else view.directory(place.path, lower))
                below: list[_Place] = []
                for change in self._directory(place, sides[0], sides[1], below):
                    self.owned += change["own"]
                    if change["own"] and not self._own:
                        continue
                    self._told += 1
                    if self._told > _MOST_TOLD or self._looked_at > _MOST_LOOKED_AT:
                        self.truncated = True
                        return
                    yield change
                if self._looked_at > _MOST_LOOKED_AT:
                    self.truncated = True
                    return
                pending += reversed(below)
            finally:
                for side in sides:
                    if side is not None:
                        side.close()

    def _directory(self, place: _Place, before: Directory | None, after: Directory | None, below: list[_Place]) -> Iterator[dict[str, Any]]:
        names = self._names(before, after) if place.whole else sorted(self._ways.get(place.path, ()))
        for name in names:
            where = place.path + b"/" + name if place.path else name
            if where == _OWN:
                continue
            self._looked_at += 1
            if self._looked_at > _MOST_LOOKED_AT:
                return
            old = before.node(name) if before is not None else None
            new = after.node(name) if after is not None else None
            if (old is None and new is None) or (old is not None and new is not None and not old.upper and not new.upper):
                continue
            if self._differ(name, before, old, after, new):
                yield _change(where, old, new)
            if new is not None and new.directory:
                here = old is not None and old.directory
                whole = place.whole or b"/" + where in self._chosen
                below.append(_Place(where, whole, old.lower if here and old is not None else None, new.lower))

    def _names(self, before: Directory | None, after: Directory | None) -> list[bytes]:
        """What may differ: all that one of the uppers has, and all of the image where only one side shows it."""
        names: set[bytes] = set()
        for side in (before, after):
            if side is not None:
                names |= side.upper_names()
        if (before is not None and before.whole) != (after is not None and after.whole):
            for side in (before, after):
                if side is not None:
                    names |= side.lower_names()
        if len(names) >= MOST_NAMES:
            self.truncated = True
        return sorted(names)

    def _differ(self, name: bytes, before: Directory | None, old: Node | None, after: Directory | None, new: Node | None) -> bool:
        if old is None or new is None or before is None or after is None:
            return True
        a, b = old.status, new.status
        if stat.S_IFMT(a.st_mode) != stat.S_IFMT(b.st_mode) or (a.st_mode, a.st_uid, a.st_gid) != (b.st_mode, b.st_uid, b.st_gid):
            return True
        if stat.S_ISREG(a.st_mode):
            if a.st_size != b.st_size:
                return True
            # A fork's snapshot keeps the number and the times; whatever touches a file afterwards changes its ctime.
            unchanged = (a.st_ino, a.st_mtime_ns, a.st_ctime_ns) == (b.st_ino, b.st_mtime_ns, b.st_ctime_ns)
            return not unchanged and not self._same_content(name, before, old, after, new)
        if stat.S_ISLNK(a.st_mode):
            return before.link_target(name, old) != after.link_target(name, new)
        return not old.directory and a.st_rdev != b.st_rdev

    def _same_content(self, name: bytes, before: Directory, old: Node, after: Directory, new: Node) -> bool:
        self._budget -= old.status.st_size
        if self._budget < 0:
            return False
        fds: list[int] = []
        try:
            fds.append(before.open_file(name, old))
            fds.append(after.open_file(name, new))
            for position in range(0, old.status.st_size, _PIECE):
                if os.pread(fds[0], _PIECE, position) != os.pread(fds[1], _PIECE, position):
                    return False
            return True
        except OSError:
            return False
        finally:
            for fd in fds:
                os.close(fd)


def _change(path: bytes, old: Node | None, new: Node | None) -> dict[str, Any]:
    """The change object of the API. `size` is what it is now, `before` what it was, in bytes."""
    node = new or old
    assert node is not None
    return {
        "change": "added" if old is None else "deleted" if new is None else "changed",
        "path": shown(b"/" + path), "encoded": encoded(b"/" + path), "kind": kind_of(node.status.st_mode),
        "size": new.status.st_size if new is not None else None, "before": old.status.st_size if old is not None else None,
        "own": is_own(b"/" + path),
    }  # fmt: skip


# One file ---------------------------------------------------------------------------------------------------------------


def compare_file(before: View, after: View, path: bytes) -> dict[str, Any]:
    """The file difference object of the API. Raises NotFound, Conflict for what is no regular file, LimitReached for a large one."""
    old, new = _text_of(before, path), _text_of(after, path)
    if old is None and new is None:
        raise NotFound(f"there is no {shown(path)} on either side")
    binary = any(text is not None and b"\0" in text for text in (old, new))
    diff = "" if binary or old == new else _unified(path, old, new)
    return {
        "path": shown(path), "encoded": encoded(path), "binary": binary, "same": old == new, "diff": diff,
        "before": None if old is None else len(old), "size": None if new is None else len(new),
    }  # fmt: skip


def _text_of(view: View, path: bytes) -> bytes | None:
    found: bytes | None = None
    last = path.rstrip(b"/").count(b"/")
    for depth, (directory, name, node) in enumerate(view.walk(path), 1):
        if node is None or depth < last:
            continue
        kind = kind_of(node.status.st_mode)
        if kind != "file":
            raise Conflict(f"{shown(path)} is a {kind}; only regular files are compared")
        try:
            fd = directory.open_file(name, node)
        except OSError as error:
            raise Conflict(f"{shown(path)} cannot be read: {error.strerror}; try again") from None
        with os.fdopen(fd, "rb") as file:
            found = file.read(_LARGEST_TEXT + 1)
        if len(found) > _LARGEST_TEXT:
            raise LimitReached(f"{shown(path)} has more than {_LARGEST_TEXT >> 20} MiB; download both and compare them")
    return found


def _unified(path: bytes, old: bytes | None, new: bytes | None) -> str:
    """By diff(1), in a process of its own with a time limit: what is slow to compare must not hold up the engine."""
    fds = []
    try:
        for text in (old, new):
            fds.append(os.memfd_create("diff", os.MFD_CLOEXEC))
            with os.fdopen(os.dup(fds[-1]), "wb") as file:
                file.write(text or b"")
        name = shown(path).lstrip("/")
        labels = ["/dev/null" if old is None else f"a/{name}", "/dev/null" if new is None else f"b/{name}"]
        argv = ["diff", "--text", "--unified", "--speed-large-files"]
        argv += [f"--label={label}" for label in labels] + [f"/proc/self/fd/{fd}" for fd in fds]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, pass_fds=fds, timeout=_DIFF_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise LimitReached(f"{shown(path)}: the two texts differ too much to be compared within {_DIFF_SECONDS:g} s; download both") from None
    except FileNotFoundError:
        raise Conflict("diff is not installed on this host; install the package `diffutils`") from None
    finally:
        for fd in fds:
            os.close(fd)
    text = done.stdout.decode(errors="replace")
    return "".join(character if character in "\n\t" or character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
