"""For whoever runs the portal: is it alive, is it ready, its figures, and what its API looks like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from portal import openapi
from portal.database import Database
from portal.feed import Feed
from portal.metrics import Metrics
from portal.principal import Scope
from portal.routes import PREFIX, Call, Route, SocketRoute


class Operations:
    """`/healthz`, `/readyz`, `/openapi.json`; `/metrics` below the API's prefix, for admins."""

    def __init__(self, database: Database, feed: Feed, metrics: Metrics) -> None:
        self._database = database
        self._feed = feed
        self._metrics = metrics
        self._document: dict[str, Any] = {}

    def routes(self) -> list[Route]:
        return [Route("GET", "/metrics", Scope.ADMIN, self._figures, "Figures for Prometheus", answers={200: "text"}, content=("text/plain",))]

    def open_routes(self) -> list[web.RouteDef]:
        """What needs no login: it tells nothing about anybody."""
        return [
            web.get("/healthz", self._alive),
            web.get("/readyz", self._ready),
            web.get(f"{PREFIX}/openapi.json", self._openapi),
        ]

    def describe(self, routes: Sequence[Route], sockets: Sequence[SocketRoute]) -> dict[str, Any]:
        """All routes there are: the OpenAPI document, from now on served."""
        self._document = openapi.document(routes, sockets)
        return self._document

    async def _alive(self, _: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def _ready(self, _: web.Request) -> web.Response:
        """503 with what is missing while requests would fail."""
        checks = {"engine": self._feed.engine == "up", "database": await self._database.usable()}
        ready = all(checks.values())
        return web.json_response({"ok": ready, "checks": checks}, status=200 if ready else 503)

    async def _openapi(self, _: web.Request) -> web.Response:
        return web.json_response(self._document)

    async def _figures(self, _: Call) -> web.Response:
        body = await self._metrics.text()
        return web.Response(body=body, headers={"Content-Type": self._metrics.content_type})
