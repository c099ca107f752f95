"""Figures for Prometheus. What somebody could be recognised by (names, addresses, ids) is in no label."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from portal import workers
from portal.feed import Feed
from portal.logs import Answer, route_of
from portal.sessions import Sessions

log = logging.getLogger(__name__)

_BUCKETS = (0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
# A worker's health figures (docs/reference/streams.md) that are worth a series, summed over the workers.
_STREAM = {
    "relays": "Relays open now",
    "websockets": "Desktop streams open now",
    "http_connections": "HTTP connections open now",
    "port_connections": "Connections to published ports open now",
    "buffered": "Bytes waiting in relays",
}


class Metrics:
    """One registry for the control process; it asks the stream workers for theirs when somebody asks for it."""

    def __init__(self, feed: Feed, sessions: Sessions, run: Path) -> None:
        self._feed = feed
        self._sessions = sessions
        self._run = run
        self._registry = CollectorRegistry()
        registry = self._registry
        labels = ["method", "route", "status"]
        self._requests = Counter("tclone_requests_total", "Requests answered by the portal", labels, registry=registry)
        self._seconds = Histogram("tclone_request_seconds", "Time to answer a request", ["method", "route"], registry=registry, buckets=_BUCKETS)
        self._forks = Counter("tclone_forks_total", "Forks that the engine reported", ["outcome"], registry=registry)
        self._milestones = Histogram("tclone_fork_seconds", "Milestones of forks", ["milestone"], registry=registry, buckets=_BUCKETS)
        self._workspaces = Gauge("tclone_workspaces", "Workspaces by state", ["state"], registry=registry)
        self._logins = Gauge("tclone_sessions", "Login sessions", registry=registry)
        self._engine = Gauge("tclone_engine_up", "Whether the engine answers", registry=registry)
        self._stream = {name: Gauge(f"tclone_stream_{name}", text, registry=registry) for name, text in _STREAM.items()}
        self._workers = Gauge("tclone_stream_workers", "Stream processes that answer", registry=registry)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch(), name="metrics")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @contextlib.contextmanager
    def count(self, request: web.Request, answer: Answer) -> Iterator[None]:
        """Every request, by the route that took it (portal.requests.Watch): addresses themselves would make a series each."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            route = route_of(request)
            self._requests.labels(request.method if route != "none" else "other", route, str(answer.status)).inc()
            if answer.status != 101:
                self._seconds.labels(request.method if route != "none" else "other", route).observe(time.perf_counter() - begun)

    async def text(self) -> bytes:
        """The exposition, with figures of this moment."""
        states: dict[str, int] = {}
        for workspace in self._feed.workspaces():
            states[workspace["state"]] = states.get(workspace["state"], 0) + 1
        self._workspaces.clear()
        for state, count in states.items():
            self._workspaces.labels(state).set(count)
        self._logins.set(len(self._sessions.live()))
        self._engine.set(self._feed.engine == "up")
        answering = await workers.ask(self._run)
        self._workers.set(len(answering))
        for name, gauge in self._stream.items():
            gauge.set(sum(workers.number(worker.get(name)) for worker in answering))
        return generate_latest(self._registry)

    content_type = CONTENT_TYPE_PLAIN_0_0_4

    async def _watch(self) -> None:
        while True:
            async with self._feed.watch(None) as events:
                while (event := await events.get()) is not None:
                    if event["type"] == "fork":
                        self._take(event["data"])

    def _take(self, result: dict[str, Any]) -> None:
        for branch in result["branches"]:
            self._forks.labels("failed" if branch.get("error") else "made").inc()
        for milestone in ("pause", "usable", "first_frame"):
            value = result["ms"].get(milestone)
            if isinstance(value, int | float):
                self._milestones.labels(milestone).observe(value / 1000)
