"""The portal's REST API as one caller may use it. Every tool goes this way, so nothing is allowed here that is not allowed there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import aiohttp
from aiohttp import hdrs
from mcp.server.mcpserver.exceptions import ToolError
from yarl import URL

API = "/api/v1"
# The longest of the API's own patience (a fork or a batch of actions: 180 s), and some more.
SECONDS = 240.0
_CONNECT_SECONDS = 10.0
# An answer is held in memory; what can be longer is asked for in parts.
_MOST_BYTES = 8 << 20
# Of a command's output: models read it.
_HALF_AN_OUTPUT = 32 << 10


class Refused(ToolError):
    """The portal said no. `status` is HTTP's; the message is for the model that asked."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Picture:
    """An encoded picture, its media type, its own size and that of the whole screen, in pixels."""

    content: bytes
    kind: str
    size: tuple[int, int]
    screen: tuple[int, int]


class Output:
    """What a command wrote to one of its outputs: all of it, or its first and its last part."""

    def __init__(self) -> None:
        self._first = bytearray()
        self._last = bytearray()
        self._left_out = 0

    def add(self, data: bytes) -> None:
        room = _HALF_AN_OUTPUT - len(self._first)
        self._first += data[:room]
        self._last += data[room:] if room > 0 else data
        beyond = max(0, len(self._last) - _HALF_AN_OUTPUT)
        del self._last[:beyond]
        self._left_out += beyond

    def text(self) -> str:
        gap = f"\n[… {self._left_out} bytes left out …]\n".encode() if self._left_out else b""
        return (bytes(self._first) + gap + bytes(self._last)).decode(errors="replace")


@dataclass
class Ended:
    """A command that ended with `status`, or was ended (None) when its time was up."""

    status: int | None = None
    stdout: Output = field(default_factory=Output)
    stderr: Output = field(default_factory=Output)


