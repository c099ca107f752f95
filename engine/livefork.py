"""One run of the native program tclone-livefork: start it, speak its protocol, see to its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from engine import findings, runtime, syscalls
from engine.errors import Conflict, EngineError, Internal, LimitReached
from engine.stage import Stage
from engine.text import printable
from engine.tools import Tools
from engine.waiting import readable

log = logging.getLogger(__name__)

_PACKET_LIMIT = 1 << 18
_ABORT_SECONDS = 3.0
_TIDY_SECONDS = 20.0


class SourceChanged(Conflict):
    """The fork program met the source in a state that passes by itself. Nothing came of the fork; a new one may well succeed."""


class BranchKilled(Internal):
    """Processes of a branch were killed while they were made; the fork program cannot see by whom."""


_ERRORS: dict[str, type[EngineError]] = {"limit": LimitReached, "gone": Conflict, "busy": SourceChanged, "killed": BranchKilled}


async def tidy(program: Path, source_pid: int) -> None:
    """Take out of a source what a fork program that was killed half-way has left in its processes. Its failure is logged: the source runs on."""
    process = await asyncio.create_subprocess_exec(
        str(program), "tidy", "--source", str(source_pid), stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        _, said = await asyncio.wait_for(process.communicate(), _TIDY_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        said = b"it took too long"
    if process.returncode != 0:
        log.warning("tidying host pid %d after a killed fork: %s", source_pid, said.decode(errors="replace").strip())


class Livefork:
    """`async with Livefork(...) as run`: leaving the block leaves no process behind and the source running."""

    def __init__(self, tools: Tools, source_pid: int, stages: list[Stage], options: list[str], log: Path) -> None:
        self._program = tools.livefork
        self._learnt = tools.learnt
        self._source_pid = source_pid
        self._stages = stages
        self._options = options
        self._log = log
        self._control: socket.socket
        self._pid = 0
        self._pidfd = -1

    async def __aenter__(self) -> "Livefork":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        argv = [str(self._program), "fork", "--source", str(self._source_pid), "--control", str(theirs.fileno())]
        for stage in self._stages:
            argv += ["--branch", f"{stage.id}:{stage.control.fileno()}:{stage.pid}"]
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fds = [theirs.fileno(), *(stage.control.fileno() for stage in self._stages), *self._learnt.fds]
            self._pid = runtime.spawn([*argv, *self._options, *self._learnt.arguments], (None, log, log), keep=fds)
        except OSError as error:
            ours.close()
            raise Internal(f"cannot start {self._program}: {error}") from error
        finally:
            theirs.close()
            os.close(log)
        self._control = ours
        self._pidfd = syscalls.pidfd_open(self._pid)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ask it to give up if it still runs, then kill it: the kernel resumes what a dead tracer had stopped."""
        ended = asyncio.ensure_future(readable(self._pidfd))
        try:
            await asyncio.wait({ended}, timeout=0.2)
            if not ended.done():
                with contextlib.suppress(OSError):
                    self._control.send(b'{"op":"abort"}')
                await asyncio.wait({ended}, timeout=_ABORT_SECONDS)
            if not ended.done():
                syscalls.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                await ended
        finally:
            ended.cancel()
            self._control.close()
            os.close(self._pidfd)
            killed = False
            with contextlib.suppress(ChildProcessError):
                killed = os.WIFSIGNALED(os.waitpid(self._pid, 0)[1])
        if killed:
            await tidy(self._program, self._source_pid)

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """What it reports, up to and including `done`. Its `error` is raised as EngineError, and so is its silent end."""
        blockers: list[findings.Finding] = []
        while True:
            packet = await self._receive()
            if not packet:
                detail = runtime.read_tail(self._log)
                raise Internal(f"the fork program ended without a result{': ' + detail if detail else ''}; the source runs on")
            try:
                event = json.loads(packet)
                kind = event["event"]
            except (ValueError, KeyError, TypeError):
                raise Internal("the fork program sent something that is not an event") from None
            if kind == "blocker":
                blockers.append(findings.checked(event.get("blocker")))
                continue
            if kind == "error":
                message = printable(event.get("message", "no reason given"))
                if event.get("code") == "unsupported":
                    raise findings.refusal(blockers, message)
                if event.get("code") == "gone":
                    message = f"the source, or a part of it, ended while it was being forked ({message}); `tclone inspect` tells its state"
                if event.get("code") == "busy":
                    message = f"{message}; fork again when the workspace is calmer"
                raise _ERRORS.get(event.get("code", ""), Internal)(message)
            yield event
            if kind == "done":
                return

    async def _receive(self) -> bytes:
        """The next packet, b"" at the end. A peer that ended with our packets unread resets the socket once before what it sent can be read."""
        loop = asyncio.get_running_loop()
        for _ in range(2):
            try:
                return await loop.sock_recv(self._control, _PACKET_LIMIT)
            except ConnectionResetError:
                continue
        return b""

    def send_root(self, branch: str, mount: int) -> None:
        """Hand over a branch's root: a detached mount."""
        message = json.dumps({"op": "root", "branch": branch}).encode()
        # If the program has given up meanwhile, its last packet says why: that is read next.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._control, [message], [mount])
