"""Commands that clients started in sandboxes and may come back to: their output goes to whoever listens, and they outlive a connection."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from engine.client import ExecSession
from engine.errors import EngineError, Unavailable
from engine.waiting import seen
from portal.errors import NotThere, PortalError, TooMany
from portal.inside import Inside

MOST_RUNNING = 64
_QUEUED = 64
# Says the command's number first: it is what signals are sent to, and what `ps` inside shows.
_WRAPPER = ["/bin/sh", "-c", 'echo $$; exec "$0" "$@"']
_LONGEST_NUMBER = 16
# Of what a shell may say to stderr before that.
_MOST_NOISE = 64 << 10
# Above every pid of the kernel: what is answered without a process.
_PRETENDED = itertools.count(4_194_305)

Event = dict[str, Any]


@dataclass
class Wanted:
    """A command as a client asked for it. `seconds`: when it is killed at the latest, None: never."""

    argv: list[str]
    env: dict[str, str]
    cwd: str | None
    user: str
    tag: str | None = None
    stdin: bool = False
    size: tuple[int, int] | None = None  # rows and columns of a terminal
    seconds: float | None = None


@dataclass
class Running:
    """One of them. `pid` is the sandbox's own number for it."""

    pid: int
    wanted: Wanted
    session: ExecSession
    listeners: set[asyncio.Queue[Event | None]] = field(default_factory=set)
    ended: Event | None = None
    task: asyncio.Task[None] | None = None
    # Of whoever started it: there from the beginning, so that nothing is missed.
    first: asyncio.Queue[Event | None] = field(default_factory=lambda: asyncio.Queue(_QUEUED))

    def __post_init__(self) -> None:
        self.listeners.add(self.first)

    @contextlib.asynccontextmanager
    async def listening(self, first: bool = False) -> AsyncIterator[asyncio.Queue[Event | None]]:
        """Events from now on, for whoever started it from the `first` one; None after the last.

        Who does not take them holds the command up; who leaves does not.
        """
        queue: asyncio.Queue[Event | None] = self.first if first else asyncio.Queue(_QUEUED)
        if not first and self.ended is not None:
            queue.put_nowait(self.ended)
            queue.put_nowait(None)
        elif not first:
            self.listeners.add(queue)
        try:
            yield queue
        finally:
            self.listeners.discard(queue)
            # Room for what waits to be put: it finds out that nobody takes it any more.
            while not queue.empty():
                queue.get_nowait()

    async def tell(self, event: Event | None) -> None:
        for queue in list(self.listeners):
            while queue in self.listeners:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await queue.put(event)
                        break


class Processes:
    """By workspace and pid."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self._running: dict[str, dict[int, Running]] = {}
        self._starting: dict[str, int] = {}

    def of(self, workspace: str) -> list[Running]:
        return list(self._running.get(workspace, {}).values())

    def find(self, workspace: str, selector: object) -> Running:
        """By {"pid"} or {"tag"}. Raises NotThere."""
        wanted = selector if isinstance(selector, dict) else {}
        for one in self.of(workspace):
            if one.pid == wanted.get("pid") or (one.wanted.tag is not None and one.wanted.tag == wanted.get("tag")):
                return one
        raise NotThere(f"no such process of {workspace} was started by a client")

    async def start(self, workspace: str, wanted: Wanted) -> Running:
        """Start a command; it runs until it ends, its time is over or it is killed. Raises TooMany, EngineError."""
        if len(self.of(workspace)) + self._starting.get(workspace, 0) >= MOST_RUNNING:
            raise TooMany(f"{MOST_RUNNING} commands run in {workspace}; wait until one has ended")
        began: asyncio.Future[Running] = asyncio.get_running_loop().create_future()
        began.add_done_callback(seen)
        self._starting[workspace] = self._starting.get(workspace, 0) + 1
        task = asyncio.create_task(self._run(workspace, wanted, began), name=f"command in {workspace}")
        try:
            running = await asyncio.shield(began)
        except BaseException:
            task.cancel()
            raise
        finally:
            self._starting[workspace] -= 1
            if not self._starting[workspace]:
                del self._starting[workspace]
        running.task = task
        return running

    async def close(self) -> None:
        """End all of them."""
        tasks = [one.task for processes in self._running.values() for one in processes.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, workspace: str, wanted: Wanted, began: asyncio.Future[Running]) -> None:
        options: dict[str, Any] = {"user": wanted.user, "cwd": wanted.cwd, "env": wanted.env or None}
        if wanted.size is not None:
            options |= {"tty": True, "rows": wanted.size[0], "cols": wanted.size[1]}
        running: Running | None = None
        try:
            async with asyncio.timeout(wanted.seconds), self._inside.command(workspace, [*_WRAPPER, *wanted.argv], **options) as session:
                output = session.output()
                pid, rest = await _number(output)
                if pid in self._running.get(workspace, {}):
                    raise Unavailable(f"the command in {workspace} says that it is {pid}, which another one is; does its /bin/sh tell the truth?")
                running = Running(pid, wanted, session)
                self._running.setdefault(workspace, {})[pid] = running
                if not wanted.stdin and wanted.size is None:
                    await session.close_stdin()
                began.set_result(running)
                if rest:
                    await running.tell(_data(1, rest, wanted))
                async for number, data in output:
                    await running.tell(_data(number, data, wanted))
                running.ended = end(session.exit_code())
        except TimeoutError:
            if running is not None:
                running.ended = end(-1, "signal: killed", "its time is over")
            elif not began.done():
                began.set_exception(Unavailable(f"a command in {workspace} did not start in its time"))
        except (EngineError, PortalError) as error:
            if running is not None:
                running.ended = end(-1, "gone", error.message)
            elif not began.done():
                began.set_exception(error)
        finally:
            if running is not None:
                running.ended = running.ended or end(-1, "signal: killed", "it was stopped")
                known = self._running.get(workspace, {})
                known.pop(running.pid, None)
                if not known:
                    self._running.pop(workspace, None)
                await running.tell(running.ended)
                await running.tell(None)
            elif not began.done():
                began.set_exception(Unavailable(f"a command in {workspace} did not start"))


async def _number(output: AsyncIterator[tuple[int, bytes]]) -> tuple[int, bytes]:
    """The pid that the wrapper says first, and what came with it."""
    said, noise = b"", 0
    async for stream, data in output:
        if stream == 1:
            said += data
        else:
            noise += len(data)
        line, newline, rest = said.partition(b"\n")
        if newline and line.strip().isdigit() and len(line) <= _LONGEST_NUMBER:
            return int(line), rest
        if newline or len(said) > _LONGEST_NUMBER or noise > _MOST_NOISE:
            break
    raise Unavailable("the command did not begin as it should; does its image have /bin/sh?")


def pretended() -> int:
    """A number for what is answered without a process."""
    return next(_PRETENDED)


def start(pid: int) -> Event:
    return {"event": {"start": {"pid": pid}}}


def data(stream: str, content: bytes) -> Event:
    return {"event": {"data": {stream: base64.b64encode(content).decode()}}}


def end(code: int, status: str = "", error: str = "") -> Event:
    """A code of 128 and N is that of signal N, as shells have it."""
    told: Event = {"exitCode": code, "exited": code >= 0, "status": status or f"exit status {code}"}
    if error or code != 0:
        told["error"] = error or told["status"]
    return {"event": {"end": told}}


def _data(number: int, content: bytes, wanted: Wanted) -> Event:
    return data("pty" if wanted.size is not None else "stderr" if number == 2 else "stdout", content)
