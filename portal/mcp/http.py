"""`POST /mcp`: the Model Context Protocol over streamable HTTP.

The SDK's server is an ASGI application. It runs in this process, behind one route: another process with a socket of its own would need to be started,
watched and proxied to, and could do no less harm, as it has no rights either way: whatever a tool does is a request to the REST API with the token that
came with the call. The SDK takes 50 MB and a second of a processor to load, on a busy machine several: longer than clients wait before they take the server
for an old one. So the portal loads it in a thread as soon as it answers, and a request that is faster waits for that.

There are no sessions: each request stands for itself and carries its token. So nothing is kept for a client that went away, a token that was revoked ends
at once, and no session can be taken over. For the protocol versions with a handshake that is what they call stateless.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import hdrs, web

from portal import security
from portal.errors import LoginNeeded, TooMany
from portal.identity import Identity
from portal.mcp import asgi

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from portal.mcp.caller import Caller

log = logging.getLogger(__name__)

PATH = "/mcp"
_MOST_BODY = 4 << 20
# Requests under way for one token. Each may hold a picture or a file.
_MOST_AT_ONCE = 16
# What the API is told of whoever called: the token, the name by which the portal was reached, the address for the audit log.
_HANDED_ON = (hdrs.AUTHORIZATION, hdrs.HOST, "X-Forwarded-For")


class Mcp:
    """`socket` is the control process's own, which the tools' requests go to. `close` after the last request."""

    def __init__(self, identity: Identity, socket: Path) -> None:
        self._identity = identity
        self._socket = socket
        self._busy: Counter[str] = Counter()
        self._loading = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None
        self._manager: StreamableHTTPSessionManager | None = None
        self._runner: asyncio.Task[None] | None = None
        self._ahead: asyncio.Task[None] | None = None

    def routes(self) -> list[web.RouteDef]:
        """Only POST: streams that a client opens without asking for anything (GET) and sessions to be ended (DELETE) there are none, so it is 405."""
        return [web.post(PATH, self._serve)]

    def load(self) -> asyncio.Task[None]:
        """Load the SDK; nobody has to wait for it. What fails is in the log, and tried again by the first request."""
        self._ahead = asyncio.create_task(self._load_ahead(), name="mcp: load")
        return self._ahead

    async def _load_ahead(self) -> None:
        begun = time.perf_counter()
        try:
            await self._loaded()
        except Exception:
            log.exception("what speaks the Model Context Protocol cannot be loaded")
        else:
            log.info("the Model Context Protocol is spoken at %s, loaded in %.1f s", PATH, time.perf_counter() - begun)

    async def close(self) -> None:
        """End what is under way."""
        for task in (self._ahead, self._runner):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        # Before anything is read. A login will not do: a program acts here, and a person's lease must hold it back.
        if hdrs.AUTHORIZATION not in request.headers:
            raise LoginNeeded("send a token: Authorization: Bearer tct_…; `tclone token create` makes one")
        grant = self._identity.of(request).grant
        if hdrs.ORIGIN in request.headers:
            security.require_same_origin(request)
        if self._busy[grant] >= _MOST_AT_ONCE:
            raise TooMany(f"this token has {_MOST_AT_ONCE} requests under way; wait for their answers", retry_after=1.0)
        self._busy[grant] += 1
        try:
            manager = await self._loaded()
            body = await _body(request)
            return await asgi.answer(manager.handle_request, request, body)
        finally:
            self._busy[grant] -= 1
            if not self._busy[grant]:
                del self._busy[grant]

    async def _loaded(self) -> StreamableHTTPSessionManager:
        async with self._loading:
            # A manager runs once: one that ended by a defect is replaced.
            if self._manager is None or self._runner is None or self._runner.done():
                manager = await asyncio.to_thread(_load, self._caller)
                if self._session is None:
                    connector = aiohttp.UnixConnector(str(self._socket), limit=0)
                    self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
                ready = asyncio.get_running_loop().create_future()
                self._runner = asyncio.create_task(_run(manager, ready), name="mcp")
                await ready
                self._manager = manager
            return self._manager

    def _caller(self, context: Context) -> Caller:
        from portal.mcp.caller import Caller

        sent: Any = context.headers or {}
        assert self._session is not None, "opened with the server"
        return Caller(self._session, "http://control", {name: sent[name] for name in _HANDED_ON if name in sent})


def _load(find: Any) -> StreamableHTTPSessionManager:
    from mcp.server.transport_security import TransportSecuritySettings

    from portal.mcp.server import build

    # Its lines hold what a tool was told of files; the requests themselves are in the log by their routes.
    logging.getLogger("mcp").setLevel(logging.WARNING)
    # Host and Origin were checked before, by the rules for every request.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    server = build(find)
    server.streamable_http_app(stateless_http=True, transport_security=unchecked, max_request_body_size=_MOST_BODY)
    return server.session_manager


async def _run(manager: StreamableHTTPSessionManager, ready: asyncio.Future[None]) -> None:
    """All in one task, as its task group wants it."""
    try:
        async with manager.run():
            ready.set_result(None)
            await asyncio.get_running_loop().create_future()
    except Exception as error:
        if ready.done():
            raise
        ready.set_exception(error)


async def _body(request: web.Request) -> bytes:
    """Raises HTTPRequestEntityTooLarge (413)."""
    body = bytearray()
    async for piece in request.content.iter_any():
        body += piece
        if len(body) > _MOST_BODY:
            raise web.HTTPRequestEntityTooLarge(max_size=_MOST_BODY, actual_size=len(body))
    return bytes(body)
