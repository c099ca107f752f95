"""Secrets of the portal's own, each in a file that is made at the first start."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

SECRET_BYTES = 32


def read(path: Path, remedy: str) -> bytes:
    """The secret at `path`, `SECRET_BYTES` of it; a new one when there is none. Raises OSError, for a damaged one with what removing it means (`remedy`)."""
    try:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        pass
    else:
        with os.fdopen(made, "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
    secret = path.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise OSError(f"{path} is damaged: remove it, and {remedy}")
    return secret
