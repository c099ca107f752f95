"""The API does what its OpenAPI document says, whatever is sent: Schemathesis makes requests of the document, right and wrong ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from portal.hosts import PORTAL_HOST
from tests.stream.stack import Stack

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(600)]
_SEED = "20261130"
# These may end what the others need: the workspaces, the user, the token that is used, room for a launch. They are judged last.
_ENDINGS = ["delete_workspaces_id", "delete_users_user", "patch_users_user", "delete_tokens_token", "put_settings"]
# Names of keys, the bodies of models' vendors, fields that exclude each other and addresses have rules beyond what a JSON schema says: what fits it may be refused.
_BEYOND_SCHEMA = ["post_workspaces_id_actions", "post_workspaces", "post_workspaces_id_fork", "post_workspaces_id_exec", "post_workspaces_id_cua", *(f"post_workspaces_id_computer_{vendor}" for vendor in ("anthropic", "openai", "gemini"))]
# They tell of events for as long as somebody listens, and WebSockets: tests/portal/test_{events,control_socket,commands,panels}.py.
_ENDLESS = ["get_events", "get_workspaces_id_events", *(f"get_workspaces_id_{word}" for word in ("control", "exec", "terminal"))]
# A body may be against its schema by its mere length.
_RULES = """
[checks]
negative_data_rejection.expected-statuses = ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "428", "429", "5xx"]
"""
_SCOPES = ["read", "control", "fork", "admin"]


async def _run(program: Path, stack: Stack, token: str, directory: Path, examples: int, *words: str) -> tuple[int, str, int]:
    """Exit status, report and number of requests of one run."""
    report = directory / f"report-{len(list(directory.glob('report-*')))}.json"
    address = f"https://127.0.0.1:{stack.port}/api/v1"
    rules = directory / "schemathesis.toml"
    rules.write_text(_RULES)
    process = await asyncio.create_subprocess_exec(
        str(program), "--config-file", str(rules), "run", f"{address}/openapi.json", "--url", address, "--tls-verify", str(stack.places.ca_certificate),
        "--header", f"Host: {PORTAL_HOST}:{stack.port}", "--header", f"Authorization: Bearer {token}",
        "--checks", "all", "--max-examples", str(examples), "--seed", _SEED, "--generation-database", "none", "--no-shrink", "--continue-on-failure",
        "--no-color", "--report-json-path", str(report), *words,
        cwd=directory, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said = (await process.communicate())[0].decode(errors="replace")
    assert process.returncode is not None
    return process.returncode, said, _requests(report)


def _requests(report: Path) -> int:
    return int(json.loads(report.read_text())["test_cases"]["generated"]) if report.exists() else 0


async def test_requests_made_of_the_document_are_answered_as_it_says(stack: Stack, judge: Callable[[str], Path], tmp_path: Path) -> None:
    # The first names that whoever makes them by their pattern thinks of.
    stack.engine.add(id="ws-0", state="ready")
    stack.engine.images.append({**stack.engine.images[0], "name": "0"})
    async with stack.login() as browser:
        made = await (await browser.request("POST", "/api/v1/tokens", {"name": "judge", "scopes": _SCOPES})).json()
        program = judge("schemathesis")
        ends = [word for name in (*_ENDINGS, *_BEYOND_SCHEMA, *_ENDLESS) for word in ("--exclude-operation-id", name)]
        status, said, requests = await _run(program, stack, made["token"], tmp_path, 3, *ends)
        assert status == 0, said[-12_000:]
        # What it found by itself, so that a run which never got beyond the login does not pass for one that found nothing.
        assert requests > 500, said[-3000:]
        assert (await browser.request("GET", "/api/v1/me")).status == 200
        only = [word for name in _BEYOND_SCHEMA for word in ("--include-operation-id", name)]
        status, said, requests = await _run(program, stack, made["token"], tmp_path, 3, *only, "--exclude-checks", "positive_data_acceptance")
        assert status == 0, said[-12_000:]
        assert requests > 50, said[-3000:]
        verbs = {verb for verb, _ in stack.engine.calls}
        assert {"launch", "fork", "screenshot"} <= verbs, verbs
        only = [word for name in _ENDINGS for word in ("--include-operation-id", name)]
        status, said, requests = await _run(program, stack, made["token"], tmp_path, 3, *only)
        assert status == 0, said[-12_000:]
        assert requests > 50, said[-3000:]
