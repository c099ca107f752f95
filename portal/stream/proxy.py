"""One request through the proxy: an HTTP exchange streamed both ways, or an upgrade that becomes a byte relay."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from portal.stream.errors import BadRequest, BadUpstream, Unavailable, UpstreamTimeout
from portal.stream.front import Link, NativeRelay
from portal.stream.headers import connection_tokens
from portal.stream.relay import Relay
from portal.stream.tuning import socket_of, tune_viewer
from portal.stream.upstream import ConnectError
from portal.stream.viewer import LONGEST_PAGE, is_plain_page

# Time from the request's end to the first byte of the answer, seconds. Long polls live below it.
_ANSWER_SECONDS = 300.0
_UPGRADE_SECONDS = 15.0
_HANDSHAKE_HEADERS = ("Connection", "Upgrade")


@dataclass(frozen=True)
class Target:
    """Where a request goes: the client, the base URL, the request's headers for there, and what becomes of the answer's headers."""

    client: aiohttp.ClientSession
    base: str
    headers: CIMultiDict[str]
    clean: Callable[[CIMultiDict[str]], CIMultiDict[str]]
    # Makes another page of a whole HTML page, and may change the answer's headers; None passes everything as it comes.
    change: Callable[[bytes, CIMultiDict[str]], bytes] | None = None
    # The request's connection, where the native relay carries it.
    link: Link | None = None

    def url(self, raw_target: str) -> URL:
        """The request target, byte for byte as the client sent it."""
        return URL(self.base + raw_target, encoded=True)


class Taken(web.Response):
    """The response of a request whose connection a relay took over: everything was written already."""

    async def prepare(self, request: web.BaseRequest) -> None:  # type: ignore[override]
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None


def check_target(request: web.BaseRequest) -> None:
    """Refuse request targets that are no path (absolute and authority forms). Raises BadRequest."""
    if not request.raw_path.startswith("/"):
        raise BadRequest("the request target has to be a path")


def wants_upgrade(request: web.BaseRequest) -> bool:
    """Whether the request is a WebSocket upgrade. Raises BadRequest for any other protocol and for a malformed upgrade."""
    upgrade = [value.strip().lower() for header in request.headers.getall("Upgrade", ()) for value in header.split(",")]
    asked = "upgrade" in connection_tokens(CIMultiDict(request.headers))
    if not upgrade or not asked:
        # An Upgrade header without Connection: upgrade is no request for one, and does not pass on (RFC 9110, 7.8).
        return False
    if upgrade != ["websocket"]:
        raise BadRequest("only an upgrade to websocket is served here")
    if request.method != "GET" or request.version < aiohttp.HttpVersion11:
        raise BadRequest("a websocket begins with GET and HTTP/1.1")
    return True


async def _body(request: web.BaseRequest, expects: bool) -> AsyncIterator[bytes]:
    """The request's body as it comes. The client is told to continue only when upstream began to take it."""
    if expects and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    async for chunk in request.content.iter_any():
        yield chunk


async def forward(request: web.BaseRequest, target: Target) -> web.StreamResponse:
    """Send the request on and stream the answer back. Raises StreamError before the answer began."""
    expects = request.headers.get("Expect", "").lower() == "100-continue"
    has_body = request.body_exists
    if not has_body:
        target.headers.popall("Expect", None)
    try:
        async with asyncio.timeout(None) as deadline:
            opening = target.client.request(
                request.method,
                target.url(request.raw_path),
                headers=target.headers,
                data=_watched(_body(request, expects), deadline) if has_body else None,
                allow_redirects=False,
            )
            if not has_body:
                _extend(deadline, _ANSWER_SECONDS)
            upstream = await opening
    except TimeoutError as exc:
        raise UpstreamTimeout("no answer in time") from exc
    except aiohttp.ClientError as exc:
        raise _translated(exc) from exc
    async with upstream:
        return await _answer(request, upstream, target)


def _extend(deadline: asyncio.Timeout, seconds: float) -> None:
    deadline.reschedule(asyncio.get_running_loop().time() + seconds)


async def _watched(body: AsyncIterator[bytes], deadline: asyncio.Timeout) -> AsyncIterator[bytes]:
    """`body`, with the answer's deadline begun at its end."""
    async for chunk in body:
        yield chunk
    with contextlib.suppress(RuntimeError):
        # The answer came before the body's end, and with it the end of the deadline.
        _extend(deadline, _ANSWER_SECONDS)


def _translated(exc: aiohttp.ClientError) -> Exception:
    if isinstance(exc, ConnectError):
        return exc.cause
    if isinstance(exc, aiohttp.ClientConnectorError):
        return Unavailable("the portal's control process does not answer; it should be back in a moment")
    return BadUpstream("the server behind the proxy did not answer in HTTP")


