"""A part of a test in a process of its own: the harness takes a private mount namespace, which such a process can throw away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_apart(module: str, *arguments: object, seconds: float = 60) -> str:
    """What `python -m MODULE ARGUMENTS` prints. AssertionError with all that it said when it fails; TimeoutExpired after `seconds`."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, timeout=seconds, check=False, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, f"{module} {' '.join(map(str, arguments))}:\n{done.stderr}\n{done.stdout}"
    return done.stdout
