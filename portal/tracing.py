"""Traces for OpenTelemetry: a span for each request of control, and below a fork's one for each of its phases.

Optional: without the extra `opentelemetry`, or without OTEL_EXPORTER_OTLP_ENDPOINT, nothing is imported and nothing is sent. The library reads
its own OTEL_* variables itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from aiohttp import web

from portal.logs import Answer, route_of

_log = logging.getLogger(__name__)
_SERVICE = "tclone-portal"
_NS_PER_MS = 1_000_000
# What the engine reports as time since a fork's beginning; the rest are lengths, or by the fork program's own clock, and become attributes.
_MILESTONES = ("prepare", "frozen", "resumed", "usable", "hooks", "first_frame")
_CLOSE_SECONDS = 3.0

_span: ContextVar[Any] = ContextVar("span", default=None)


class Tracing:
    """`exporter`: where spans go, an OTLP endpoint unless a test brings its own."""

    def __init__(self, endpoint: str, exporter: Any = None) -> None:
        """Without an endpoint, or the library, it does nothing; which of them is missing is logged."""
        self._provider: Any = None
        self._tracer: Any = None
        if not endpoint:
            return
        try:
            trace = importlib.import_module("opentelemetry.sdk.trace")
            processors = importlib.import_module("opentelemetry.sdk.trace.export")
            resources = importlib.import_module("opentelemetry.sdk.resources")
            otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
            self._trace = importlib.import_module("opentelemetry.trace")
        except ImportError as error:
            _log.warning("no traces: OTEL_EXPORTER_OTLP_ENDPOINT is set, but %s is missing; install the extra opentelemetry", error.name)
            return
        # What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say stands above this.
        named = resources.Resource({"service.name": _SERVICE}).merge(resources.OTELResourceDetector().detect())
        self._provider = trace.TracerProvider(resource=named)
        # In a thread of its own, in batches, dropping what does not fit: a collector that is slow or gone delays nobody.
        self._provider.add_span_processor(processors.BatchSpanProcessor(exporter if exporter is not None else otlp.OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("portal")

    async def close(self) -> None:
        """Send what is left, for up to 3 s."""
        if self._provider is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.to_thread(self._provider.shutdown), _CLOSE_SECONDS)

    @contextlib.contextmanager
    def follow(self, request: web.Request, answer: Answer) -> Iterator[None]:
        """A span for every request, named by its route (portal.requests.Watch): addresses hold paths of files. What a client sends as its trace is not
        taken over."""
        if self._tracer is None:
            yield
            return
        route = route_of(request)
        span = self._tracer.start_span(f"{request.method} {route}", kind=self._trace.SpanKind.SERVER)
        span.set_attributes({"http.request.method": request.method, "http.route": route})
        token = _span.set((self, span))
        try:
            yield
        finally:
            _span.reset(token)
            span.set_attribute("http.response.status_code", answer.status)
            if answer.status >= 500:
                span.set_status(self._trace.StatusCode.ERROR)
            span.end()

    def phases(self, parent: Any, begun_ns: int, ms: dict[str, float]) -> None:
        """Spans below `parent`, each from one milestone to the next; `begun_ns`: unix time of the start."""
        within = self._trace.set_span_in_context(parent)
        previous = begun_ns
        for end, name in sorted((ms[name], name) for name in _MILESTONES if name in ms):
            until = begun_ns + int(end * _NS_PER_MS)
            self._tracer.start_span(f"fork: {name}", context=within, start_time=previous).end(until)
            previous = until
        parent.set_attributes({f"tclone.fork.{name}_ms": value for name, value in ms.items()})


@contextlib.contextmanager
def fork(workspace: str) -> Iterator[Callable[[dict[str, float]], None]]:
    """A fork within a request: call what it gives with the milestones in ms that the engine reported."""
    begun = time.time_ns()
    current = _span.get()
    if current is None:
        yield lambda ms: None
        return
    tracing, span = current
    span.set_attribute("tclone.workspace", workspace)
    yield lambda ms: tracing.phases(span, begun, ms)
