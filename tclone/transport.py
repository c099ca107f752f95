"""Requests to the portal: TLS, the token, errors, and repetitions that cannot do a thing twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
from aiohttp import hdrs
from aiohttp.abc import AbstractResolver, ResolveResult
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from yarl import URL

from tclone.errors import BadRequest, Internal, LimitReached, TCloneError, TimedOut, Unavailable, of_answer
from tclone.settings import Settings, is_local

PREFIX = "/api/v1"
KEY_HEADER = "Idempotency-Key"
_CONNECT_SECONDS = 10.0
# The portal waits up to 180 s for its engine, and a picture may be waited for 30 s.
_READ_SECONDS = 240.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 3.0
_MESSAGE_LIMIT = 80 << 20
_LINE_LIMIT = 1 << 20
# Safe to send again whoever got the first one.
_REPEATABLE = {"GET", "HEAD", "PUT", "DELETE"}


class Transport:
    """One program's connection to one portal. `patience`: for how many seconds in all a request is tried again while the portal is away or
    says that it is too much for now."""

    def __init__(self, settings: Settings, patience: float = 30.0) -> None:
        self.settings = settings
        self._patience = patience
        self._trust = settings.trust()
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, resolver=Resolver(), ssl=self._trust if self._trust is not None else True)
            self._session = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), headers=self._credentials(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_READ_SECONDS),
            )  # fmt: skip
        return self._session

    def _credentials(self) -> dict[str, str]:
        return {hdrs.AUTHORIZATION: f"Bearer {self.settings.token}"}

    # Requests

    async def json(self, method: str, path: str, body: object = None, *, query: Mapping[str, object] | None = None, once: bool = False, key: str | None = None) -> Any:
        """A request's JSON answer; None for one without. `once`: with a key (`key`, or one of its own), so that a repetition does nothing twice. Raises TCloneError."""
        once = once or key is not None
        headers = {KEY_HEADER: key or uuid.uuid4().hex} if once else {}
        async with self.request(method, path, body, query=query, headers=headers, repeatable=once or method in _REPEATABLE) as answer:
            if answer.status == 204:
                return None
            try:
                return await answer.json()
            except (ValueError, aiohttp.ContentTypeError):
                raise Internal(f"{method} {path}: the portal's answer is no JSON") from None

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, path: str, body: object = None, *, query: Mapping[str, object] | None = None, headers: Mapping[str, str] | None = None,
        data: Callable[[], object] | None = None, repeatable: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:  # fmt: skip
        """An answer below 400, its body not read yet. `data` makes a body of bytes, anew for each try. Raises TCloneError."""
        answer = await self._answered(method, self._address(path, query), repeatable, data, json=body, headers=headers)
        try:
            yield answer
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            if isinstance(error, TCloneError):
                raise
            raise Unavailable(f"{method} {path}: the connection broke: {error or type(error).__name__}", code="unavailable") from error
        finally:
            answer.release()

    async def lines(self, path: str, query: Mapping[str, object] | None = None) -> AsyncIterator[dict[str, Any]]:
        """NDJSON as it comes."""
        async with self.request("GET", path, query=query, repeatable=True) as answer:
            async for line in answer.content:
                yield json.loads(line)

    async def _answered(self, method: str, address: URL, repeatable: bool, data: Callable[[], object] | None, **options: Any) -> aiohttp.ClientResponse:
        deadline, pause = time.monotonic() + self._patience, _FIRST_PAUSE
        while True:
            wait = pause * random.uniform(0.5, 1.0)
            try:
                sent = data() if data is not None else None
                answer = await self._open().request(method, address, data=sent, allow_redirects=False, read_bufsize=_LINE_LIMIT, **options)
                if answer.status < 300 or answer.status == 304:
                    return answer
                error = await _error_of(answer)
                again = repeatable and isinstance(error, Unavailable)
                if isinstance(error, LimitReached) and error.retry_after is not None:
                    again, wait = True, error.retry_after
            except aiohttp.ClientConnectorCertificateError as failure:
                raise Unavailable(f"{self.settings.url}: its certificate is not trusted: {failure.certificate_error}; set TCLONE_CA to what `tclone ca` names", code="ca") from failure
            except aiohttp.ClientConnectorError as failure:
                # Nothing was sent.
                error, again = Unavailable(f"{self.settings.url} does not answer: {failure.os_error}; is TClone up?", code="unavailable"), True
            except (aiohttp.ClientError, ConnectionError, TimeoutError) as failure:
                error, again = Unavailable(f"{method} {address.path}: the connection broke: {failure or type(failure).__name__}", code="unavailable"), repeatable
            if not again or time.monotonic() + wait > deadline:
                raise error
            await asyncio.sleep(wait)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _address(self, path: str, query: Mapping[str, object] | None) -> URL:
        values = {name: value for name, value in (query or {}).items() if value is not None}
        # Encoded by us: bytes of a path must arrive as they are, UTF-8 or not.
        return URL(self.settings.url + PREFIX + path + ("?" + urlencode(values, quote_via=quote) if values else ""), encoded=True)

    # Sockets

    @contextlib.asynccontextmanager
    async def socket(self, path: str, hello: Mapping[str, Any]) -> AsyncIterator[Socket]:
        """A WebSocket that has said hello. `path` is the whole one. Raises TCloneError, also for what breaks within."""
        parts = urlsplit(self.settings.url)
        uri = f"{'wss' if parts.scheme == 'https' else 'ws'}://{parts.netloc}{path}"
        options: dict[str, Any] = {}
        if parts.hostname and parts.hostname.endswith(".localhost"):
            options["host"] = "localhost"
        if self._trust is not None:
            options |= {"ssl": self._trust, "server_hostname": parts.hostname}
        try:
            connection = await connect(
                uri, additional_headers=self._credentials(), compression=None, proxy=None, open_timeout=_CONNECT_SECONDS, max_size=_MESSAGE_LIMIT,
                max_queue=4, **options,
            )  # fmt: skip
        except InvalidHandshake as error:
            raise Unavailable(f"{path}: the portal opens no WebSocket: {error}", code="unavailable") from error
        except (OSError, InvalidURI, TimeoutError) as error:
            raise Unavailable(f"{self.settings.url} does not answer: {error or 'no answer in time'}; is TClone up?", code="unavailable") from error
        try:
            made = Socket(connection, path)
            await made.send(type="hello", **hello)
            yield made
        finally:
            await connection.close()