async def _answer(request: web.BaseRequest, upstream: aiohttp.ClientResponse, target: Target) -> web.StreamResponse:
    """Stream an answer to the client. When upstream breaks off in the middle the connection is cut: a short body must not look whole."""
    headers = target.clean(CIMultiDict(upstream.headers))
    begun = b""
    if target.change is not None and request.method == "GET" and is_plain_page(upstream.status, headers):
        begun, whole = await _beginning(upstream)
        if whole:
            begun = target.change(begun, headers)
    response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
    try:
        await response.prepare(request)
    except ValueError as exc:
        raise BadUpstream("the server behind the proxy sent a header that is not allowed") from exc
    try:
        if begun:
            await response.write(begun)
        if request.method != "HEAD":
            async for chunk in upstream.content.iter_any():
                await response.write(chunk)
    except (aiohttp.ClientError, TimeoutError):
        await cut(request, target.link)
        return response
    await response.write_eof()
    return response


async def _beginning(upstream: aiohttp.ClientResponse) -> tuple[bytes, bool]:
    """The body's first LONGEST_PAGE bytes or a little more, and whether that is all of it. Raises BadUpstream when it breaks off."""
    read = bytearray()
    try:
        async for chunk in upstream.content.iter_any():
            read += chunk
            if len(read) > LONGEST_PAGE:
                return bytes(read), False
    except (aiohttp.ClientError, TimeoutError) as exc:
        raise BadUpstream("the server behind the proxy broke off in the middle of its page") from exc
    return bytes(read), True


async def cut(request: web.BaseRequest, link: Link | None) -> None:
    """Drop the client's connection without a proper end of the response, behind what was written of it."""
    if link is not None:
        await link.cut(request.transport)
    if request.transport is not None:
        request.transport.abort()


async def upgrade(
    request: web.BaseRequest, target: Target, admit: Callable[[Relay | NativeRelay], None], offered: bool = True
) -> web.StreamResponse:
    """Ask upstream for the WebSocket; on 101 relay bytes until the end, on anything else pass the HTTP answer on.

    `admit` is called with the relay before a byte flows; it may raise. `offered`: whether the client offered subprotocols; if not, none
    is named to it (a browser fails a handshake that names one it did not offer).
    """
    headers = target.headers
    headers["Connection"] = "Upgrade"
    headers["Upgrade"] = "websocket"
    try:
        async with asyncio.timeout(_UPGRADE_SECONDS):
            upstream = await target.client.get(target.url(request.raw_path), headers=headers, allow_redirects=False)
    except TimeoutError as exc:
        raise UpstreamTimeout("no answer to the websocket's handshake in time") from exc
    except aiohttp.ClientError as exc:
        raise _translated(exc) from exc
    async with upstream:
        if upstream.status != 101:
            response = await _answer(request, upstream, target)
            response.force_close()
            return response
        return await _relay(request, upstream, target, admit, offered)


def _switching(upstream: aiohttp.ClientResponse, target: Target, offered: bool) -> bytes:
    """The 101 response for the client: upstream's own, cleaned like any other."""
    headers = target.clean(CIMultiDict(upstream.headers))
    for name in ("Content-Length", "Content-Type", *([] if offered else ["Sec-WebSocket-Protocol"])):
        headers.popall(name, None)
    for name in _HANDSHAKE_HEADERS:
        headers.popall(name, None)
    lines = ["HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", "Upgrade: websocket"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape")


def _begin(relay: Relay, client: asyncio.Transport, upstream: asyncio.Transport, head: bytes, early_client: bytes, early_upstream: bytes) -> None:
    sock = socket_of(client)
    if sock is not None:
        tune_viewer(sock)
    client.write(head)
    relay.attach(relay.client, client, early_client)
    relay.attach(relay.upstream, upstream, early_upstream)
    relay.start()


async def _relay(
    request: web.BaseRequest,
    upstream: aiohttp.ClientResponse,
    target: Target,
    admit: Callable[[Relay | NativeRelay], None],
    offered: bool,
) -> web.StreamResponse:
    connection = upstream.connection
    if connection is None or connection.protocol is None or connection.transport is None:
        raise BadUpstream("the server behind the proxy closed the connection after its handshake")
    if upstream.headers.get("Upgrade", "").strip().lower() != "websocket":
        raise BadUpstream("the server behind the proxy switched to another protocol than websocket")
    client = request.transport
    if client is None or client.is_closing():
        raise asyncio.CancelledError
    relay = Relay(websocket=True) if target.link is None else target.link.new_relay()
    admit(relay)
    # aiohttp keeps bytes that came right behind a handshake; there is no public way to them on either side.
    early_client = request.protocol._message_tail
    early_upstream = connection.protocol._tail
    head = _switching(upstream, target, offered)
    try:
        if isinstance(relay, Relay):
            _begin(relay, client, connection.transport, head, early_client, early_upstream)
        elif target.link is not None:
            target.link.switch(client, connection.transport, head, early_upstream, early_client)
        await relay.done
    except asyncio.CancelledError:
        relay.abort()
        raise
    finally:
        # Both protocols were cut off from their transports by the relay, and have to be told that these are gone.
        connection.protocol.connection_lost(None)
        request.protocol.connection_lost(None)
    return Taken()
