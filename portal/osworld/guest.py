"""Commands inside a workspace for the OSWorld server: run by engine/guest/osworld_run.py there, which asks back what a program wants done at the desktop."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from engine.account import DESKTOP_USER
from engine.client import ExecSession
from portal.errors import BadAnswer, NotStarted, TimedOut
from portal.node import Node, translated
from portal.sockets import Limited

_RUNNER = ["python3", "-IS", "/usr/libexec/tclone/osworld/run.py"]
# Two outputs of 4 MiB each in base64. JSON of a hostile workspace may take twenty times its length of memory.
_LONGEST_LINE = 12 << 20
_STDOUT, _MOST_STDERR = 1, 4096
# Beyond the command's own time: to start, to end, to send what it wrote.
_GRACE_SECONDS = 30.0

Asked = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


@dataclass(frozen=True)
class Done:
    """What became of a command. `returncode` is None for one that was started and left."""

    returncode: int | None
    output: str
    error: str
    late: bool


class Guest:
    """One engine's workspaces."""

    def __init__(self, node: Node) -> None:
        self._node = node
        # Each of them may have a long line in memory.
        self._running = Limited("command")

    async def run(self, workspace: str, request: dict[str, Any], asked: Asked) -> Done:
        """Run a command as the desktop's user; `asked` answers its questions. Raises NotStarted, TimedOut, TooMany, BadAnswer, EngineError."""
        seconds = float(request.setdefault("seconds", 30.0))
        try:
            async with asyncio.timeout(seconds + _GRACE_SECONDS):
                with self._running.another(workspace), translated():
                    async with self._node.client.exec(workspace, _RUNNER, user=DESKTOP_USER) as session:
                        await session.write(json.dumps(request).encode() + b"\n")
                        return await self._followed(workspace, session, asked)
        except TimeoutError:
            raise TimedOut(f"the command in {workspace} did not end within {seconds + _GRACE_SECONDS:g} s: it was ended") from None

    async def _followed(self, workspace: str, session: ExecSession, asked: Asked) -> Done:
        said = bytearray()
        async for message in _messages(session, said):
            if "done" in message:
                return _done(message["done"])
            answer = await asked({key: value for key, value in message.items() if key != "ask"})
            await session.write(json.dumps({**answer, "answer": message.get("ask")}).encode() + b"\n")
        if session.exit_code() in (126, 127):
            raise NotStarted(f"{workspace} has no python3, which the OSWorld server needs inside")
        raise BadAnswer(f"the command's runner in {workspace} ended early: {said.decode(errors='replace').strip()[-300:] or session.exit_code()}")


async def _messages(session: ExecSession, said: bytearray) -> AsyncIterator[dict[str, Any]]:
    """What the runner writes, an object a line; its stderr into `said`. The workspace may write anything. Raises BadAnswer."""
    pending, looked = bytearray(), 0
    async for stream, data in session.output():
        if stream != _STDOUT:
            said += data
            del said[:-_MOST_STDERR]
            continue
        pending += data
        if len(pending) > _LONGEST_LINE:
            raise BadAnswer("the command's runner wrote a line without end")
        # Not from the beginning each time: a long line comes in thousands of pieces.
        while (end := pending.find(b"\n", looked)) >= 0:
            line = bytes(pending[:end])
            del pending[: end + 1]
            looked = 0
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                raise BadAnswer("the command's runner wrote something that is no message")
            yield message
        looked = len(pending)


def _done(told: object) -> Done:
    """Raises NotStarted, BadAnswer."""
    if isinstance(told, dict) and isinstance(told.get("failed"), str):
        raise NotStarted(told["failed"][:500])
    returncode = told.get("returncode") if isinstance(told, dict) else ""
    if not isinstance(told, dict) or not isinstance(returncode, int | None) or not all(isinstance(told.get(name), str) for name in ("output", "error")):
        raise BadAnswer("the command's runner did not say what became of it")
    output, error = (_text(told[name]) if told.get("base64") is True else told[name] for name in ("output", "error"))
    return Done(returncode, output, error, told.get("timeout") is True)


def _text(encoded: str) -> str:
    """Raises BadAnswer."""
    try:
        return base64.b64decode(encoded, validate=True).decode(errors="replace")
    except ValueError:
        raise BadAnswer("the command's runner did not say what became of it: what it wrote is no base64") from None
