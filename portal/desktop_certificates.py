"""A certificate for each desktop's host, made when a browser first asks for that host.

`*.localhost` in the common leaf does not do: OpenSSL and Chromium refuse a wildcard directly below a top-level name, and a frame has no
page on which a person could accept it.
"""

from __future__ import annotations

import ssl
import tempfile
from collections import OrderedDict
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from portal import certificates, hosts

# One context takes about 60 KiB; the least used go first.
_KEPT = 256


class DesktopCertificates:
    """`install(context)` on a server's TLS context; `directory` holds the CA (docs/reference/portal.md)."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError, ValueError when the CA cannot be read."""
        self._ca = x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes())
        key = serialization.load_pem_private_key((directory / "ca.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key
        self._contexts: OrderedDict[str, ssl.SSLContext] = OrderedDict()

    def install(self, context: ssl.SSLContext) -> None:
        """Answer handshakes for `<id>.localhost` with that name's certificate, all others as before."""

        def choose(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, original: ssl.SSLContext) -> None:
            if name and hosts.workspace_of(name):
                connection.context = self._context(name.lower(), original)

        context.sni_callback = choose

    def _context(self, name: str, like: ssl.SSLContext) -> ssl.SSLContext:
        context = self._contexts.pop(name, None) or self._make(name, like)
        self._contexts[name] = context
        while len(self._contexts) > _KEPT:
            self._contexts.popitem(last=False)
        return context

    def _make(self, name: str, like: ssl.SSLContext) -> ssl.SSLContext:
        leaf, key = certificates.make_leaf(self._ca, self._key, [x509.DNSName(name)], name)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = like.minimum_version
        context.options |= like.options
        pem = serialization.Encoding.PEM
        # load_cert_chain reads files only; the key is in one for microseconds, mode 0600.
        with tempfile.NamedTemporaryFile(prefix="tclone-") as file:
            file.write(certificates.key_pem(key) + leaf.public_bytes(pem) + self._ca.public_bytes(pem))
            file.flush()
            context.load_cert_chain(file.name)
        return context