class Socket:
    """One WebSocket: JSON objects and bytes both ways."""

    def __init__(self, connection: ClientConnection, path: str) -> None:
        self._connection = connection
        self._path = path

    async def send(self, **message: Any) -> None:
        await self._sent(json.dumps(message))

    async def send_bytes(self, data: bytes) -> None:
        await self._sent(data)

    async def _sent(self, data: str | bytes) -> None:
        try:
            await self._connection.send(data)
        except ConnectionClosed as error:
            raise self._broken(error) from error

    async def receive(self) -> dict[str, Any] | bytes | None:
        """The next message; None when the portal has closed the connection in good order. Raises Unavailable when it broke."""
        try:
            data = await self._connection.recv()
        except ConnectionClosed as error:
            if error.rcvd is not None and error.rcvd.code == 1000:
                return None
            raise self._broken(error) from error
        if isinstance(data, bytes):
            return data
        found = json.loads(data)
        if not isinstance(found, dict):
            raise Internal(f"{self._path}: a message of the portal is no object")
        return found

    async def close(self) -> None:
        await self._connection.close()

    def _broken(self, error: ConnectionClosed) -> Unavailable:
        return Unavailable(f"{self._path}: the connection broke: {error}", code="unavailable")


class Resolver(AbstractResolver):
    """Names below `localhost` are this machine (RFC 6761), which not every system's resolver knows."""

    def __init__(self) -> None:
        self._other = aiohttp.ThreadedResolver()

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[ResolveResult]:
        return await self._other.resolve("localhost" if is_local(host) and host.endswith("localhost") else host, port, family)

    async def close(self) -> None:
        await self._other.close()


async def _error_of(answer: aiohttp.ClientResponse) -> TCloneError:
    try:
        body = await answer.json(content_type=None)
    except (ValueError, aiohttp.ClientError):
        body = None
    after = answer.headers.get(hdrs.RETRY_AFTER, "")
    if answer.status < 400:
        return BadRequest(f"{answer.url.origin()} is not where the portal is: it points elsewhere ({answer.status}); set TCLONE_URL", status=answer.status)
    return of_answer(answer.status, body, float(after) if after.isdecimal() else None)


async def until(what: str, look: Any, timeout: float, first: float = 0.05, most: float = 0.5) -> Any:
    """Ask `look()` again and again, less and less often, until it gives something. Raises TimedOut."""
    deadline, pause = time.monotonic() + timeout, first
    while True:
        found = await look()
        if found:
            return found
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimedOut(f"not within {timeout:g} s: {what}", code="timeout")
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, most)
