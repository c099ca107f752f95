"""A part of a test in a process of its own: the harness takes a private mount namespace for its whole process, which such a process can throw away."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.fidelity.harness import own_mount_namespace


def run_apart(module: str, *arguments: object, seconds: float = 60) -> str:
    """What `python -m MODULE ARGUMENTS` prints. AssertionError with all that it said when it fails; TimeoutExpired after `seconds`."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, timeout=seconds, check=False, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, f"{module} {' '.join(map(str, arguments))}:\n{done.stderr}\n{done.stdout}"
    return done.stdout


def run_in_child(work: Callable[[], object]) -> int:
    """Do `work` in a forked child with a mount namespace of its own. The child's pid, which has ended; AssertionError when it failed: why is on stderr."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            own_mount_namespace()
            work()
            status = 0
        except BaseException:  # the child must never return into pytest
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "see stderr"
    return pid
