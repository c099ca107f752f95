"""The stream workers as control sees them: what each says of itself on its health socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp

_PATIENCE_SECONDS = 2.0
_MOST_WORKERS = 64


async def ask(run: Path) -> list[dict[str, Any]]:
    """The figures (docs/reference/streams.md) of each worker that answers; `run` is the portal's run directory."""
    sockets = [run / "stream.sock", *(run / f"stream-{number}.sock" for number in range(1, _MOST_WORKERS))]
    there = await asyncio.to_thread(_existing, sockets)
    answers = await asyncio.gather(*(_health(path) for path in there))
    return [answer for answer in answers if answer is not None]


async def traffic(run: Path) -> Counter[str]:
    """Bytes that streams carried for each workspace, both ways, since the workers began."""
    carried: Counter[str] = Counter()
    for worker in await ask(run):
        figures = worker.get("traffic")
        for workspace, count in (figures.items() if isinstance(figures, dict) else ()):
            carried[workspace] += int(number(count))
    return carried


def number(value: object) -> float:
    """A figure, 0 when it is none."""
    return float(value) if isinstance(value, int | float) else 0.0


def _existing(paths: Iterable[Path]) -> list[Path]:
    return [path for path in paths if path.exists()]


async def _health(path: Path) -> dict[str, Any] | None:
    """A worker's figures; None when it is starting or gone."""
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError, json.JSONDecodeError):
        connector = aiohttp.UnixConnector(str(path))
        timeout = aiohttp.ClientTimeout(total=_PATIENCE_SECONDS)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as client, client.get("http://stream/healthz") as answer:
            value = await answer.json()
            return value if isinstance(value, dict) else None
    return None
