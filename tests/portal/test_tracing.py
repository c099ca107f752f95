"""Traces: a span for each request, phases of forks below theirs, and nothing at all where nobody asked for them."""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from engine.config import Config
from portal.app import Options
from portal.requests import watched
from portal.tracing import Tracing
from tests.portal.conftest import PATIENCE, Portal
from tests.portal.fake_engine import FakeEngine

_LIBRARY = "opentelemetry.sdk.trace.export.in_memory_span_exporter"


@pytest.fixture
def exporter() -> Any:
    """Keeps spans in memory."""
    return pytest.importorskip(_LIBRARY, reason="the extra opentelemetry is not installed").InMemorySpanExporter()


class TestSpans:
    """With the library, whose spans are kept in memory."""

    @pytest.fixture
    def options(self, options: Options, exporter: Any) -> Options:
        return replace(options, tracing=Tracing("http://collector.invalid", exporter))

    async def test_a_fork_is_a_request_with_its_phases_below(self, portal: Portal, engine: FakeEngine, exporter: Any) -> None:
        engine.add()
        person = await portal.login()
        answer = await person.request("POST", "/api/v1/workspaces/ws-1/fork", {"copies": 1})
        ms = (await answer.json())["ms"]
        await person.request("GET", "/api/v1/workspaces/ws-1/files?path=/home/user", headers={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"})
        await portal.control.tracing.close()
        spans = {span.name: span for span in exporter.get_finished_spans()}
        root = spans["POST /api/v1/workspaces/{id}/fork"]
        assert root.parent is None and root.resource.attributes["service.name"] == "tclone-portal"
        assert {name: root.attributes[name] for name in ("http.route", "http.response.status_code", "tclone.workspace", "tclone.fork.pause_ms")} == {
            "http.route": "/api/v1/workspaces/{id}/fork", "http.response.status_code": 201, "tclone.workspace": "ws-1", "tclone.fork.pause_ms": 284.2,
        }  # fmt: skip
        phases = [span for span in spans.values() if span.parent is not None and span.parent.span_id == root.context.span_id]
        assert [span.name for span in sorted(phases, key=lambda span: span.start_time)] == ["fork: frozen", "fork: resumed", "fork: usable", "fork: first_frame"]
        for before, after in zip(phases, phases[1:]):
            assert before.end_time == after.start_time
        # 1 µs: milliseconds with one digit behind the point, as whole ns.
        assert phases[-1].end_time - phases[0].start_time == pytest.approx(ms["first_frame"] * 1e6, abs=1000)
        files = spans["GET /api/v1/workspaces/{id}/files"]
        assert f"{files.context.trace_id:032x}" != "a" * 32, "a stranger's trace is not taken over"
        told = repr([(span.name, dict(span.attributes)) for span in spans.values()])
        assert "/home/user" not in told and portal.password not in told and person.key not in told


class TestCollector:
    """A collector that takes spans over HTTP."""

    async def test_spans_reach_it(self, exporter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        got: list[bytes] = []

        async def take(request: web.Request) -> web.Response:
            got.append(await request.read())
            return web.Response()

        app = web.Application()
        app.router.add_post("/v1/traces", take)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        endpoint = site.name
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
        tracing = Tracing(Config.from_environment().otlp_endpoint)
        app = web.Application(middlewares=[watched(tracing.follow)])

        async def fine(_: web.Request) -> web.Response:
            return web.Response()

        app.router.add_get("/fine/{name}", fine)
        served = web.AppRunner(app)
        await served.setup()
        try:
            request = web.TCPSite(served, "127.0.0.1", 0)
            await request.start()
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", f"import urllib.request; urllib.request.urlopen('{request.name}/fine/secret')")
            assert await process.wait() == 0
            await tracing.close()
            async with asyncio.timeout(PATIENCE):
                while not got:
                    await asyncio.sleep(0.02)
        finally:
            await served.cleanup()
            await runner.cleanup()
        assert b"GET /fine/{name}" in got[0] and b"ours" in got[0] and b"/fine/secret" not in got[0]


class TestWithout:
    """Nobody asked for traces, or the library is missing."""

    async def test_nothing_is_imported_without_an_endpoint(self, portal: Portal, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        engine.add()
        person = await portal.login()
        monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
        assert (await person.request("POST", "/api/v1/workspaces/ws-1/fork", {"copies": 1})).status == 201

    async def test_a_missing_library_is_named_and_requests_go_on(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
        with caplog.at_level(logging.WARNING):
            tracing = Tracing("http://127.0.0.1:4318")
        assert "install the extra opentelemetry" in caplog.text
        await tracing.close()
