"""Seals what the portal has to know again itself, so that whoever gets the database alone, or a backup, does not."""

from __future__ import annotations

import base64
import os
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_KEY_BYTES = 32
_NONCE_BYTES = 12


class Sealing:
    """AES-256-GCM by a key in a file beside the database, which no backup holds. `open` before use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._cipher: AESGCM | None = None

    def open(self) -> None:
        """Read the key, which is made at the first start. Raises OSError."""
        try:
            made = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            pass
        else:
            with os.fdopen(made, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
        key = self._path.read_bytes()
        if len(key) != _KEY_BYTES:
            raise OSError(f"{self._path} is damaged: remove it, and users come in by their recovery codes")
        self._cipher = AESGCM(key)

    def seal(self, text: str, whose: str) -> str:
        """What is stored of a text; it opens for the same `whose` only."""
        assert self._cipher is not None, "not open"
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return base64.b64encode(nonce + self._cipher.encrypt(nonce, text.encode(), whose.encode())).decode()

    def unseal(self, sealed: str, whose: str) -> str | None:
        """The text again; None when it was sealed by another key, for somebody else, or is damaged."""
        assert self._cipher is not None, "not open"
        try:
            raw = base64.b64decode(sealed, validate=True)
            return self._cipher.decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], whose.encode()).decode()
        except (InvalidTag, ValueError):
            return None
