"""The root file system of a workspace: an overlay made by the new mount API, held by descriptor and mounted nowhere on the host."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from engine import syscalls
from engine.errors import Internal, NoSpace

_VALUE_LIMIT = 255  # bytes of one fsconfig string


def mount_overlay(lower: list[Path], upper: Path, work: Path) -> int:
    """Mount overlay(lower[0] on top, upper, work) detached; returns its descriptor (close-on-exec, O_PATH).

    index, metacopy and redirect_dir are switched off, whatever the kernel's default: a branch's upper is a copy of its
    parent's, and an index or redirect written by one mount must not bind another. Raises NoSpace, Internal.
    """
    held: list[int] = []
    context = syscalls.fsopen("overlay")
    held.append(context)
    try:
        syscalls.fsconfig_string(context, "source", "tclone")
        _set_lower(context, [_option_path(path, held) for path in lower])
        syscalls.fsconfig_string(context, "upperdir", _option_path(upper, held))
        syscalls.fsconfig_string(context, "workdir", _option_path(work, held))
        for option in ("index", "metacopy", "redirect_dir"):
            syscalls.fsconfig_string(context, option, "off")
        syscalls.fsconfig_create(context)
        return syscalls.fsmount(context)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise NoSpace(f"no space left for the root file system at {upper}") from error
        raise Internal(f"cannot mount the root file system at {upper}: {error.strerror}") from error
    finally:
        for fd in held:
            os.close(fd)


def _set_lower(context: int, paths: list[str]) -> None:
    """Layers one by one (Linux 6.5), else as the one colon-separated option."""
    try:
        for path in paths:
            syscalls.fsconfig_string(context, "lowerdir+", path)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        syscalls.fsconfig_string(context, "lowerdir", ":".join(paths))


def _option_path(path: Path, held: list[int]) -> str:
    """The path itself, or a short descriptor path when it is too long for an option or holds a separator."""
    text = str(path)
    if len(os.fsencode(text)) <= _VALUE_LIMIT and not any(character in text for character in ":,\\"):
        return text
    fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    held.append(fd)
    return f"/proc/self/fd/{fd}"
