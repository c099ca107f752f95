"""HTTP clients for what lies behind the proxy: control over its Unix socket, desktops over sockets made inside their network namespace."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.tracing import Trace

from engine.errors import EngineError, NotFound as EngineNotFound
from portal.stream.errors import NotFound, NotReady, StreamError, UpstreamTimeout
from portal.stream.tuning import CHUNK, tune_desktop
from portal.stream.workspaces import Descriptors

CONNECT_SECONDS = 5.0


class ConnectError(aiohttp.ClientError):
    """Carries a StreamError through aiohttp's client."""

    def __init__(self, cause: StreamError) -> None:
        super().__init__(cause.message)
        self.cause = cause


class DesktopConnector(aiohttp.BaseConnector):
    """Connections to workspaces: the URL's host is the workspace's id, its port the port inside.

    Every request gets a connection of its own: one costs a fraction of a millisecond on the loopback of a namespace, and a kept one would
    outlive a frozen or replaced desktop.
    """

    allowed_protocol_schema_set = frozenset({"http"})

    def __init__(self, descriptors: Descriptors) -> None:
        super().__init__(force_close=True, limit=0)
        self._descriptors = descriptors

    async def _create_connection(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        workspace, port = req.url.host or "", req.url.port or 0
        sock = await self._connect(workspace, port)
        try:
            sock.setblocking(False)
            tune_desktop(sock)
            _, protocol = await self._loop.create_connection(self._factory, sock=sock)
        except BaseException:
            sock.close()
            raise
        return protocol

    async def _connect(self, workspace: str, port: int) -> socket.socket:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._descriptors.connect(workspace, port)
        except TimeoutError as exc:
            raise ConnectError(UpstreamTimeout(f"the desktop of {workspace} accepts no connection")) from exc
        except EngineNotFound as exc:
            raise ConnectError(NotFound(f"no workspace {workspace}")) from exc
        except (EngineError, OSError) as exc:
            raise ConnectError(NotReady(f"the desktop of {workspace} does not answer yet")) from exc


def _client(connector: aiohttp.BaseConnector) -> aiohttp.ClientSession:
    """A client that adds nothing of its own: no cookies, no decoding, no proxy from the environment, no limit on a stream's length."""
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        read_bufsize=CHUNK,
    )


def desktop_client(descriptors: Descriptors) -> aiohttp.ClientSession:
    """The client for desktops; URLs are `http://<workspace id>:<port>/…`."""
    return _client(DesktopConnector(descriptors))


def control_client(path: Path) -> aiohttp.ClientSession:
    """The client for control; the URL's host is any name."""
    return _client(aiohttp.UnixConnector(str(path), limit=0))
