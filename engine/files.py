"""Files of a running workspace as people outside reach them: listed, read, written and removed by paths inside its root.

The kernel holds every walk to the workspace's root file system (openat2: RESOLVE_IN_ROOT, no magic links, no other mount), so a
link leads nowhere outside, whatever is swapped while it is followed; /proc, /dev and whatever else is mounted there are out of
reach. Nothing but regular files and directories is ever opened: a FIFO or device at a name is told of and left alone.

Everything here blocks and belongs in a thread. Paths and names are bytes: what the kernel takes for a name, UTF-8 or not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from engine import syscalls
from engine.account import desktop_account
from engine.errors import BadRequest, Conflict, LimitReached, NotFound, from_oserror
from engine.syscalls import openat2
from engine.text import printable
from engine.workspace import Workspace

MOST_ENTRIES = 10_000
_MOST_LINKS = 1_000
_MOST_REMOVED = 200_000
_LONGEST_SHOWN = 300
_LONGEST_HOME = 1024

INSIDE = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS | syscalls.RESOLVE_NO_XDEV
BELOW = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_MAGICLINKS | syscalls.RESOLVE_NO_XDEV

_KINDS = {
    stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device", stat.S_IFBLK: "device",
}  # fmt: skip


def shown(path: bytes) -> str:
    """A path for messages and pages: no control characters, no half characters."""
    return printable(path.decode(errors="replace"), _LONGEST_SHOWN)


def encoded(path: bytes) -> str:
    """A path or name as it may stand in an address."""
    return quote(path, safe="/")


@contextlib.contextmanager
def root_of(workspace: Workspace) -> Iterator[int]:
    """A descriptor of the workspace's root. Raises Conflict when it does not run."""
    if not workspace.alive or not workspace.pid:
        raise Conflict(f"{workspace.id} is not running; it is {workspace.state.value}")
    try:
        root = syscalls.open_of_process(workspace.pid, workspace.pid_start, "root", os.O_PATH | os.O_DIRECTORY)
    except ProcessLookupError:
        raise Conflict(f"the first process of {workspace.id} has ended") from None
    try:
        yield root
    finally:
        os.close(root)


@contextlib.contextmanager
def parent_of(workspace: Workspace, path: bytes) -> Iterator[tuple[int, bytes]]:
    """The open directory of a path inside, and the name in it; what fails in the block is told with the path. Raises BadRequest, Conflict, NotFound."""
    place, name = split(path)
    with root_of(workspace) as root, explained(workspace, path):
        parent = openat2(root, os.fsdecode(place), os.O_PATH | os.O_DIRECTORY, INSIDE)
        try:
            yield parent, name
        finally:
            os.close(parent)


@contextlib.contextmanager
def explained(workspace: Workspace, path: bytes) -> Iterator[None]:
    """Turn OSErrors of work on `path` into errors that name it."""
    try:
        yield
    except OSError as error:
        where = f"{shown(path)} of {workspace.id}"
        if error.errno == errno.ENOENT:
            raise NotFound(f"there is no {where}") from error
        if error.errno == errno.EXDEV:
            raise BadRequest(f"{where} is on another mount (such as /proc or /dev); only files of the root file system are reached") from error
        if error.errno == errno.ENAMETOOLONG:
            raise BadRequest(f"{where}: this name is too long") from error
        reasons = {
            errno.ENOTDIR: "a part of the path is not a directory", errno.ELOOP: "its links lead in a circle",
            errno.EISDIR: "it is a directory", errno.EEXIST: "it exists already", errno.ENOTEMPTY: "the directory is not empty",
            errno.EBUSY: "it is in use as a mount point", errno.EPERM: "its attributes do not allow that", errno.EACCES: "it may not be changed",
            errno.EAGAIN: "its directories are renamed all the time; try again", errno.EINVAL: "it is not a regular file",
            errno.ETXTBSY: "it is a program that runs", errno.EROFS: "it is read-only",
        }  # fmt: skip
        if error.errno in reasons:
            raise Conflict(f"{where}: {reasons[error.errno]}") from error
        raise from_oserror(where, error) from error


def kind_of(mode: int) -> str:
    """file, directory, link, fifo, socket or device."""
    return _KINDS.get(stat.S_IFMT(mode), "device")


def _entry(name: bytes, kind: str, status: os.stat_result | None) -> dict[str, Any]:
    """The entry object of the API."""
    entry: dict[str, Any] = {"name": shown(name), "encoded": encoded(name), "kind": kind}
    if status is not None:
        entry.update(
            size=status.st_size, mode=stat.S_IMODE(status.st_mode), uid=status.st_uid, gid=status.st_gid,
            modified=round(status.st_mtime, 3),
        )  # fmt: skip
    return entry


