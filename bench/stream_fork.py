"""Other people's streams while a busy desktop is forked: how far the fork moves their latency."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.launch import launch
from bench.own_engine import OwnEngine, remove_quietly
from bench.proxies import Running
from bench.viewers import Sample, Shape, become_ordinary, percentile, read_samples, stream
from bench.workload import DESKTOP
from engine.cli.services import STANDINGS
from engine.cli.weights import Standings
from engine.errors import Internal

_FORKS = 3
# Between two forks, and before the first: the figures of the second before a fork are what it is compared with.
_REST_SECONDS = 4.0
_AFTER_SECONDS = 1.0
_MOST_SECONDS = 300.0
# What keeps the desktop busy beside its own programs: a shell that never rests.
_BUSY = "setsid -f sh -c 'while :; do :; done' </dev/null >/dev/null 2>&1"


async def beside_a_fork(
    program: Path, shape: Shape, proxy: Running, directory: Path, cache: Path, realtime: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Stream through `proxy` and fork a desktop three times meanwhile. The proxy gets the standing that `tclone up` gives the stream
    process, and no other: with `realtime` only viewers and desktops' senders go before all else. Raises EngineError."""
    for pid in (os.getpid(), *proxy.pids()):
        become_ordinary(pid)
    before = ("chrt", "--rr", "1") if realtime else ()
    standings = Standings("tclone-bench", {"stream": STANDINGS["stream"]})
    notes = standings.give("stream", proxy.pid)
    place = directory / "engine"
    place.mkdir()
    samples = directory / "samples"
    try:
        async with OwnEngine(place, cache) as engine:
            await engine.have_image(DESKTOP.image, say)
            say("launching the desktop")
            desktop = await launch(engine.client, DESKTOP, program)
            status, _, error = await engine.client.run(desktop.id, ["/bin/sh", "-c", _BUSY])
            if status != 0:
                raise Internal(f"the desktop could not be made busy: {error.decode(errors='replace').strip()}")
            forks: list[dict[str, Any]] = []
            enough = asyncio.Event()
            longer = replace(shape, seconds=_MOST_SECONDS)
            streaming = asyncio.create_task(stream(program, longer, proxy, proxy.place.desktop, directory, samples, before, enough))
            try:
                await asyncio.sleep(longer.warm)
                for _ in range(_FORKS):
                    await asyncio.sleep(_REST_SECONDS)
                    forks.append(await _fork(engine, desktop.id))
                await asyncio.sleep(_REST_SECONDS)
                enough.set()
                figures = await streaming
            finally:
                streaming.cancel()
                await asyncio.gather(streaming, return_exceptions=True)
    finally:
        await proxy.stop()
        standings.close()
    frames = read_samples(samples)
    for fork in forks:
        fork["before"] = _p99(frames, fork["begin"] - 1.0, fork["begin"])
        fork["during"] = _p99(frames, fork["begin"], fork["end"] + _AFTER_SECONDS)
    return {"forks": forks, "frames": figures["frames"], "groups": "; ".join(notes) or "the relay's weight is that of `tclone up`"}


async def _fork(engine: OwnEngine, workspace: str) -> dict[str, Any]:
    """One fork, and its branch's removal, which is not part of the time."""
    begin = time.monotonic()
    result = await engine.client.fork(workspace, copies=1)
    end = time.monotonic()
    left = await remove_quietly(engine.client, [branch["id"] for branch in result["branches"]])
    errors = [branch["error"] for branch in result["branches"] if branch["error"]] + left
    if errors:
        raise Internal(f"fork of the desktop: {'; '.join(errors)}")
    return {"begin": begin, "end": end, "ms": (end - begin) * 1000, "pause": result["ms"]["pause"]}


def _p99(frames: list[Sample], begin: float, end: float) -> float:
    return percentile([frame.milliseconds for frame in frames if begin <= frame.arrival < end], 0.99)
