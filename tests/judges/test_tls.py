"""What the portal's listener agrees to in TLS, tried by sslyze, which also offers what no library of today would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from portal.hosts import PORTAL_HOST
from tests.stream.stack import Stack, viewer_session

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]
_ENCRYPTING = ("_GCM_SHA256", "_GCM_SHA384", "_CHACHA20_POLY1305_SHA256")


async def _scan(program: Path, stack: Stack, directory: Path) -> dict[str, Any]:
    report = directory / "tls.json"
    process = await asyncio.create_subprocess_exec(
        str(program), "--json_out", str(report), "--certinfo_ca_file", str(stack.places.ca_certificate), "--sni", PORTAL_HOST,
        "--slow_connection", "--mozilla_config", "disable", "--certinfo", "--sslv2", "--sslv3", "--tlsv1", "--tlsv1_1", "--tlsv1_2", "--tlsv1_3",
        "--compression", "--reneg", "--fallback", "--heartbleed", "--openssl_ccs", "--robot", "--early_data", "--ems", f"127.0.0.1:{stack.port}",
        cwd=directory, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said = (await process.communicate())[0].decode(errors="replace")
    assert report.exists(), said[-3000:]
    (scan,) = json.loads(report.read_text())["server_scan_results"]
    attempts = scan["scan_result"]
    failed = {name: one for name, one in attempts.items() if one["status"] not in ("COMPLETED", "NOT_SCHEDULED")}
    assert not failed, failed
    return {name: one["result"] for name, one in attempts.items() if one["result"] is not None}


async def test_the_listener_agrees_to_nothing_weak(stack: Stack, judge: Callable[[str], Path], tmp_path: Path) -> None:
    found = await _scan(judge("sslyze"), stack, tmp_path)
    accepted = {name: [suite["cipher_suite"]["name"] for suite in found[f"{name}_cipher_suites"]["accepted_cipher_suites"]]
                for name in ("ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1", "tls_1_2", "tls_1_3")}  # fmt: skip
    assert not any(accepted[name] for name in ("ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1")), accepted
    # Forward secrecy, and a cipher that authenticates what it encrypts: no CBC, no SHA-1.
    assert accepted["tls_1_2"] and all("ECDHE" in suite and suite.endswith(_ENCRYPTING) for suite in accepted["tls_1_2"]), accepted
    assert accepted["tls_1_3"] and all(suite.endswith(_ENCRYPTING) for suite in accepted["tls_1_3"]), accepted
    assert found["tls_compression"]["supports_compression"] is False
    assert found["session_renegotiation"]["is_vulnerable_to_client_renegotiation_dos"] is False
    assert found["session_renegotiation"]["supports_secure_renegotiation"] is True
    assert found["tls_fallback_scsv"]["supports_fallback_scsv"] is True
    assert found["tls_extended_master_secret"]["supports_ems_extension"] is True
    assert found["heartbleed"]["is_vulnerable_to_heartbleed"] is False
    assert found["openssl_ccs_injection"]["is_vulnerable_to_ccs_injection"] is False
    assert found["robot"]["robot_result"].startswith("NOT_VULNERABLE")
    # Requests that a stranger could send again.
    assert found["tls_1_3_early_data"]["supports_early_data"] is False


async def test_the_chain_is_good_for_the_portal_and_its_maker_for_nothing_else(stack: Stack, judge: Callable[[str], Path], tmp_path: Path) -> None:
    found = await _scan(judge("sslyze"), stack, tmp_path)
    (chain,) = found["certificate_info"]["certificate_deployments"]
    trust = {one["trust_store"]["name"]: one for one in chain["path_validation_results"]}
    assert trust["Supplied CA file"]["validation_error"] is None
    # A CA of its own, which no browser trusts unless it is told to.
    assert all(one["validation_error"] for name, one in trust.items() if name != "Supplied CA file")
    assert chain["received_chain_has_valid_order"] and not chain["verified_chain_has_sha1_signature"]
    leaf, maker = (x509.load_pem_x509_certificate(one["as_pem"].encode()) for one in chain["received_certificate_chain"])
    assert (leaf.not_valid_after_utc - leaf.not_valid_before_utc).days <= 365
    names = maker.extensions.get_extension_for_class(x509.NameConstraints)
    assert names.critical and names.value.permitted_subtrees
    assert {str(one.value) for one in names.value.permitted_subtrees} == {"localhost", "127.0.0.1/32", "::1/128"}
    assert maker.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0


async def test_browsers_are_told_to_stay_with_tls_only_where_the_certificate_is_everybodys(stack: Stack) -> None:
    """`localhost` with a CA of its own: other servers of this machine share the name and may speak plain HTTP."""
    async with viewer_session(stack) as http, http.get(f"https://127.0.0.1:{stack.port}/login", headers={"Host": f"{PORTAL_HOST}:{stack.port}"}) as answer:
        assert answer.status == 200 and "Strict-Transport-Security" not in answer.headers