def entry_at(workspace: Workspace, path: bytes) -> dict[str, Any]:
    """The entry object of what lies at a path: of a link itself, not of what it leads to. Raises NotFound."""
    with root_of(workspace) as root, explained(workspace, path):
        if path == b"/":
            return _entry(path, "directory", os.fstat(root))
        directory, name = split(path)
        parent = openat2(root, os.fsdecode(directory), os.O_PATH | os.O_DIRECTORY, INSIDE)
        try:
            return _with_goal(root, path, _look(parent, name))
        finally:
            os.close(parent)


def list_directory(workspace: Workspace, path: bytes) -> dict[str, Any]:
    """The directory object of the API: at most MOST_ENTRIES entries, directories first."""
    with root_of(workspace) as root, explained(workspace, path):
        directory = openat2(root, os.fsdecode(path), os.O_RDONLY | os.O_DIRECTORY, INSIDE)
        try:
            names, truncated = _names(directory)
            entries, links = [], 0
            for name in names:
                try:
                    entry = _look(directory, name)
                except OSError:
                    continue  # it went away meanwhile
                links += entry["kind"] == "link"
                entries.append(_with_goal(root, path + b"/" + name, entry) if links <= _MOST_LINKS else entry)
        finally:
            os.close(directory)
        home = os.fsencode(desktop_account(root).home)
    if not home.startswith(b"/") or len(home) > _LONGEST_HOME:
        home = b"/"  # the workspace writes its passwd file as it likes
    return {"path": shown(path), "encoded": encoded(path), "entries": entries, "truncated": truncated, "home": encoded(home)}


def _names(directory: int) -> tuple[list[bytes], bool]:
    """Names in an open directory in order, no more than MOST_ENTRIES; whether there are more."""
    names: list[bytes] = []
    with os.scandir(directory) as found:
        for item in found:
            if len(names) == MOST_ENTRIES:
                return sorted(names), True
            names.append(os.fsencode(item.name))
    return sorted(names), False


def _look(directory: int, name: bytes) -> dict[str, Any]:
    """What lies at a name, without opening it. Raises OSError when there is nothing."""
    try:
        probe = openat2(directory, os.fsdecode(name), os.O_PATH | os.O_NOFOLLOW, BELOW)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return _entry(name, "mount", None)
    try:
        status = os.fstat(probe)
        entry = _entry(name, kind_of(status.st_mode), status)
        if entry["kind"] == "link":
            entry["target"] = shown(os.fsencode(os.readlink("", dir_fd=probe)))
        return entry
    finally:
        os.close(probe)


def _with_goal(root: int, path: bytes, entry: dict[str, Any]) -> dict[str, Any]:
    """An entry, and for a link what it leads to."""
    return {**entry, "leads_to": _leads_to(root, path)} if entry["kind"] == "link" else entry


def _leads_to(root: int, path: bytes) -> str | None:
    """The kind of what a link leads to; None when it leads nowhere that can be reached."""
    try:
        probe = openat2(root, os.fsdecode(path), os.O_PATH, INSIDE)
    except OSError:
        return None
    try:
        return kind_of(os.fstat(probe).st_mode)
    finally:
        os.close(probe)


def open_file(workspace: Workspace, path: bytes) -> int:
    """A descriptor for reading a regular file; links are followed inside the root. Conflict for anything else."""
    with root_of(workspace) as root, explained(workspace, path):
        # O_PATH first: opening a device or FIFO can have effects before its type is known.
        probe = openat2(root, os.fsdecode(path), os.O_PATH, INSIDE)
        try:
            kind = kind_of(os.fstat(probe).st_mode)
            if kind != "file":
                raise Conflict(f"{shown(path)} of {workspace.id} is a {kind}; only regular files can be read")
            return os.open(f"/proc/self/fd/{probe}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        finally:
            os.close(probe)


@contextlib.contextmanager
def in_place_of(parent: int, name: bytes) -> Iterator[bytes]:
    """A name to make something under, in the open directory `parent`; with the block's end it takes `name` from whatever has it. Nothing is left of a failure."""
    # Nobody in the workspace can guess it, and be there first.
    temporary = b".tclone-new." + os.urandom(6).hex().encode()
    try:
        yield temporary
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=parent)
        raise


