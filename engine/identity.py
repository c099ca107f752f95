"""Who a workspace is, as its programs see it: the branch record, host name, machine id, and how they hear of a fork.

Everything here is written through the workspace's root file system by descriptor, before a process runs in it; no link that an image or
a workspace left there is followed out (engine/syscalls.py).
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from dataclasses import dataclass

from engine import bundle, syscalls
from engine.errors import Conflict, EngineError, Internal, from_oserror
from engine.network.settings import ADDRESS, RESOLVER
from engine.process import Command, Executor
from engine.text import printable
from engine.workspace import Workspace, branch_names

BRANCH_RECORD = "/run/tclone/branch.json"
REGISTRATIONS = "/run/tclone/notify.d"  # native/src/after_fork.c
HOOKS = "/etc/tclone/fork.d"
_HOSTS = "/etc/hosts"
_HOSTS_LIMIT = 1 << 20
_DBUS_MACHINE_ID = "/var/lib/dbus/machine-id"
# After fork hooks: 64 at most, 10 s each. What takes longer than this in all goes on by itself.
_HOOK_SECONDS = 60.0
_MESSAGE_LIMIT = 1000
# By these the kernel, or open_regular_inside, says that a workspace has no such file. Any other error means that nobody could tell.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL)


@dataclass(frozen=True)
class Identity:
    """What a fork is to change of its branches' identity. `hostname` is a base as for names: with copies NAME-0, NAME-1, …"""

    hostname: str | None = None
    new_machine_id: bool = False

    def hostnames(self, kept: str, copies: int) -> list[str]:
        """The host name of each branch; by default the source's, by which X cookies and prompts go."""
        return [kept] * copies if self.hostname is None else branch_names(self.hostname, copies)


def write_launch_files(root: int, workspace: Workspace) -> None:
    """The files every source has before its first process runs."""
    write = syscalls.write_file_inside
    try:
        write(root, "/etc/hostname", f"{workspace.hostname}\n".encode())
        write(root, _HOSTS, _hosts(workspace.hostname).encode())
        write(root, "/etc/resolv.conf", f"nameserver {RESOLVER}\n".encode())
        _write_record(root, workspace)
        # Any user's program may ask to be told of a fork.
        os.close(syscalls.open_dir_inside(root, REGISTRATIONS, 0o1777))
        if workspace.desktop:
            write(root, "/run/tclone/stream-master", workspace.master_token.encode(), 0o600)
    except OSError as error:
        raise from_oserror(f"image {workspace.image}: cannot write {error.filename or 'its set-up files'}", error) from error


def write_branch_files(root: int, branch: Workspace, identity: Identity) -> None:
    """What tells a branch from its source, on its own root while nothing runs there. Raises Conflict, NoSpace, Internal."""
    what = BRANCH_RECORD
    try:
        _write_record(root, branch)
        if identity.hostname is not None:
            what = "/etc/hostname"
            syscalls.write_file_inside(root, what, f"{branch.hostname}\n".encode())
            what = _HOSTS
            _add_host(root, branch.hostname)
        if identity.new_machine_id:
            what = "/etc/machine-id"
            _write_machine_id(root)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EEXIST, errno.EISDIR):
            raise Conflict(
                f"cannot write {what} of {branch.id}: a part of that path is not what it should be in {branch.parent} "
                f"({error.strerror}); put a plain directory there and fork again"
            ) from error
        raise from_oserror(f"cannot write {what} of {branch.id}", error) from error


def _write_record(root: int, workspace: Workspace) -> None:
    """/run/tclone/branch.json: who this workspace is; its generation tells a program that it was forked."""
    record = {
        "id": workspace.id, "name": workspace.name, "parent": workspace.parent, "batch": workspace.batch,
        "index": workspace.index, "generation": workspace.generation, "created": workspace.created,
    }  # fmt: skip
    syscalls.write_file_inside(root, BRANCH_RECORD, json.dumps(record).encode() + b"\n")


def _hosts(hostname: str) -> str:
    return f"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n{ADDRESS}\t{hostname}\n"


def _add_host(root: int, hostname: str) -> None:
    """A line for the new name; what the workspace itself put into its hosts file stays."""
    content = _read(root, _HOSTS, _HOSTS_LIMIT)
    if hostname.encode() in content.split():
        return
    if content and not content.endswith(b"\n"):
        content += b"\n"
    syscalls.write_file_inside(root, _HOSTS, content + f"{ADDRESS}\t{hostname}\n".encode())


def _write_machine_id(root: int) -> None:
    """A new id for systemd's and D-Bus' readers. D-Bus' own file is mostly a link to the other one, and then stays one."""
    content = secrets.token_hex(16).encode() + b"\n"
    syscalls.write_file_inside(root, "/etc/machine-id", content, 0o444)
    there = _opened(root, _DBUS_MACHINE_ID)
    if there is not None:
        os.close(there)
        syscalls.write_file_inside(root, _DBUS_MACHINE_ID, content, 0o444)


def _opened(root: int, path: str) -> int | None:
    """A regular file of the workspace, open for reading; None when it has none there. Raises OSError when nobody can tell."""
    try:
        return syscalls.open_regular_inside(root, path)
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
        return None


def _read(root: int, path: str, limit: int) -> bytes:
    """A regular file of the workspace, cut to `limit` bytes; empty when there is none. Raises OSError when it cannot be read."""
    fd = _opened(root, path)
    if fd is None:
        return b""
    with os.fdopen(fd, "rb") as file:
        return file.read(limit)


# Hearing of a fork ----------------------------------------------------------------------------------------------------


def wants_to_hear(root: int) -> bool:
    """Whether a workspace has registered processes or hooks: who uses neither pays nothing for them. Raises Internal when nobody can tell."""
    try:
        return _has_entries(root, REGISTRATIONS) or _has_entries(root, HOOKS)
    except OSError as error:
        raise from_oserror("cannot tell which programs want to hear of the fork", error) from error


def _has_entries(root: int, path: str) -> bool:
    try:
        fd = syscalls.openat2(root, path, os.O_RDONLY | os.O_DIRECTORY, syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS)
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
        return False
    try:
        with os.scandir(fd) as entries:
            return next(entries, None) is not None
    finally:
        os.close(fd)


async def tell(executor: Executor, branch: Workspace) -> str | None:
    """Send the signals and run the hooks of a new branch; what went wrong, None when nothing did."""
    try:
        status, _, err = await executor.run(branch, Command([bundle.INIT, "--after-fork"], cwd="/"), _HOOK_SECONDS)
    except Internal as error:
        return error.message
    except EngineError as error:
        return f"hooks were not run: {error.message}"
    if status == 0:
        return None
    return printable("; ".join(err.decode(errors="replace").splitlines()) or f"hooks ended with status {status}", _MESSAGE_LIMIT)
