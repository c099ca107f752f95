"""The benchmarks' own C programs, built at the start of each run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from engine.errors import Unavailable

SOURCES = Path(__file__).resolve().parent


def build(name: str, into: Path, *libraries: str) -> Path:
    """Compile `<name>.c`: statically, so that it runs in any root, unless it needs `libraries`. Raises Unavailable with the compiler's words."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise Unavailable("no C compiler: install gcc")
    program = into / name
    linking = [f"-l{library}" for library in libraries] or ["-static"]
    argv = [compiler, "-std=gnu11", "-O2", "-Wall", "-o", str(program), str(SOURCES / f"{name}.c"), *linking]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"{compiler} cannot build {name}.c: {done.stderr.strip()[-500:]}")
    return program
