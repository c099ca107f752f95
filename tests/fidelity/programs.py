"""The fidelity programs: which there are, and how they are built."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "programs"
LAUNCHER = "launch"
# Kept from run to run, beside what is built of the native programs.
BUILT = Path(__file__).resolve().parents[2] / "native" / "build" / "fidelity"
_CFLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-static", "-pthread")


class BuildError(Exception):
    """A program does not compile; the message is the compiler's."""


def names() -> list[str]:
    """Every program but the launcher, sorted."""
    return sorted(path.stem for path in SOURCES.glob("*.c") if path.stem != LAUNCHER)


def build(name: str, directory: Path = BUILT) -> Path:
    """Compile one program of this directory as `compiled` does."""
    return compiled(SOURCES / f"{name}.c", directory)


def compiled(source: Path, directory: Path | None = None) -> Path:
    """Compile a source into `directory` (default: one for its own directory) unless it is up to date there; the static binary. Raises BuildError."""
    directory = directory or BUILT / source.parent.name
    binary = directory / source.stem
    newest = max(path.stat().st_mtime for path in (source, *source.parent.glob("*.h")))
    if binary.exists() and binary.stat().st_mtime > newest:
        return binary
    directory.mkdir(parents=True, exist_ok=True)
    # Several runs may build at once: each program appears whole or not at all.
    part = directory / f".{source.stem}.{os.getpid()}"
    done = subprocess.run(["gcc", *_CFLAGS, "-o", str(part), str(source)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(done.stderr)
    part.replace(binary)
    return binary


def build_all(names: list[str], directory: Path) -> list[Path]:
    """Compile several programs, as many at once as there are CPUs."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda name: build(name, directory), names))
