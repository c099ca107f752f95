"""Logs as one JSON object a line: who asked for what by which route, and nothing that opens anything."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from portal import logs
from tests.portal.conftest import HOST, Portal
from tests.portal.fake_engine import FakeEngine


class Log:
    """What was logged, as JSON lines."""

    def __init__(self) -> None:
        self.file = io.StringIO()

    @property
    def text(self) -> str:
        return self.file.getvalue()

    def lines(self, **wanted: object) -> list[dict[str, Any]]:
        """Those with these fields."""
        found = [json.loads(line) for line in self.text.splitlines()]
        return [line for line in found if all(line.get(name) == value for name, value in wanted.items())]


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    handler = logging.StreamHandler(made.file)
    handler.setFormatter(logs.JsonLines())
    requests, root = logging.getLogger("portal.requests"), logging.getLogger()
    before = root.level, requests.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    requests.setLevel(logging.INFO)
    yield made
    root.removeHandler(handler)
    root.setLevel(before[0])
    requests.setLevel(before[1])


async def test_a_request_is_told_by_id_user_workspace_and_route(portal: Portal, engine: FakeEngine, log: Log) -> None:
    engine.add()
    person = await portal.login()
    made = await (await person.request("POST", "/api/v1/tokens", {"name": "ci", "scopes": ["read"]})).json()
    answer = await portal.program(made["token"]).request("GET", "/api/v1/workspaces/ws-1/files?path=/home/user", headers={"X-Request-Id": "0123456789abcdef"})
    assert answer.headers["X-Request-Id"] == "0123456789abcdef"
    (line,) = log.lines(message="request", request_id="0123456789abcdef")
    assert line.pop("ms") >= 0 and line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info", "logger": "portal.requests", "message": "request", "request_id": "0123456789abcdef", "method": "GET",
        "route": "/api/v1/workspaces/{id}/files", "status": 200, "user": "admin", "token": made["id"], "workspace": "ws-1",
    }  # fmt: skip
    # The audit log's lines come with the same id as the request that caused them.
    (entry,) = log.lines(message="token-create")
    (cause,) = log.lines(message="request", route="/api/v1/tokens", method="POST")
    assert entry["request_id"] == cause["request_id"] and entry["user"] == "admin"
    refused = await portal.client().request("GET", "/api/v1/workspaces/ws-1")
    (line,) = log.lines(request_id=refused.headers["X-Request-Id"], message="request")
    assert line["status"] == 401 and "user" not in line and "workspace" not in line
    for secret in (portal.password, person.key, *person.cookies.values(), made["token"], "/home/user"):
        assert secret not in log.text


async def test_ids_of_strangers_and_addresses_are_not_taken_over(portal: Portal, log: Log) -> None:
    client = portal.client()
    for forged in ("x", "0" * 17, "0123456789ABCDEF", "aaaaaaaaaaaaaaa\u00e9"):
        answer = await client.request("GET", "/nowhere/tct_token", headers={"X-Request-Id": forged})
        assert answer.headers["X-Request-Id"] != forged
        assert log.lines(request_id=answer.headers["X-Request-Id"])[0]["route"] == "none"
    assert "tct_token" not in log.text


def test_nothing_that_is_logged_makes_a_line_of_its_own() -> None:
    log = Log()
    handler = logging.StreamHandler(log.file)
    handler.setFormatter(logs.JsonLines())
    record = logging.LogRecord("n", logging.ERROR, "f", 1, "name %s\u2028", ('a\n{"level":"info"}',), None)
    handler.emit(record)
    try:
        raise ValueError("broken\nin two")
    except ValueError:
        record = logging.LogRecord("n", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    handler.emit(record)
    first, second = log.lines()
    assert first["message"] == 'name a\n{"level":"info"}\u2028' and "\u2028" not in log.text
    assert second["exception"].endswith("ValueError: broken\nin two")


@pytest.mark.parametrize("process", ["control", "stream"])
def test_a_format_that_there_is_not_is_refused_by_name(process: str) -> None:
    made = subprocess.run([sys.executable, "-m", f"portal.{process}", "--log-format", "yaml"], capture_output=True, text=True, timeout=60)
    assert made.returncode != 0 and "text or json, not 'yaml'" in made.stderr and HOST not in made.stderr
