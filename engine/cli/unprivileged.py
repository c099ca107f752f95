"""Starts a portal process as the portal's user: `python -m engine.cli.unprivileged [--bind-low-ports] USER -- COMMAND…`, as root.

The code may lie where that user cannot go (a clone in /root, mode 0700). Opening up somebody's home directory is not ours to do, so
in that case the process gets a mount namespace of its own in which the closed directory is an empty one that holds only
the trees it has to read. The paths stay the same and nothing else in that directory is visible to it.
"""

from __future__ import annotations

import argparse
import os
import pwd
import sys
from pathlib import Path

from engine import config, syscalls

_MS_PRIVATE = 0x40000
_MS_NOSUID_NODEV = 0x2 | 0x4
SETPRIV = "/usr/bin/setpriv"


def needed_trees() -> list[Path]:
    """Directories a portal process reads code from: the checkout, the virtual environment, the interpreter's own."""
    trees: list[Path] = []
    for tree in (config.REPO, Path(sys.prefix), Path(sys.base_prefix)):
        if not any(tree.is_relative_to(known) for known in trees):
            trees.append(tree)
    return trees


def _others_may_enter(directory: Path, uid: int, gid: int) -> bool:
    status = directory.stat()
    if status.st_uid == uid:
        return bool(status.st_mode & 0o100)
    if status.st_gid == gid:
        return bool(status.st_mode & 0o010)
    return bool(status.st_mode & 0o001)


def first_closed(path: Path, uid: int, gid: int) -> Path | None:
    """The topmost directory above or at `path` that the user cannot enter, or None."""
    for directory in [*reversed(path.parents), path]:
        if not _others_may_enter(directory, uid, gid):
            return directory
    return None


def _open_the_way(trees: list[Path], uid: int, gid: int) -> None:
    closed = {tree: first_closed(tree, uid, gid) for tree in trees}
    covered = {directory for directory in closed.values() if directory is not None}
    if not covered:
        return
    for tree, directory in closed.items():
        if directory == tree:
            raise SystemExit(f"tclone: user id {uid} cannot enter {tree}; run `chmod o+x {tree}`")
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", None, _MS_PRIVATE | syscalls.MS_REC)
    kept = {tree: syscalls.open_tree(str(tree), clone=True) for tree, directory in closed.items() if directory}
    for directory in covered:
        syscalls.mount("tmpfs", str(directory), "tmpfs", _MS_NOSUID_NODEV, "mode=0755,size=1m")
    for tree, descriptor in kept.items():
        tree.mkdir(parents=True, exist_ok=True)
        syscalls.move_mount(descriptor, str(tree))
        os.close(descriptor)


def launcher(user: str, low_ports: bool = False) -> list[str]:
    """The command line in front of one that is to run as `user`."""
    flags = ["--bind-low-ports"] if low_ports else []
    return [sys.executable, "-m", "engine.cli.unprivileged", *flags, user, "--"]


def setpriv_arguments(account: pwd.struct_passwd, low_ports: bool) -> list[str]:
    """setpriv's command line that leaves nothing of root, but the right to bind ports below 1024 if wanted, and ends the process
    with its supervisor."""
    kept = "-all,+net_bind_service" if low_ports else "-all"
    return [
        SETPRIV,
        f"--reuid={account.pw_uid}",
        f"--regid={account.pw_gid}",
        "--init-groups",
        f"--inh-caps={kept}",
        *([f"--ambient-caps={kept}"] if low_ports else []),
        f"--bounding-set={kept}",
        "--no-new-privs",
        "--pdeathsig=TERM",
        "--",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m engine.cli.unprivileged")
    parser.add_argument("--bind-low-ports", action="store_true")
    parser.add_argument("user")
    parser.add_argument("argv", nargs="+")
    arguments = parser.parse_args()
    account = pwd.getpwnam(arguments.user)
    _open_the_way(needed_trees(), account.pw_uid, account.pw_gid)
    os.chdir("/")
    argv = [*setpriv_arguments(account, arguments.bind_low_ports), *arguments.argv]
    os.execv(argv[0], argv)


if __name__ == "__main__":
    main()
