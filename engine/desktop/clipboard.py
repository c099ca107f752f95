"""The text of a workspace's clipboard. A small program inside keeps it, so that branches have their own copy and it outlives the engine."""

from __future__ import annotations

import asyncio

from engine.account import DESKTOP_USER
from engine.desktop.actions import MOST_CLIPBOARD
from engine.errors import EngineError, Internal, Unsupported
from engine.process import Command, Executor
from engine.workspace import Workspace

_PROGRAM = "xclip"
_NOT_FOUND = 127
_SECONDS = 10.0
_NONE = b"not available"
# It goes into the background as soon as the selection is its own, and stays: so none of our pipes may be open in it.
_KEEP = f"cat | exec {_PROGRAM} -selection clipboard -i >/dev/null 2>&1"


class Clipboard:
    """One workspace's."""

    def __init__(self, executor: Executor, workspace: Workspace, display: str) -> None:
        self._executor = executor
        self._workspace = workspace
        self._env = {"DISPLAY": display}

    async def text(self) -> str:
        """What is in it; empty when that is no text. Raises Unsupported; Internal, also for more than 1 MiB."""
        status, out, err = await self._executor.run(self._workspace, self._command("-o", "-target", "UTF8_STRING"), _SECONDS)
        if status != 0 and (_NONE in err or not err.strip()):
            return ""
        self._check(status, err)
        return out[:MOST_CLIPBOARD].decode(errors="replace")

    async def put(self, text: str) -> None:
        """Put a text into it. Raises Unsupported, Internal."""
        session = await self._executor.start(self._workspace, Command(["sh", "-c", _KEEP], self._env, user=DESKTOP_USER, cwd="/"))
        try:
            async with asyncio.timeout(_SECONDS):
                session.stdin.write(text.encode())
                await session.stdin.drain()
                session.close_stdin()
                status = await session.wait()
        except TimeoutError:
            raise Internal(f"{_PROGRAM} in {self._workspace.id} did not take the text within {_SECONDS:g} s") from None
        except OSError as error:
            raise Internal(f"{_PROGRAM} in {self._workspace.id}: {error}") from None
        self._check(status, b"")

    def _command(self, *options: str) -> Command:
        return Command([_PROGRAM, "-selection", "clipboard", *options], self._env, user=DESKTOP_USER, cwd="/")

    def _check(self, status: int, err: bytes) -> None:
        if status == _NOT_FOUND:
            raise Unsupported(f"the clipboard of {self._workspace.id} cannot be reached: its image has no {_PROGRAM}; add it to the image")
        if status != 0:
            error: EngineError = Internal(f"{_PROGRAM} in {self._workspace.id} ended with {status}: {err.decode(errors='replace')[-200:]}")
            raise error
