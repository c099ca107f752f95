"""Accounts of a workspace, as its own /etc/passwd and /etc/group have them; the workspace may write anything there."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from engine import syscalls
from engine.errors import BadRequest, Conflict
from engine.workspace import Workspace

# As a user's name: whoever the desktop belongs to. No account can be called so.
DESKTOP_USER = "@desktop"
_PASSWD_LIMIT = 1 << 20
# The ordinary users of Linux distributions; 65534 is nobody.
_FIRST_PERSON, _LAST_PERSON = 1000, 59999


@dataclass(frozen=True)
class Account:
    uid: int
    gid: int
    name: str
    home: str
    groups: list[int]
    desktop: bool = False  # whether the desktop, if there is one, is this one's


_ROOT = Account(0, 0, "root", "/root", [])


def find_account(workspace: Workspace, user: str) -> Account:
    """Look `user` (a name, a number, `uid:gid`, or DESKTOP_USER) up in the workspace's own tables. Raises Conflict, BadRequest."""
    try:
        root = syscalls.open_of_process(workspace.pid, workspace.pid_start, "root", os.O_PATH | os.O_DIRECTORY)
    except ProcessLookupError:
        raise Conflict(f"the first process of {workspace.id} has ended") from None
    try:
        owner = desktop_account(root)
        found = owner if user == DESKTOP_USER else _named(root, user)
        return replace(found, desktop=found.uid == owner.uid)
    finally:
        os.close(root)


def desktop_account(root: int) -> Account:
    """Whoever the desktop belongs to: the first person in the passwd file below `root`, or root itself where it has none."""
    for row in _table(root, "/etc/passwd"):
        uid = _id(row[2]) if len(row) >= 6 else None
        if uid is not None and _FIRST_PERSON <= uid <= _LAST_PERSON:
            return _of_row(root, row) or _ROOT
    return _ROOT


def _named(root: int, user: str) -> Account:
    name, _, wanted = user.partition(":")
    wanted_gid = _id(wanted)
    for row in _table(root, "/etc/passwd"):
        if len(row) < 6 or name not in (row[0], row[2]):
            continue
        found = _of_row(root, row)
        if found is not None:
            return found if wanted_gid is None else replace(found, gid=wanted_gid)
    if name in ("root", "0"):
        return replace(_ROOT, gid=wanted_gid or 0)
    uid = _id(name)
    if uid is not None:
        return Account(uid, uid if wanted_gid is None else wanted_gid, name, "/", [])
    raise BadRequest(f"no user {name[:80]!r} in the workspace; its /etc/passwd lists them")


def _of_row(root: int, row: list[str]) -> Account | None:
    """The account of a passwd line, None when its numbers are none."""
    uid, gid = _id(row[2]), _id(row[3])
    if uid is None or gid is None:
        return None
    lines = (line for line in _table(root, "/etc/group") if len(line) >= 4 and row[0] in line[3].split(","))
    groups = [number for number in (_id(line[2]) for line in lines) if number is not None]
    return Account(uid, gid, row[0], row[5] or "/", groups)


def _id(text: str) -> int | None:
    """A user's or group's number as a workspace may write it; None for anything else, as -1, which means nobody, is."""
    if not text.isascii() or not text.isdecimal() or len(text) > 10 or int(text) >= (1 << 32) - 1:
        return None
    return int(text)


def _table(root: int, path: str) -> list[list[str]]:
    """Colon-separated lines of a file that the workspace controls; empty when it is missing or not a plain file."""
    try:
        fd = syscalls.open_regular_inside(root, path)
    except OSError:
        return []
    with os.fdopen(fd, "rb") as file:
        return [line.split(":") for line in file.read(_PASSWD_LIMIT).decode(errors="replace").splitlines()]
