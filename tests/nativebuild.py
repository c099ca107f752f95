"""Builds of the native programs that only tests want. What was compiled is kept beside the images of the tests, so that only changes are compiled again."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[1] / "native"
# Seconds that a build may take on a busy machine; with nothing kept it takes 40 s of a processor.
BUILD_SECONDS = 600
_JOBS = min(os.cpu_count() or 1, 4)


def make(*words: str) -> None:
    """Run `make` in native/ with `words`: targets and variables. Raises AssertionError with what the compiler said.

    One at a time: tests that run side by side want the same files, and one would link what the other is about to write.
    """
    argv = ["make", "-s", "-C", str(NATIVE), "-j", str(_JOBS), *words]
    environment = dict(os.environ)
    if "TCLONE_CACHE" in environment and shutil.which("ccache"):
        argv.append("CC=ccache gcc")
        environment["CCACHE_DIR"] = str(Path(environment["TCLONE_CACHE"]) / "ccache")
    with open(NATIVE / "Makefile", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False, env=environment)
    assert done.returncode == 0, done.stderr
