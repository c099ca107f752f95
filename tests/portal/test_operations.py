"""What whoever runs the portal asks for: alive, ready, figures."""

from __future__ import annotations

import asyncio
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from portal.mcp import http
from portal.routes import PREFIX
from tests.portal.conftest import PATIENCE, Portal, program
from tests.portal.fake_engine import FakeEngine


async def test_ready_says_what_is_missing(portal: Portal, engine: FakeEngine) -> None:
    client = portal.client()
    assert (await client.request("GET", "/healthz")).status == 200
    ready = await client.request("GET", "/readyz")
    assert (ready.status, await ready.json()) == (200, {"ok": True, "checks": {"engine": True, "database": True}})
    await engine.stop()
    async with asyncio.timeout(PATIENCE):
        while (ready := await client.request("GET", "/readyz")).status != 503:
            await asyncio.sleep(0.05)
    assert (await ready.json())["checks"] == {"engine": False, "database": True}
    assert (await client.request("GET", "/healthz")).status == 200


async def test_figures_count_requests_forks_and_workspaces_and_name_nobody(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    client = await portal.login()
    async with asyncio.timeout(PATIENCE):
        while portal.control.feed.workspace("ws-1") is None:
            await asyncio.sleep(0.01)
    assert (await client.request("POST", "/api/v1/workspaces/ws-1/fork", {"copies": 2})).status == 201
    await client.request("GET", "/api/v1/workspaces/ws-1/logs")
    async with asyncio.timeout(PATIENCE):
        while True:
            text = await (await client.request("GET", f"{PREFIX}/metrics")).text()
            samples = {(s.name, *sorted(s.labels.items())): s.value for family in text_string_to_metric_families(text) for s in family.samples}
            if samples.get(("tclone_forks_total", ("outcome", "made"))) == 2:
                break
            await asyncio.sleep(0.02)
    assert samples[("tclone_requests_total", ("method", "POST"), ("route", "/api/v1/workspaces/{id}/fork"), ("status", "201"))] == 1
    assert sum(value for (name, *_), value in samples.items() if name == "tclone_workspaces") == 3
    assert samples[("tclone_engine_up",)] == 1 and samples[("tclone_sessions",)] == 1
    assert "ws-1" not in text and "admin" not in text and "192.0.2." not in text


async def test_unknown_addresses_make_no_series_of_their_own(portal: Portal) -> None:
    client = await portal.login()
    for number in range(20):
        await client.request("GET", f"/nowhere/{number}")
    text = await (await client.request("GET", f"{PREFIX}/metrics")).text()
    assert "nowhere" not in text and re.search(r'tclone_requests_total\{method="other",route="none",status="404"\} 20', text)


async def test_figures_are_for_admins(portal: Portal) -> None:
    assert (await portal.client().request("GET", f"{PREFIX}/metrics")).status == 401


async def test_who_speaks_mcp_first_finds_it_loaded(portal: Portal, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(http, "_load", None)
        await portal.control.load_ahead()
    assert "cannot be loaded" in caplog.text
    await portal.control.load_ahead()
    monkeypatch.setattr(http, "_load", None)  # it is loaded no more
    agent = await program(portal, await portal.login(), "read")
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}}
    assert (await agent.request("POST", "/mcp", asked, {"Accept": "application/json, text/event-stream"})).status == 200
