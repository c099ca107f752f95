"""`tclone backup` and `tclone restore`: what the portal keeps, into a file of root's and back. portal.backup does the work, as the portal's user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from engine.cli import host, services
from engine.cli.unprivileged import launcher
from engine.config import Config
from engine.errors import Conflict, Internal, NotFound


def save(config: Config, path: Path) -> int:
    """Write a new archive, readable for root alone. Raises EngineError; then there is no file."""
    host.require_root("backup")
    services.authority(config)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise Conflict(f"{path} exists; give another name") from None
    except OSError as error:
        raise Internal(f"cannot make {path}: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            _run(config, ["save"], stdout=file)
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    print(f"{path}: {path.stat().st_size} bytes; it holds the portal's keys")
    return 0


def load(config: Config, path: Path) -> int:
    """Put an archive back; nothing is changed unless all of it is good. Raises EngineError."""
    host.require_root("restore")
    try:
        file = path.open("rb")
    except OSError as error:
        raise NotFound(f"cannot read {path}: {error.strerror}") from error
    with file:
        # As `up` does: a machine on which TClone was never up has neither user nor directories.
        host.prepare_directories(config, host.ensure_user(config.portal_user))
        services.first_start(config)
        manifest = json.loads(_run(config, ["load"], stdin=file, stdout=subprocess.PIPE))
    print(f"restored what TClone {manifest['version']} saved; all sessions are ended. Next: tclone up")
    return 0


def _run(config: Config, words: Sequence[str], stdout: IO[bytes] | int, stdin: IO[bytes] | int = subprocess.DEVNULL) -> bytes:
    argv = [*launcher(config.portal_user), sys.executable, "-m", "portal.backup", *words]
    done = subprocess.run(argv, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, cwd="/", env=services.service_environment(config, config.portal_port), check=False)
    said = done.stderr.decode(errors="replace").strip()
    if done.returncode == 1:
        raise Conflict(said)
    if done.returncode != 0:
        raise Internal(f"the portal's data could not be used (status {done.returncode}):\n{said}")
    return done.stdout or b""
