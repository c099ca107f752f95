"""The local certificate authority and the certificate the stream process serves."""

from __future__ import annotations

import ipaddress
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from portal.hosts import PORTAL_HOST
from portal.places import Places

_CA_DAYS = 3650
# Browsers refuse leaves that are valid for longer than 398 days, and judges of TLS ask for less than 366.
_LEAF_DAYS = 364
_RENEW_DAYS = 30
_CLOCK_SLACK = timedelta(hours=1)
_ADDRESSES = ("127.0.0.1/32", "::1/128")


def ensure(places: Places, name: str = PORTAL_HOST) -> str:
    """Make what is missing, about to expire or not good for the host `name`; the CA certificate's SHA-256 fingerprint.

    Raises OSError, ValueError (damaged files).
    """
    places.tls.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (places.ca_certificate.exists() and places.ca_key.exists() and _may_sign(places.ca_certificate, name)):
        _write_pair(places.ca_certificate, places.ca_key, *_make_ca(name))
        places.leaf_certificate.unlink(missing_ok=True)
    ca = x509.load_pem_x509_certificate(places.ca_certificate.read_bytes())
    ca_key = serialization.load_pem_private_key(places.ca_key.read_bytes(), None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    if _leaf_is_due(places, ca, name):
        names: list[x509.GeneralName] = [x509.DNSName(one) for one in (name, f"*.{name}", "localhost")]
        names += [x509.IPAddress(ipaddress.ip_address(network.partition("/")[0])) for network in _ADDRESSES]
        leaf, leaf_key = make_leaf(ca, ca_key, names, name)
        chain = leaf.public_bytes(serialization.Encoding.PEM) + ca.public_bytes(serialization.Encoding.PEM)
        _write(places.leaf_key, key_pem(leaf_key), 0o600)
        _write(places.leaf_certificate, chain, 0o644)
    return ":".join(f"{byte:02X}" for byte in ca.fingerprint(hashes.SHA256()))


def _may_sign(path: Path, name: str) -> bool:
    """Whether the CA's constraints permit the host `name` and what is below it."""
    ca = x509.load_pem_x509_certificate(path.read_bytes())
    permitted = ca.extensions.get_extension_for_class(x509.NameConstraints).value.permitted_subtrees or []
    roots = [one.value for one in permitted if isinstance(one, x509.DNSName)]
    return any(name == root or name.endswith(f".{root}") for root in roots)


def _leaf_is_due(places: Places, ca: x509.Certificate, name: str) -> bool:
    if not (places.leaf_certificate.exists() and places.leaf_key.exists()):
        return True
    leaf = x509.load_pem_x509_certificate(places.leaf_certificate.read_bytes())
    if leaf.not_valid_after_utc - datetime.now(timezone.utc) < timedelta(days=_RENEW_DAYS):
        return True
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if f"*.{name}" not in names.get_values_for_type(x509.DNSName):
        return True
    key = serialization.load_pem_private_key(places.leaf_key.read_bytes(), None)
    # An interrupted renewal can leave a new key beside the old certificate.
    return leaf.issuer != ca.subject or leaf.public_key() != key.public_key()


def _make_ca(name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # The serial number is part of the name: a browser that trusts an older CA of the same name would mix them up.
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"TClone local CA {serial % 16**8:08x}")])
    # Whoever has this key can pretend to be what it may sign for, to browsers that trust it: this machine's names and the portal's.
    permitted: list[x509.GeneralName] = [x509.DNSName("localhost")]
    if name != "localhost" and not name.endswith(".localhost"):
        permitted.append(x509.DNSName(name))
    permitted += [x509.IPAddress(ipaddress.ip_network(network)) for network in _ADDRESSES]
    now = datetime.now(timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - _CLOCK_SLACK)
        .not_valid_after(now + timedelta(days=_CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(x509.NameConstraints(permitted, None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def make_leaf(
    ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey, names: list[x509.GeneralName], common_name: str
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """A server certificate for these names, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SLACK)
        .not_valid_after(min(now + timedelta(days=_LEAF_DAYS), ca.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return certificate, key


def _usage(sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The private key as unencrypted PKCS #8."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write_pair(certificate: Path, key: Path, made: x509.Certificate, made_key: ec.EllipticCurvePrivateKey) -> None:
    _write(key, key_pem(made_key), 0o600)
    _write(certificate, made.public_bytes(serialization.Encoding.PEM), 0o644)


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replace a file in one step; it never exists with wider permissions than `mode`."""
    beside = path.with_name(path.name + ".new")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    beside.replace(path)
