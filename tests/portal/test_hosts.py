"""The portal under a real domain: origins, certificates, HSTS, front proxies."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from multidict import CIMultiDict, CIMultiDictProxy

from engine.config import REPO, Config
from portal import certificates, hosts, supplied
from portal.places import Places
from portal.security import content_security_policy
from portal.setup import prepare
from portal.stream import headers, routing
from portal.stream.certificate import Certificate
from portal.stream.peers import FrontProxies
from tests.portal.conftest import PATIENCE

HOST = "desks.example.org"


@pytest.fixture
def domain() -> Iterator[None]:
    hosts.serve(HOST, certified=True)
    yield
    hosts.serve(hosts.PORTAL_HOST, certified=False)


def issue(directory: Path, name: str = HOST, days: int = 30, names: list[str] | None = None, stem: str = "given") -> tuple[Path, Path]:
    """A certificate as an operator gets it from somewhere."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=60))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(one) for one in (names or [name, f"*.{name}"])]), critical=False)
        .sign(key, hashes.SHA256())
    )
    chain, secret = directory / f"{stem}.pem", directory / f"{stem}.key"
    chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(certificates.key_pem(key))
    return chain, secret


@pytest.mark.usefixtures("domain")
def test_origins_policies_and_routes_follow_the_name() -> None:
    assert hosts.portal_origin("desks.example.org") == "https://desks.example.org"
    assert hosts.desktop_origin("ws-2", "desks.example.org:9443") == "https://ws-2.desks.example.org:9443"
    route = routing.resolve("ws-2.desks.example.org")
    assert route is not None and (route.kind, route.portal_origin) == ("desktop", "https://desks.example.org")
    for other in ("tclone.localhost", "ws-2.tclone.localhost", "example.org", "x.desks.example.org", "desks.example.org.evil.example"):
        assert routing.resolve(other) is None, other
    assert "frame-src https://*.desks.example.org:9443;" in content_security_policy("desks.example.org:9443")


@pytest.mark.usefixtures("domain")
def test_hsts_is_sent_with_the_operators_certificate() -> None:
    assert headers.desktop_policy("https://desks.example.org")["Strict-Transport-Security"] == "max-age=31536000; includeSubDomains"


def test_hsts_is_not_sent_with_our_own() -> None:
    assert "Strict-Transport-Security" not in headers.desktop_policy("https://tclone.localhost") and hosts.transport_policy() == {}


@pytest.mark.parametrize("name", ["", "localhost", "a_b.example", "https://x.example", "x.example:8443", "-a.example", "1.2.3.4", "x..example", "x.example/"])
def test_what_is_no_host_name_is_refused(name: str, config: Config) -> None:
    with pytest.raises(ValueError, match="TCLONE_PORTAL_HOST"):
        prepare(replace(config, portal_host=name))


def test_our_own_ca_signs_for_the_domain_and_nothing_else(config: Config) -> None:
    places = Places(config)
    first = certificates.ensure(places)
    second = certificates.ensure(places, HOST)
    assert first != second, "a CA for this machine's names alone may not sign for a domain"
    ca = x509.load_pem_x509_certificate(places.ca_certificate.read_bytes())
    permitted = ca.extensions.get_extension_for_class(x509.NameConstraints).value.permitted_subtrees
    assert [one.value for one in permitted or [] if isinstance(one, x509.DNSName)] == ["localhost", HOST]
    leaf = x509.load_pem_x509_certificate(places.leaf_certificate.read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    assert names[:2] == [HOST, f"*.{HOST}"]
    assert certificates.ensure(places, HOST) == second
    assert certificates.ensure(places) == second, "it may sign for this machine's names, too"


def test_a_supplied_certificate_is_checked_and_each_fault_named(tmp_path: Path, config: Config) -> None:
    good = issue(tmp_path)
    supplied.check(*good, HOST)
    for pair, said in (
        ((good[0], issue(tmp_path, stem="other")[1]), "is not the key of"),
        (issue(tmp_path, days=-1, stem="old"), "expired"),
        (issue(tmp_path, names=[HOST], stem="single"), r"not good for \*\.desks"),
        (issue(tmp_path, name="example.com", stem="foreign"), "not good for desks"),
        ((good[1], good[1]), "no PEM certificate"),
        ((good[0], good[0]), "no PEM private key"),
    ):
        with pytest.raises(ValueError, match=said):
            supplied.check(*pair, HOST)
    with pytest.raises(OSError):
        supplied.check(tmp_path / "absent.pem", good[1], HOST)
    with pytest.raises(ValueError, match="go together"):
        prepare(replace(config, tls_certificate=good[0]))


async def served_serial(certificate: Certificate) -> int:
    """Of the certificate that a new connection is shown."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=certificate.context)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1], ssl=context)
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
    finally:
        server.close()
    return x509.load_der_x509_certificate(shown).serial_number


async def test_a_renewed_certificate_is_taken_over_and_a_broken_one_is_not(tmp_path: Path) -> None:
    chain, key = issue(tmp_path)
    certificate = Certificate(chain, key, look_seconds=0.02)
    watching = asyncio.create_task(certificate.watch())
    try:
        first = await served_serial(certificate)
        chain.write_text("nonsense")
        await asyncio.sleep(0.3)
        assert await served_serial(certificate) == first
        issue(tmp_path)
        async with asyncio.timeout(PATIENCE):
            while (now := await served_serial(certificate)) == first:
                await asyncio.sleep(0.05)
        assert now == x509.load_pem_x509_certificate(chain.read_bytes()).serial_number
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def forwarded(*values: str) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict([("X-Forwarded-For", value) for value in values]))


@pytest.mark.parametrize(
    "peer, values, address",
    [
        ("192.0.2.1", ["203.0.113.9"], "192.0.2.1"),
        ("10.0.0.5", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.5", ["198.51.100.1, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.5", ["198.51.100.1", "2001:db8::1"], "2001:db8::1"),
        ("10.0.0.5", [], "10.0.0.5"),
        ("10.0.0.5", ["<script>"], "10.0.0.5"),
        ("", ["203.0.113.9"], ""),
    ],
)
def test_only_a_front_proxy_is_believed_and_only_its_own_entry(peer: str, values: list[str], address: str) -> None:
    assert FrontProxies(["10.0.0.0/8"]).address(peer, forwarded(*values)) == address
    assert FrontProxies().address(peer, forwarded(*values)) == peer


def test_bad_settings_stop_the_stream_process_with_a_reason(config: Config, tmp_path: Path) -> None:
    environment = {
        **os.environ, "TCLONE_DATA": str(config.data), "TCLONE_RUN": str(config.run), "TCLONE_PORTAL_USER": config.portal_user,
        "TCLONE_TLS_CERT": str(tmp_path / "absent.pem"),
    }  # fmt: skip
    command = [sys.executable, "-m", "portal.stream", "--port", "18999"]
    for arguments, status, said in ((["--behind-proxy", "everywhere"], 2, "everywhere"), ([], 9, "TCLONE_TLS_KEY go together")):
        done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, cwd=REPO, timeout=120, check=False)
        assert done.returncode == status and said in done.stderr
