"""The fidelity programs: which there are, and how they are built."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "programs"
LAUNCHER = "launch"
_CFLAGS = ("-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-static", "-pthread")


class BuildError(Exception):
    """A program does not compile; the message is the compiler's."""


def names() -> list[str]:
    """Every program but the launcher, sorted."""
    return sorted(path.stem for path in SOURCES.glob("*.c") if path.stem != LAUNCHER)


def build(name: str, directory: Path) -> Path:
    """Compile one program into `directory` unless it is up to date there; returns the static binary."""
    source = SOURCES / f"{name}.c"
    binary = directory / name
    newest = max(source.stat().st_mtime, (SOURCES / "fidelity.h").stat().st_mtime)
    if binary.exists() and binary.stat().st_mtime > newest:
        return binary
    directory.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["gcc", *_CFLAGS, "-o", str(binary), str(source)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(done.stderr)
    return binary
