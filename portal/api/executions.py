"""Commands in a workspace, for programs: output as it comes, as lines of JSON, and the status last."""

from __future__ import annotations

import asyncio
import base64
import codecs
import json
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Literal

import pydantic
from aiohttp import hdrs, web

from engine.account import DESKTOP_USER
from engine.client import ExecSession
from engine.errors import EngineError
from portal import audit
from portal.bodies import Body
from portal.endings import Endings, until
from portal.errors import PortalError, TimedOut, TooMany
from portal.inside import Inside
from portal.principal import Scope
from portal.rates import Rates
from portal.routes import LONGEST_TEXT_BODY, Call, Route

_MOST_AT_ONCE = 32
_LONGEST_ARGUMENT = 32 << 10
_STREAMS = {1: "stdout", 2: "stderr"}

Argument = Annotated[str, pydantic.Field(max_length=_LONGEST_ARGUMENT)]


class Exec(Body):
    """`argv`, or `script` for a shell. `user`: the desktop's without a word. `stdin` is text; then it ends. `timeout` in seconds.

    `encoding`: how output is told, as `text` (UTF-8, what is none of it replaced) or as `base64`, exactly.
    """

    argv: Annotated[list[Argument], pydantic.Field(min_length=1, max_length=1000)] | None = None
    script: Argument | None = None
    user: Annotated[str, pydantic.Field(min_length=1, max_length=256)] = DESKTOP_USER
    cwd: Annotated[str, pydantic.Field(pattern="^/[^\\x00]*$", max_length=4095)] | None = None
    env: Annotated[dict[str, Argument], pydantic.Field(max_length=500)] = {}
    stdin: Argument = ""
    timeout: Annotated[float, pydantic.Field(gt=0, le=86400, strict=False)] = 60.0
    encoding: Literal["text", "base64"] = "text"

    @pydantic.model_validator(mode="after")
    def _one(self) -> Exec:
        if (self.argv is None) == (self.script is None):
            raise ValueError("give argv or script, one of them")
        return self

    def words(self) -> list[str]:
        """What is run."""
        return self.argv if self.argv is not None else ["/bin/sh", "-c", str(self.script)]


class Executions:
    """`/workspaces/{id}/exec`."""

    def __init__(self, inside: Inside, endings: Endings, rates: Rates) -> None:
        self._inside = inside
        self._endings = endings
        self._rates = rates
        self._running: Counter[str] = Counter()

    def routes(self) -> list[Route]:
        told = {200: 'NDJSON: {"stdout"} and {"stderr"} as they come, last {"exit"} or {"error"}'}
        return [
            Route("POST", "/workspaces/{id}/exec", Scope.CONTROL, self._exec, "Run a command, its output streamed", Exec, told,
                  content=("application/x-ndjson",), acts=True, longest=LONGEST_TEXT_BODY),
        ]  # fmt: skip

    async def _exec(self, call: Call) -> web.StreamResponse:
        wanted: Exec = call.body
        with audit.outcome("exec", call.principal, call.workspace) as told:
            self._rates.take(call.principal.grant, 1)
            if self._running[call.workspace] >= _MOST_AT_ONCE:
                raise TooMany(f"{_MOST_AT_ONCE} commands run in {call.workspace}; wait until one has ended")
            self._running[call.workspace] += 1
            try:
                told["exit"] = await self._run(call, wanted, answer := web.StreamResponse(headers={hdrs.CONTENT_TYPE: "application/x-ndjson"}))
            finally:
                self._running[call.workspace] -= 1
                if not self._running[call.workspace]:
                    del self._running[call.workspace]
        return answer

    async def _run(self, call: Call, wanted: Exec, answer: web.StreamResponse) -> int | None:
        """The command's status; None when it had to be stopped, which the last line says."""
        options = {"user": wanted.user, "cwd": wanted.cwd, "env": wanted.env or None}
        async with self._endings.watch() as ended, self._inside.command(call.workspace, wanted.words(), **options) as session:
            over = asyncio.create_task(until(call.principal.grant, ended))
            running = asyncio.create_task(self._output(call.request, session, wanted, answer))
            try:
                done, _ = await asyncio.wait({over, running}, timeout=wanted.timeout, return_when=asyncio.FIRST_COMPLETED)
                if running in done:
                    return running.result()
                error = {"code": "login", "message": "the right to run it has ended"} if over in done else {
                    "code": TimedOut.code, "message": f"it did not end within {wanted.timeout:g} s and was killed"}  # fmt: skip
            finally:
                for task in (over, running):
                    task.cancel()
                await asyncio.gather(over, running, return_exceptions=True)
        await _line(call.request, answer, {"error": error})
        return None

    async def _output(self, request: web.Request, session: ExecSession, wanted: Exec, answer: web.StreamResponse) -> int | None:
        if wanted.stdin:
            await session.write(wanted.stdin.encode())
        await session.close_stdin()
        decoders = {number: _decoder(wanted.encoding) for number in _STREAMS}
        try:
            async for number, data in session.output():
                if text := decoders[number](data, False):
                    await _line(request, answer, {_STREAMS[number]: text})
        except (EngineError, PortalError) as error:
            if not answer.prepared:
                raise  # it was never started: told with the status that says so
            await _line(request, answer, {"error": {"code": error.code, "message": error.message}})
            return None
        for number, name in _STREAMS.items():
            if text := decoders[number](b"", True):
                await _line(request, answer, {name: text})
        await _line(request, answer, {"exit": session.exit_code()})
        return session.exit_code()


def _decoder(encoding: str) -> Callable[[bytes, bool], str]:
    if encoding == "base64":
        return lambda data, _: base64.b64encode(data).decode()
    # A character may come in two pieces.
    return codecs.getincrementaldecoder("utf-8")("replace").decode


async def _line(request: web.Request, answer: web.StreamResponse, item: dict[str, object]) -> None:
    if not answer.prepared:
        await answer.prepare(request)
    await answer.write(json.dumps(item).encode() + b"\n")
