"""What a run left on the host, told apart from what others hold fast."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from tests import leaks

_WAIT_SECONDS = 10.0
_POLL_SECONDS = 0.1
_LOOP = "loop device "


class Leftovers:
    """`start()` before anything is made; `check()` after everything is taken away."""

    def __init__(self, directory: Path) -> None:
        self._counter = leaks.LeakCounter()
        self._counter.own_engine(directory / "data", directory / "run")

    def start(self) -> None:
        self._counter.start()

    def check(self) -> tuple[list[str], list[str]]:
        """(left by us, held by others), a line for each, after giving the kernel time to take namespaces down.

        A mount namespace that another program made during the run has copies of our mounts: the pool's loop device then
        lives as long as that program does. Nothing can be done about it from here, so it is told, and is no fault.
        """
        deadline = time.monotonic() + _WAIT_SECONDS
        while (found := self._growth()) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        ours, theirs = [], []
        for line in found:
            holder = _foreign_holder(line.removeprefix(_LOOP).split()[0]) if line.startswith(_LOOP) else None
            if holder is None:
                ours.append(line)
            else:
                theirs.append(f"{line}, in the mount namespace of process {holder}, which is not ours")
        return ours, theirs

    def _growth(self) -> list[str]:
        _reap()
        return self._counter.growth()


def _reap() -> None:
    """Collect every ended child. As the subreaper we are the parent of what the engine or criu left to be waited for."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _foreign_holder(device: str) -> str | None:
    """A process outside this run that has a loop device mounted in a mount namespace of its own; None when there is none, or one of ours too."""
    table = leaks.processes()
    ours = leaks.descendants(os.getpid(), table) | {os.getpid()}
    holder = None
    for process in table.values():
        if any(f" /dev/{device}" in mount for mount in leaks.mounts(process.pid).values()):
            if process.pid in ours:
                return None
            holder = f"{process.pid} ({process.name})"
    return holder
