"""Whether a workspace's start command can be executed at all: looked up in its root as execvp(3) will, before anything starts."""

from __future__ import annotations

import os
import stat
from pathlib import PurePosixPath

from engine import syscalls
from engine.errors import BadRequest

_PATH_WITHOUT_VARIABLE = "/bin:/usr/bin"  # confstr(_CS_PATH), which execvp takes without PATH
_RESOLVE = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
_FIRST_LINE = 256


def check_start_command(root: int, command: list[str], env: dict[str, str], workdir: str) -> None:
    """Raise BadRequest, naming what is missing, when `command` cannot be executed in the tree at `root`."""
    name = command[0]
    search = env.get("PATH", _PATH_WITHOUT_VARIABLE)
    if "/" in name:
        places = [str(PurePosixPath(workdir or "/", name))]
    else:
        places = [str(PurePosixPath(workdir or "/", directory, name)) for directory in search.split(":")]
    refused = ""
    for place in places:
        try:
            found = syscalls.openat2(root, place, os.O_PATH, _RESOLVE)
        except OSError:
            continue
        try:
            mode = os.fstat(found).st_mode
            if stat.S_ISREG(mode) and mode & 0o111:
                _check_interpreter(root, place, found)
                return
            refused = f"{place} is not an executable file"
        finally:
            os.close(found)
    where = f" (looked in {search})" if "/" not in name else ""
    raise BadRequest(f"cannot start {name!r}: {refused or f'command not found{where}'}; give another command after `--`")


def _check_interpreter(root: int, place: str, found: int) -> None:
    """A script whose interpreter is missing fails as if it were missing itself."""
    with open(f"/proc/self/fd/{found}", "rb") as file:
        first = file.read(_FIRST_LINE).split(b"\n", 1)[0]
    words = first[2:].split()
    if not first.startswith(b"#!") or not words:
        return
    interpreter = os.fsdecode(words[0])
    try:
        os.close(syscalls.openat2(root, interpreter, os.O_PATH, _RESOLVE))
    except (OSError, ValueError):
        raise BadRequest(f"cannot start {place}: its interpreter {interpreter!r} is not in the image; give another command after `--`") from None
