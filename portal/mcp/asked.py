"""What a client asked and was not answered yet: the end of its requests is not the end of their answers, so it is told to the server only after them.

The SDK's server stops all that is under way when its client says no more. On a socket that is right, since nobody is left to hear of it; but a client that
writes its requests into a pipe and closes that still reads.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Self

import anyio
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from pydantic import ValidationError


class Asked:
    """The ids under way on one connection: `said` and `told` go between the connection's two streams and the server."""

    def __init__(self, said: ReadStream[SessionMessage | Exception], told: WriteStream[SessionMessage], seconds: float) -> None:
        """`seconds`: how long answers are waited for after the client's last word."""
        self.said = _Said(said, self)
        self.told = _Told(told, self)
        self._seconds = seconds
        self._open: set[int | str] = set()
        self._none = asyncio.Event()
        self._none.set()

    def note(self, message: object) -> None:
        """A message of the client's."""
        if isinstance(message, JSONRPCRequest):
            self._open.add(message.id)
            self._none.clear()
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            # It is never answered. Clients may give its number as a text.
            wanted = str((message.params or {}).get("requestId"))
            self._over(*(one for one in self._open if str(one) == wanted))

    def answered(self, message: object) -> None:
        """A message of the server's."""
        if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
            self._over(message.id)

    async def done(self) -> None:
        """Return when everything has its answer, or when the time for that is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds):
                await self._none.wait()

    def _over(self, *ids: int | str) -> None:
        self._open.difference_update(ids)
        if not self._open:
            self._none.set()


class _Said:
    """Messages of the client's, as the SDK's streams give them."""

    def __init__(self, inner: ReadStream[SessionMessage | Exception], asked: Asked) -> None:
        self._inner = inner
        self._asked = asked

    @property
    def last_context(self) -> Any:
        """Of whoever sent the last message."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """The next message that is one; what is none is answered here, since the SDK's server says nothing to it. Raises EndOfStream."""
        while True:
            try:
                said = await self._inner.receive()
            except anyio.EndOfStream:
                await self._asked.done()
                raise
            if isinstance(said, SessionMessage):
                self._asked.note(said.message)
                return said
            await self._asked.told.send(SessionMessage(_refusal(said)))

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()


def _refusal(failure: Exception) -> JSONRPCError:
    """JSON-RPC's answer to a line that is no JSON, or no message: it belongs to no request, whose id is not known."""
    no_json = isinstance(failure, ValidationError) and any(error["type"] == "json_invalid" for error in failure.errors())
    code, message = (PARSE_ERROR, "the line is not JSON") if no_json else (INVALID_REQUEST, "the line is no JSON-RPC message")
    return JSONRPCError(jsonrpc="2.0", id=None, error=ErrorData(code=code, message=message))


class _Told:
    """Messages of the server's, likewise."""

    def __init__(self, inner: WriteStream[SessionMessage], asked: Asked) -> None:
        self._inner = inner
        self._asked = asked

    async def send(self, item: SessionMessage) -> None:
        await self._inner.send(item)
        self._asked.answered(item.message)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()
