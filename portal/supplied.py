"""A certificate that the operator supplies, checked before anything is served with it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from engine.config import Config


def pair(config: Config) -> tuple[Path, Path] | None:
    """Certificate chain and key, None when the portal's own CA signs. Raises ValueError when only one of the two is given."""
    if config.tls_certificate is None and config.tls_key is None:
        return None
    if config.tls_certificate is None or config.tls_key is None:
        raise ValueError("TCLONE_TLS_CERT and TCLONE_TLS_KEY go together; set both or none")
    return config.tls_certificate, config.tls_key


def check(certificate: Path, key: Path, host: str) -> None:
    """Raises OSError (not readable for the portal's user) or ValueError, which says what is wrong with which file."""
    try:
        leaf = x509.load_pem_x509_certificates(certificate.read_bytes())[0]
    except ValueError:
        raise ValueError(f"{certificate} holds no PEM certificate") from None
    try:
        private = serialization.load_pem_private_key(key.read_bytes(), None)
    except (ValueError, TypeError):
        raise ValueError(f"{key} holds no PEM private key without a passphrase") from None
    if private.public_key() != leaf.public_key():
        raise ValueError(f"{key} is not the key of {certificate}")
    if leaf.not_valid_after_utc <= datetime.now(UTC):
        raise ValueError(f"{certificate} expired at {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    names = _names(leaf)
    if missing := [name for name in (host, f"*.{host}") if name not in names and not _covered(name, names)]:
        raise ValueError(f"{certificate} is not good for {' and '.join(missing)}: desktops are one label below the portal's name")


def _names(leaf: x509.Certificate) -> list[str]:
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return [name.lower() for name in found.value.get_values_for_type(x509.DNSName)]


def _covered(name: str, names: list[str]) -> bool:
    """A wildcard stands for one label."""
    return not name.startswith("*.") and f"*.{name.partition('.')[2]}" in names
