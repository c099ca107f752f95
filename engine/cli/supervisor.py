"""Keeps the engine and the portal's processes running: starts them in order, restarts with backoff, stops them in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_FIRST_BACKOFF = 0.5
_LONGEST_BACKOFF = 30.0
# A process that ran this long was healthy: its next failure starts the backoff anew.
_STEADY_SECONDS = 60.0
_STOP_SECONDS = 15.0
_HEALTH_POLL = 0.1
_LOG_LIMIT = 16 << 20
_TAIL_BYTES = 4096
# A service that ends this often before it was ever healthy will not become so by trying again.
_START_ATTEMPTS = 3

Check = Callable[[], Awaitable[bool]]
Started = Callable[[str, int], list[str]]


@dataclass(frozen=True)
class Service:
    """One process to keep: `healthy` says whether it answers; `start_seconds` is how long it may take to do so."""

    name: str
    argv: list[str]
    log: Path
    healthy: Check
    environment: Mapping[str, str]
    start_seconds: float


class StartFailure(Exception):
    """A service never became healthy. The message has its last log lines."""


def tail(log: Path, lines: int = 12, since: int = 0) -> str:
    """The last lines of a log, none from before byte `since`; empty when there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(max(since, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


def _open_log(path: Path) -> BinaryIO:
    """The log opened for appending; one of 16 MiB or more is first moved aside to `.1`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size >= _LOG_LIMIT:
            path.replace(path.with_name(path.name + ".1"))
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    return os.fdopen(descriptor, "ab", buffering=0)


class _Keeper:
    """One service's process and its restarts."""

    def __init__(self, service: Service, report: Callable[[str], None], started: Started) -> None:
        self.service = service
        self._started = started
        self._report = report
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._ends_while_starting = 0
        self._was_healthy = False

    async def start(self) -> None:
        """Start the process and return when it is healthy. Raises StartFailure."""
        self._task = asyncio.create_task(self._keep(), name=f"keep {self.service.name}")
        deadline = time.monotonic() + self.service.start_seconds
        while not await self.service.healthy():
            if self._task.done():
                await self._task
            if self._ends_while_starting >= _START_ATTEMPTS:
                raise StartFailure(self._failure("ended before it answered"))
            if time.monotonic() > deadline:
                raise StartFailure(self._failure(f"did not answer within {self.service.start_seconds:.0f} s"))
            await asyncio.sleep(_HEALTH_POLL)
        self._was_healthy = True

    def _failure(self, what: str) -> str:
        return f"{self.service.name} {what}; {self.service.log} ends with:\n{tail(self.service.log)}"

    async def _keep(self) -> None:
        backoff = _FIRST_BACKOFF
        while not self._stop.is_set():
            began = time.monotonic()
            status = await self._run_once()
            if self._stop.is_set():
                return
            if not self._was_healthy:
                self._ends_while_starting += 1
            if time.monotonic() - began >= _STEADY_SECONDS:
                backoff = _FIRST_BACKOFF
            self._report(f"{self.service.name} ended with status {status}; starting it again in {backoff:.1f} s")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), backoff)
            backoff = min(backoff * 2, _LONGEST_BACKOFF)

    async def _run_once(self) -> int:
        """One life of the process, ended by itself or by `stop()`."""
        with _open_log(self.service.log) as log:
            process = await asyncio.create_subprocess_exec(
                *self.service.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self.service.environment),
                start_new_session=True,
            )
        for note in self._started(self.service.name, process.pid):
            self._report(note)
        ended = asyncio.create_task(process.wait())
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not ended.done():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await asyncio.wait({ended}, timeout=_STOP_SECONDS)
        if not ended.done():
            self._report(f"{self.service.name} did not stop within {_STOP_SECONDS:.0f} s; killed")
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        return await ended

    async def stop(self) -> None:
        """End the process: SIGTERM, and SIGKILL after 15 s. Returns when it is gone; safe to call twice."""
        self._stop.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


class Supervisor:
    """Runs the services until a signal. `report` gets one line for each thing worth a log line; `started` is called with the name and the
    pid of each process at its start, and gives lines for the log too."""

    def __init__(self, services: list[Service], report: Callable[[str], None], started: Started = lambda name, pid: []) -> None:
        self._keepers = [_Keeper(service, report, started) for service in services]
        self._signal: asyncio.Future[int] | None = None

    async def start(self, phase: Callable[[str], None]) -> None:
        """Start every service in order, each healthy before the next; all are stopped again when one fails (StartFailure)."""
        try:
            for keeper in self._keepers:
                phase(keeper.service.name)
                await keeper.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop every service, the last started first."""
        for keeper in reversed(self._keepers):
            await keeper.stop()

    @contextlib.contextmanager
    def signals(self):
        """Catch SIGINT, SIGTERM and SIGHUP for `wait()` while inside."""
        loop = asyncio.get_running_loop()
        self._signal = loop.create_future()
        caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in caught:
            loop.add_signal_handler(number, self._arrived, number)
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)

    def _arrived(self, number: int) -> None:
        assert self._signal is not None
        if not self._signal.done():
            self._signal.set_result(number)

    async def wait(self) -> signal.Signals:
        """The first signal that arrived since `signals()` was entered."""
        assert self._signal is not None, "call inside signals()"
        return signal.Signals(await self._signal)


def write_state(path: Path, state: Mapping[str, object]) -> None:
    """Replace the state file in one step, so that a reader never sees half of it."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(state))
    beside.replace(path)