class Caller:
    """`headers` carry the caller's token. The session is the owner's to close. Every method raises Refused."""

    def __init__(self, session: aiohttp.ClientSession, origin: str, headers: Mapping[str, str]) -> None:
        self._session = session
        self._origin = origin
        self._headers = dict(headers)

    async def json(self, method: str, path: str, body: object = None, query: Mapping[str, str | int] | None = None) -> Any:
        """The answer's JSON; None when it has no body. `path` is below the API's prefix."""
        sent = {} if body is None else {"data": json.dumps(body).encode(), "headers": {hdrs.CONTENT_TYPE: "application/json"}}
        async with self._answer(method, path, query, **sent) as answer:
            content = await _bounded(answer)
        try:
            return json.loads(content) if content else None
        except ValueError:
            raise Refused(502, "the portal's answer is not JSON: is that address the portal's?") from None

    async def lines(self, path: str, most: int, query: Mapping[str, str | int] | None = None) -> tuple[list[dict[str, Any]], bool]:
        """The first `most` objects of an answer in NDJSON, and whether there are more."""
        found: list[dict[str, Any]] = []
        async with self._answer("GET", path, query) as answer:
            async for line in answer.content:
                if len(found) == most:
                    answer.close()
                    return found, True
                found.append(json.loads(line))
        return found, False

    async def read(self, path: str, query: Mapping[str, str | int] | None = None, offset: int | None = None, count: int = 0) -> tuple[bytes, int]:
        """The bytes of an answer, or `count` of them from `offset` on; and how many there are in all."""
        headers = {} if offset is None else {hdrs.RANGE: f"bytes={offset}-{offset + count - 1}"}
        async with self._answer("GET", path, query, headers=headers) as answer:
            content = await _bounded(answer)
            total = answer.headers.get(hdrs.CONTENT_RANGE, "").rpartition("/")[2]
            return content, int(total) if total.isdecimal() else len(content)

    async def write(self, path: str, query: Mapping[str, str | int], content: bytes) -> Any:
        """Send bytes as the body; the answer's JSON."""
        async with self._answer("PUT", path, query, data=content, headers={hdrs.CONTENT_TYPE: "application/octet-stream"}) as answer:
            return json.loads(await _bounded(answer))

    async def picture(self, branch: str, query: Mapping[str, str | int]) -> Picture:
        """A picture of a branch's screen; `query` as of its route."""
        async with self._answer("GET", f"/workspaces/{branch}/screenshot", query) as answer:
            content = await _bounded(answer)
            return Picture(content, answer.content_type, _size(answer, "Picture-Size"), _size(answer, "Screen-Size"))

    async def run(self, branch: str, argv: list[str], seconds: float, **options: str | None) -> Ended:
        """Run a command to its end, or for so long. `options` as of the route (cwd, user)."""
        hello = {"type": "hello", "argv": argv, **{name: value for name, value in options.items() if value is not None}}
        done = Ended()
        try:
            async with asyncio.timeout(seconds), self._session.ws_connect(
                f"{self._origin}{API}/workspaces/{branch}/exec", headers=self._headers, max_msg_size=_MOST_BYTES
            ) as socket:
                await socket.send_json(hello)
                await socket.send_json({"stdin": "eof"})
                async for message in socket:
                    if message.type is aiohttp.WSMsgType.BINARY:
                        (done.stderr if message.data[:1] == b"\2" else done.stdout).add(message.data[1:])
                    elif message.type is aiohttp.WSMsgType.TEXT and _is_last(message.json(), done):
                        return done
        except TimeoutError:
            return done
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Refused(503, f"the portal does not answer ({type(error).__name__}): {error}") from None
        raise Refused(503, f"the connection to the portal ended while the command ran in {branch}: whether it ended is not known")

    @contextlib.asynccontextmanager
    async def _answer(self, method: str, path: str, query: Mapping[str, str | int] | None, **options: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        fields = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in (query or {}).items())
        # Encoded already: a file's name is bytes, and aiohttp would take a part of it for something else.
        address = URL(f"{self._origin}{API}{path}{'?' if fields else ''}{fields}", encoded=True)
        headers = self._headers | options.pop("headers", {})
        if method == "POST":
            # What is asked again, because its answer was lost, is done once.
            headers["Idempotency-Key"] = uuid.uuid4().hex
        try:
            async with await self._opened(method, address, headers, options) as answer:
                if answer.status >= 300:
                    raise await _refusal(answer)
                yield answer
        except TimeoutError:
            raise Refused(504, f"the portal did not answer within {SECONDS:g} s; it may still be at work: look before you try again") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Refused(503, f"the portal does not answer ({type(error).__name__}): {error}") from None

    async def _opened(self, method: str, address: URL, headers: dict[str, str], options: dict[str, Any]) -> aiohttp.ClientResponse:
        """The answer as it begins; asked again once when the connection broke off, as one that was idle for long does."""
        # Never another host: the token is for this one.
        options |= {"headers": headers, "allow_redirects": False, "timeout": aiohttp.ClientTimeout(total=SECONDS, sock_connect=_CONNECT_SECONDS)}
        try:
            return await self._session.request(method, address, **options)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            return await self._session.request(method, address, **options)


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for piece in answer.content.iter_any():
        content += piece
        if len(content) > _MOST_BYTES:
            answer.close()
            raise Refused(502, f"the portal's answer has more than {_MOST_BYTES >> 20} MiB; ask for a part of it")
    return bytes(content)


async def _refusal(answer: aiohttp.ClientResponse) -> Refused:
    try:
        error = json.loads(await _bounded(answer))["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return Refused(answer.status, f"the address of the portal answers with status {answer.status} and no reason: is it the portal's?")
    message = _told_of_branch(message)
    if after := answer.headers.get(hdrs.RETRY_AFTER):
        message += f"; try again in {after} s"
    return Refused(answer.status, f"{message} ({code}, {answer.status})")


def _is_last(message: dict[str, Any], done: Ended) -> bool:
    """Whether the command has ended. Raises Refused when it was refused or ended by others."""
    match message.get("type"):
        case "exit":
            done.status = int(message["code"])
            return True
        case "error":
            error = message["error"]
            raise Refused(0, _told_of_branch(f"{error['message']} ({error['code']})"))
        case "ended":
            raise Refused(401, "the token is unknown, has expired or was revoked")
    return False


def _told_of_branch(message: str) -> str:
    """The engine's own words for a branch that is not there speak of its command line."""
    if not message.startswith("no workspace"):
        return message
    return message.partition(";")[0] + ": it is gone, or was never yours; branch_list tells those that there are"


def _size(answer: aiohttp.ClientResponse, name: str) -> tuple[int, int]:
    wide, _, high = answer.headers.get(name, "").partition("x")
    if not wide.isdecimal() or not high.isdecimal():
        raise Refused(502, "the portal's picture does not tell its size")
    return int(wide), int(high)
