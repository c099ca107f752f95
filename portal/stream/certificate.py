"""The certificate that is served: read at the start, and again when its files change."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0


class Certificate:
    """`context` is what connections are made with; those that are open keep what they began with. `on_change` is called when it has new files."""

    def __init__(self, chain: Path, key: Path, look_seconds: float = _LOOK_SECONDS) -> None:
        """Raises OSError (ssl.SSLError is one)."""
        self.chain = chain
        self.key = key
        self.on_change: Callable[[], None] = lambda: None
        self._look_seconds = look_seconds
        self._seen = self._stamp()
        self.context = _context()
        self.context.load_cert_chain(chain, key)

    async def watch(self) -> None:
        """For ever: take over new files. Ones that do not fit together leave the old certificate in place; the next change is tried again."""
        while True:
            await asyncio.sleep(self._look_seconds)
            stamp = await asyncio.to_thread(self._stamp)
            if stamp == self._seen:
                continue
            self._seen = stamp
            try:
                # Into a context of its own first: a half-loaded pair in the real one would break every handshake.
                await asyncio.to_thread(_context().load_cert_chain, self.chain, self.key)
                self.context.load_cert_chain(self.chain, self.key)
                self.on_change()
                _log.info("the certificate %s was read again", self.chain)
            except OSError as exc:
                _log.error("the certificate %s with key %s cannot be used, the old one stays: %s", self.chain, self.key, exc)

    def _stamp(self) -> tuple[object, ...]:
        found: list[object] = []
        for path in (self.chain, self.key):
            try:
                status = path.stat()
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
            except OSError:
                found.append(None)
        return tuple(found)


def _context() -> ssl.SSLContext:
    """HTTP/1.1 only: the relay hands connections over whole."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # What authenticates what it encrypts, with keys of the connection's own; Python's list has CBC with SHA-1, too. TLS 1.3 has nothing else.
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    return context
