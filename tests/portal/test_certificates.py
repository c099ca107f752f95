"""The local CA: what browsers may trust it with, and who can read its keys."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import stat
from datetime import datetime, timedelta, timezone

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from engine.config import Config
from portal import certificates
from portal.places import Places


@pytest.fixture
def places(config: Config) -> Places:
    return Places(config)


def test_keys_are_private_and_nothing_changes_the_second_time(places: Places) -> None:
    fingerprint = certificates.ensure(places)
    before = {path.name: path.read_bytes() for path in places.tls.iterdir()}
    assert certificates.ensure(places) == fingerprint
    assert {path.name: path.read_bytes() for path in places.tls.iterdir()} == before
    assert {path.name for path in places.tls.iterdir()} == {"ca.pem", "ca.key", "leaf.pem", "leaf.key"}
    for key in (places.ca_key, places.leaf_key):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    ca = x509.load_pem_x509_certificate(places.ca_certificate.read_bytes())
    assert fingerprint.replace(":", "").lower() == ca.fingerprint(hashes.SHA256()).hex()


def test_the_ca_is_good_for_this_machine_only(places: Places) -> None:
    certificates.ensure(places)
    ca = x509.load_pem_x509_certificate(places.ca_certificate.read_bytes())
    constraints = ca.extensions.get_extension_for_class(x509.NameConstraints)
    assert constraints.critical
    permitted = constraints.value.permitted_subtrees
    assert [name.value for name in permitted if isinstance(name, x509.DNSName)] == ["localhost"]
    networks = [name.value for name in permitted if isinstance(name, x509.IPAddress)]
    assert networks == [ipaddress.ip_network("127.0.0.1/32"), ipaddress.ip_network("::1/128")]
    assert ca.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0


def test_the_leaf_names_the_portal_and_every_desktop(places: Places) -> None:
    certificates.ensure(places)
    leaf = x509.load_pem_x509_certificate(places.leaf_certificate.read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["tclone.localhost", "*.tclone.localhost", "localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    assert leaf.not_valid_after_utc - leaf.not_valid_before_utc < timedelta(days=398)


@pytest.mark.parametrize("name", ["localhost", "tclone.localhost", "ws-7.tclone.localhost", "127.0.0.1"])
async def test_a_client_that_trusts_the_ca_connects(places: Places, name: str) -> None:
    certificates.ensure(places)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(places.leaf_certificate, places.leaf_key)

    def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server_side)
    client_side = ssl.create_default_context(cafile=str(places.ca_certificate))
    port = server.sockets[0].getsockname()[1]
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_side, server_hostname=name)
    writer.close()
    await writer.wait_closed()
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.open_connection("127.0.0.1", port, ssl=client_side, server_hostname="evil.example")
    server.close()
    await server.wait_closed()


def test_a_leaf_about_to_expire_is_renewed_under_the_same_ca(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    fingerprint = certificates.ensure(places)
    old = places.leaf_certificate.read_bytes()

    class Later(datetime):
        @classmethod
        def now(cls, tz: timezone | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(days=370)

    monkeypatch.setattr(certificates, "datetime", Later)
    assert certificates.ensure(places) == fingerprint
    assert places.leaf_certificate.read_bytes() != old


def test_an_interrupted_renewal_is_repaired(places: Places) -> None:
    certificates.ensure(places)
    other = places.leaf_key.read_bytes()
    places.leaf_certificate.unlink()
    certificates.ensure(places)
    places.leaf_key.write_bytes(other)
    certificates.ensure(places)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(places.leaf_certificate, places.leaf_key)
