"""Workspaces that hold a workload, from nothing to ready. How long that takes is what a fork saves: the `fresh start`."""

from __future__ import annotations

import asyncio
import shlex
import time
from dataclasses import dataclass
from pathlib import Path

from bench.workload import Workload
from engine.client import EngineClient
from engine.errors import EngineError, Internal

_PROGRAM = "/tmp/load"
_READY = "/tmp/load.ready"
_READY_SECONDS = 120.0
_POLL_SECONDS = 0.2
_STDIN_CHUNK = 64 << 10

_DESKTOP_USER = "user"
# Each is detached from the command that starts it, and has descriptors of the workspace's own only.
_APPLICATIONS = ("xfce4-terminal", "thunar /home/user", "chromium --no-first-run about:blank")
_WINDOW_SECONDS = 90.0
_SETTLE_SECONDS = 60.0
# A desktop at rest uses a few per cent; programs that still start use a whole CPU.
_SETTLED_CPU_SHARE = 0.15


@dataclass(frozen=True)
class Launched:
    """A workspace with its workload ready, and how long that took in ms."""

    id: str
    milliseconds: float
    processes: int


async def launch(client: EngineClient, workload: Workload, program: Path) -> Launched:
    """Launch and wait until the workload is ready. Nothing is left when it fails. Raises EngineError."""
    if workload.desktop:
        return await _desktop(client, workload)
    return await _load(client, workload, program)


async def _load(client: EngineClient, workload: Workload, program: Path) -> Launched:
    """The load as the workspace's own command, so that it runs below pid 1 as a user's programs do.

    The program is sent in by the first command; that, and noticing that it is ready, is the benchmark's own business: the time is that of
    the launch plus what the program itself took.
    """
    arguments = shlex.join([_PROGRAM, "run", str(workload.processes), str(workload.dirty), _READY])
    command = ["/bin/sh", "-c", f"until [ -x {_PROGRAM} ]; do sleep 0.05; done; exec {arguments}"]
    began = time.monotonic()
    workspace = await client.launch(workload.image, command=command, wait=True)
    launched_ms = (time.monotonic() - began) * 1000
    try:
        await _send(client, workspace["id"], program)
        processes, own_ms = await _load_ready(client, workspace["id"])
    except BaseException:
        await client.remove(workspace["id"])
        raise
    return Launched(workspace["id"], launched_ms + own_ms, processes + 1)


async def _send(client: EngineClient, workspace: str, program: Path) -> None:
    script = f"cat > {_PROGRAM}.part && chmod 755 {_PROGRAM}.part && mv {_PROGRAM}.part {_PROGRAM}"
    content = program.read_bytes()
    async with client.exec(workspace, ["/bin/sh", "-c", script]) as session:
        for start in range(0, len(content), _STDIN_CHUNK):
            await session.write(content[start : start + _STDIN_CHUNK])
        await session.close_stdin()
        errors = b"".join([data async for _, data in session.output()])
        if session.exit_code() != 0:
            raise Internal(f"the load program could not be written into {workspace}: {errors.decode(errors='replace').strip()}")


async def _load_ready(client: EngineClient, workspace: str) -> tuple[int, float]:
    """Wait for the load's report: its number of processes, and the ms it took to get there."""
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        status, out, _ = await client.run(workspace, ["cat", _READY])
        if status == 0 and out.endswith(b"\n"):
            processes, milliseconds = out.split()
            return int(processes), float(milliseconds)
        if time.monotonic() > deadline:
            raise Internal(f"the load in {workspace} was not ready after {_READY_SECONDS:g} s")
        await asyncio.sleep(_POLL_SECONDS)


async def _desktop(client: EngineClient, workload: Workload) -> Launched:
    """The desktop with a terminal, the file manager and Chromium open. The time ends when the last window is there."""
    began = time.monotonic()
    workspace = await client.launch(workload.image, wait=True)
    try:
        before = await windows(client, workspace["id"])
        for application in _APPLICATIONS:
            await _start_application(client, workspace["id"], application)
        await _wait_for_windows(client, workspace["id"], before + len(_APPLICATIONS))
        milliseconds = (time.monotonic() - began) * 1000
        await _settle(client, workspace["id"])
        stats = await client.stats(workspace["id"])
    except BaseException:
        await client.remove(workspace["id"])
        raise
    return Launched(workspace["id"], milliseconds, stats["processes"])


async def _start_application(client: EngineClient, workspace: str, application: str) -> None:
    script = f"exec setsid -f {application} </dev/null >/dev/null 2>&1"
    status, _, err = await client.run(workspace, ["/bin/sh", "-c", script], user=_DESKTOP_USER, cwd="/home/user")
    if status != 0:
        raise Internal(f"`{application}` did not start in {workspace}: {err.decode(errors='replace').strip() or status}")


async def windows(client: EngineClient, workspace: str) -> int:
    """How many windows the desktop shows. Raises EngineError."""
    status, out, err = await client.run(workspace, ["wmctrl", "-l"], user=_DESKTOP_USER)
    if status != 0:
        raise Internal(f"wmctrl failed in {workspace}: {err.decode(errors='replace').strip() or status}")
    return len(out.splitlines())


async def _wait_for_windows(client: EngineClient, workspace: str, count: int) -> None:
    deadline = time.monotonic() + _WINDOW_SECONDS
    while (seen := await windows(client, workspace)) < count:
        if time.monotonic() > deadline:
            raise Internal(f"{workspace} shows {seen} of {count} windows after {_WINDOW_SECONDS:g} s")
        await asyncio.sleep(_POLL_SECONDS)


async def _settle(client: EngineClient, workspace: str) -> None:
    """Wait until what starts has started; a desktop that never rests is measured as it is."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    used = (await client.stats(workspace))["cpu_seconds"]
    while time.monotonic() < deadline:
        began = time.monotonic()
        await asyncio.sleep(1.0)
        now = (await client.stats(workspace))["cpu_seconds"]
        if now - used < _SETTLED_CPU_SHARE * (time.monotonic() - began):
            return
        used = now


async def launch_many(client: EngineClient, workload: Workload, program: Path, copies: int) -> list[Launched]:
    """Launch several at once. When one fails the others are removed and its error is raised."""
    outcomes = await asyncio.gather(*(launch(client, workload, program) for _ in range(copies)), return_exceptions=True)
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    launched = [outcome for outcome in outcomes if isinstance(outcome, Launched)]
    if failures:
        await asyncio.gather(*(client.remove(one.id) for one in launched), return_exceptions=True)
        raise next((failure for failure in failures if isinstance(failure, EngineError)), failures[0])
    return launched