@dataclass
class Upload:
    """A file that is being written. It has no name until `commit`, so that nobody sees half of it and nothing is left of a failure."""

    workspace: Workspace
    path: bytes
    overwrite: bool
    parent: int
    fd: int
    size: int = 0

    @classmethod
    def begin(cls, workspace: Workspace, path: bytes, overwrite: bool) -> "Upload":
        """Raises NotFound without its directory, Conflict when something lies at the name that may not be replaced."""
        directory, name = split(path)
        with root_of(workspace) as root, explained(workspace, path):
            parent = openat2(root, os.fsdecode(directory), os.O_PATH | os.O_DIRECTORY, INSIDE)
            fd = -1
            try:
                existing = _existing(parent, name, workspace, path, overwrite)
                fd = os.open(f"/proc/self/fd/{parent}", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
                if existing is not None:
                    owner, group, mode = existing.st_uid, existing.st_gid, stat.S_IMODE(existing.st_mode) & 0o777
                else:
                    account = desktop_account(root)
                    owner, group, mode = account.uid, account.gid, 0o644
                os.fchown(fd, owner, group)
                os.fchmod(fd, mode)
                return cls(workspace, path, overwrite, parent, fd)
            except BaseException:
                os.close(parent)
                if fd >= 0:
                    os.close(fd)
                raise

    def write(self, data: bytes) -> None:
        with explained(self.workspace, self.path):
            view = memoryview(data)
            while view:
                view = view[os.write(self.fd, view) :]
            self.size += len(data)

    def commit(self) -> dict[str, Any]:
        """Give the file its name; its entry. Raises Conflict when something else has come to lie there."""
        name = split(self.path)[1]
        with explained(self.workspace, self.path):
            try:
                self._link(name)
            except FileExistsError:
                if not self.overwrite:
                    raise
                _existing(self.parent, name, self.workspace, self.path, True)
                with in_place_of(self.parent, name) as temporary:
                    self._link(temporary)
            return _entry(name, "file", os.fstat(self.fd))

    def _link(self, name: bytes) -> None:
        os.link(f"/proc/self/fd/{self.fd}", name, dst_dir_fd=self.parent, follow_symlinks=True)

    def close(self) -> None:
        """Give the descriptors back; a file without a name is gone then."""
        for fd in (self.fd, self.parent):
            if fd >= 0:
                os.close(fd)
        self.fd = self.parent = -1


def split(path: bytes) -> tuple[bytes, bytes]:
    """Directory and last name of a path that has one. Raises BadRequest."""
    directory, _, name = path.rpartition(b"/")
    if name in (b"", b".", b".."):
        raise BadRequest(f"{shown(path)} does not end in a name")
    return directory or b"/", name


def _existing(parent: int, name: bytes, workspace: Workspace, path: bytes, overwrite: bool) -> os.stat_result | None:
    """What lies at a name where a file is to be written, None for nothing. Raises Conflict unless it is a file that may be replaced."""
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    kind = kind_of(status.st_mode)
    if kind != "file":
        raise Conflict(f"{shown(path)} of {workspace.id} is a {kind}; only a regular file can be replaced")
    if not overwrite:
        raise Conflict(f"{shown(path)} of {workspace.id} exists already; choose another name or ask to overwrite it")
    return status


def make_directory(workspace: Workspace, path: bytes) -> dict[str, Any]:
    """Make one directory that belongs to the desktop's user; its entry."""
    with root_of(workspace) as root, parent_of(workspace, path) as (parent, name):
        os.mkdir(name, 0o755, dir_fd=parent)
        made = openat2(parent, os.fsdecode(name), os.O_RDONLY | os.O_DIRECTORY, BELOW)
        try:
            # Whoever exchanged it in this moment for an older one of root's gets nothing that it holds.
            if _names(made) == ([], False):
                account = desktop_account(root)
                os.fchown(made, account.uid, account.gid)
            return _entry(name, "directory", os.fstat(made))
        finally:
            os.close(made)


def remove(workspace: Workspace, path: bytes, recursive: bool) -> None:
    """Remove a file, link, FIFO, socket or empty directory; with `recursive` also a directory with all that it holds."""
    with parent_of(workspace, path) as (parent, name):
        try:
            os.unlink(name, dir_fd=parent)
            return
        except IsADirectoryError:
            pass
        if recursive:
            _empty(parent, name, path)
        os.rmdir(name, dir_fd=parent)


def _empty(parent: int, top: bytes, path: bytes) -> None:
    """Remove everything below directory `top`. Each directory is opened by its path from `parent`: none is held while others are worked on.

    Raises LimitReached past _MOST_REMOVED entries, OSError (EXDEV at a mount, ENAMETOOLONG below 4095 bytes of path).
    """
    removed = 0
    pending = [top]
    while pending:
        try:
            current = openat2(parent, os.fsdecode(pending[-1]), os.O_RDONLY | os.O_DIRECTORY, BELOW)
        except FileNotFoundError:
            pending.pop()
            continue
        try:
            names, more = _names(current)
            below = [pending[-1] + b"/" + name for name in names if not _unlinked(current, name)]
        finally:
            os.close(current)
        removed += len(names)
        if removed > _MOST_REMOVED:
            raise LimitReached(f"{shown(path)} holds more than {_MOST_REMOVED} entries; so many are removed, ask again for the rest")
        if below:
            pending += below
        elif not more:
            if len(pending) > 1:
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(pending[-1], dir_fd=parent)
            pending.pop()


def _unlinked(directory: int, name: bytes) -> bool:
    """Remove a name unless it is a directory's; whether it has gone."""
    try:
        os.unlink(name, dir_fd=directory)
    except IsADirectoryError:
        return False
    except FileNotFoundError:
        pass
    return True
