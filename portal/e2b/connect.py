"""The Connect protocol in JSON: one message in, one or a stream of messages out, each in an envelope, and errors by name."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import hdrs, web

from engine.errors import EngineError
from portal.errors import Malformed, PortalError

STREAM_TYPE = "application/connect+json"
_LARGEST = 4 << 20
_END = 0x02
_CODES = {
    400: "invalid_argument", 401: "unauthenticated", 403: "permission_denied", 404: "not_found", 409: "failed_precondition", 423: "failed_precondition",
    422: "failed_precondition", 429: "resource_exhausted", 501: "unimplemented", 502: "unavailable", 503: "unavailable", 504: "deadline_exceeded",
    507: "resource_exhausted",
}  # fmt: skip
_STATUSES = {"failed_precondition": 400, "already_exists": 409, "unavailable": 503}


class RpcError(PortalError):
    """A refusal with a Connect code of its own, such as `already_exists`."""

    def __init__(self, name: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.name = name
        self.status = status


def told(error: PortalError | EngineError) -> dict[str, str]:
    """The error as Connect has it."""
    status = error.status if isinstance(error, PortalError) else error.http_status
    return {"code": error.name if isinstance(error, RpcError) else _CODES.get(status, "internal"), "message": error.message}


def refusal(error: PortalError | EngineError) -> web.Response:
    """The answer to a call of one message that failed."""
    body = told(error)
    status = error.status if isinstance(error, PortalError) else error.http_status
    return web.json_response(body, status=_STATUSES.get(body["code"], status))


async def message_of(request: web.Request) -> dict[str, Any]:
    """The one message of a request, in an envelope when the answer is a stream. Raises Malformed."""
    data = await request.read()
    if request.content_type == STREAM_TYPE:
        if len(data) < 5 or data[0] != 0 or struct.unpack(">I", data[1:5])[0] != len(data) - 5:
            raise Malformed("the body must be one uncompressed message in its envelope")
        data = data[5:]
    return _object(data or b"{}")


async def messages_of(request: web.Request) -> AsyncIterator[dict[str, Any]]:
    """The messages of a request that is a stream of them, as they come. Raises Malformed, ConnectionError when the client has gone."""
    if request.content_type != STREAM_TYPE:
        raise Malformed(f"a stream of messages has the type {STREAM_TYPE}")
    try:
        while head := await request.content.read(1):
            flags, length = struct.unpack(">BI", head + await request.content.readexactly(4))
            if flags != 0 or length > _LARGEST:
                raise Malformed(f"each message must be uncompressed, in its envelope, and of at most {_LARGEST >> 20} MiB")
            yield _object(await request.content.readexactly(length))
    except asyncio.IncompleteReadError:
        raise Malformed("the last message is not whole") from None


def _object(data: bytes) -> dict[str, Any]:
    """Raises Malformed."""
    try:
        message = json.loads(data)
    except (ValueError, RecursionError):
        raise Malformed("the message is not JSON; other encodings are not spoken here") from None
    if not isinstance(message, dict):
        raise Malformed("the message must be a JSON object")
    return message


class Stream:
    """An answer of many messages. `send` each, then `end` once, with an error or without."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._answer = web.StreamResponse(headers={hdrs.CONTENT_TYPE: STREAM_TYPE})

    async def send(self, message: dict[str, Any]) -> None:
        if not self._answer.prepared:
            await self._answer.prepare(self._request)
        await self._answer.write(_envelope(0, message))

    async def end(self, error: PortalError | EngineError | None = None) -> web.StreamResponse:
        if not self._answer.prepared:
            await self._answer.prepare(self._request)
        await self._answer.write(_envelope(_END, {} if error is None else {"error": told(error)}))
        await self._answer.write_eof()
        return self._answer


def _envelope(flags: int, message: dict[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    assert len(data) <= _LARGEST, "output comes in small pieces"
    return struct.pack(">BI", flags, len(data)) + data
