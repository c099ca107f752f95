"""Seals what the portal has to know again itself, so that whoever gets the database alone, or a backup, does not."""

from __future__ import annotations

import base64
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from portal import own_secret

_NONCE_BYTES = 12


class Sealing:
    """AES-256-GCM by a key in a file beside the database, which no backup holds. `open` before use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._cipher: AESGCM | None = None

    def open(self) -> None:
        """Read the key, which is made at the first start. Raises OSError."""
        self._cipher = AESGCM(own_secret.read(self._path, "users come in by their recovery codes"))

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
