"""What happens, as server-sent events: for programs, which have no use for a page's WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from aiohttp import hdrs, web

from portal.endings import Endings, until
from portal.errors import Malformed
from portal.feed import Event, Feed, Queue
from portal.live import View
from portal.owners import Owners
from portal.parameters import number, whole
from portal.principal import Scope
from portal.routes import Call, Route
from portal.sockets import Limited

# So that whatever stands in between sees that the connection lives.
_QUIET_SECONDS = 15.0
_MOST_SECONDS = 3600
# Of one user at a time, over all its tokens. Each may have some hundreds of events waiting for whoever reads slowly.
MOST_STREAMS = 256
_KINDS = "text/event-stream"


class Events:
    """`/events` of all workspaces that one sees, `/workspaces/{id}/events` of one, until it is gone."""

    def __init__(self, feed: Feed, owners: Owners, endings: Endings) -> None:
        self._feed = feed
        self._owners = owners
        self._endings = endings
        self._closing = asyncio.Event()
        self._open = Limited("event stream", MOST_STREAMS)

    def routes(self) -> list[Route]:
        query = {
            "since": whole("the number of the last event that is known, as Last-Event-ID", 0, 1 << 53),
            "seconds": whole("how long to listen; then come again with the last id", 1, _MOST_SECONDS),
        }
        told = {200: "server-sent events: `snapshot` or `resumed` first, then what changes"}
        return [
            Route("GET", "/events", Scope.READ, self._all, "What happens to workspaces that you see", answers=told, query=query, content=(_KINDS,)),
            Route("GET", "/workspaces/{id}/events", Scope.READ, self._one, "What happens to one", answers=told, query=query, content=(_KINDS,)),
        ]

    async def close(self) -> None:
        """End every stream; who listens comes again."""
        self._closing.set()

    async def _all(self, call: Call) -> web.StreamResponse:
        view = View(self._owners, call.principal)
        return await self._stream(call, view.of)

    async def _one(self, call: Call) -> web.StreamResponse:
        view = View(self._owners, call.principal)

        def of(event: Event) -> Event | None:
            if event["type"] == "snapshot":
                workspaces = [item for item in event["workspaces"] if item["id"] == call.workspace]
                event = {**event, "workspaces": workspaces, "operations": {}, "builds": [], "facts": {}}
            elif event["type"] not in ("resumed", "engine") and event.get("workspace") != call.workspace:
                return None
            return view.of(event)

        return await self._stream(call, of)

    async def _stream(self, call: Call, shown: Callable[[Event], Event | None]) -> web.StreamResponse:
        text = call.request.headers.get("Last-Event-ID") or call.request.query.get("since")
        since = number(text, "since", 0, 1 << 53) if text is not None else None
        seconds = number(call.request.query.get("seconds", str(_MOST_SECONDS)), "seconds", 1, _MOST_SECONDS)
        unknown = set(call.request.query) - {"since", "seconds"}
        if unknown:
            raise Malformed(f"unknown parameter {sorted(unknown)[0][:80]!r}")
        with self._open.another(call.principal.user):
            return await self._streamed(call, shown, since, seconds)

    async def _streamed(self, call: Call, shown: Callable[[Event], Event | None], since: int | None, seconds: int) -> web.StreamResponse:
        answer = web.StreamResponse(headers={hdrs.CONTENT_TYPE: _KINDS, hdrs.CACHE_CONTROL: "no-store", "X-Accel-Buffering": "no"})
        await answer.prepare(call.request)
        async with self._endings.watch() as ended, self._feed.watch(since) as events:
            sending = asyncio.create_task(_send(answer, events, shown, call.workspace))
            ends = [asyncio.create_task(until(call.principal.grant, ended)), asyncio.create_task(self._closing.wait())]
            try:
                await asyncio.wait([sending, *ends], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (sending, *ends):
                    task.cancel()
                await asyncio.gather(sending, *ends, return_exceptions=True)
        return answer


async def _send(answer: web.StreamResponse, events: Queue, shown: Callable[[Event], Event | None], workspace: str) -> None:
    while True:
        try:
            async with asyncio.timeout(_QUIET_SECONDS):
                event = await events.get()
        except TimeoutError:
            await answer.write(b": nothing new\n\n")
            continue
        if event is None:
            return
        told = shown(event)
        if told is not None:
            text = json.dumps(told)
            await answer.write(f"id: {event['seq']}\nevent: {event['type']}\ndata: {text}\n\n".encode())
        if event["type"] == "gone" and workspace and event.get("workspace") == workspace:
            return
