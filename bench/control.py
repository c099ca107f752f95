"""How long an action takes from the call to its acknowledgement: by a REST request each, and over the control socket, in turns in one run.

    python bench/control.py [--actions N] [--image NAME] [--json FILE]

Needs a running TClone and what the SDK needs (TCLONE_TOKEN …, docs/how-to/sdk.md). docs/reference/benchmarks.md says what the figures mean.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
# Run as a program, the first entry is bench/ itself, whose modules are not top-level ones.
if __name__ == "__main__":
    sys.path[0] = str(REPO)

from tclone.aio import Client, Workspace  # noqa: E402

# Both kinds together stay below what a token may send at once; a turn that had to wait for the rate would measure that.
_MOST = 180
_TURN = 10


async def measured(desk: Workspace, actions: int) -> dict[str, list[float]]:
    """Milliseconds of each action by kind."""
    found: dict[str, list[float]] = {"rest": [], "socket": []}
    async with desk.control() as control:
        kinds: dict[str, Callable[[int, int], Awaitable[object]]] = {"rest": desk.move, "socket": control.move}
        for move in kinds.values():
            await move(1, 1)
        for turn in range(0, actions, _TURN):
            for kind, move in kinds.items():
                for number in range(turn, min(turn + _TURN, actions)):
                    began = time.perf_counter()
                    await move(100 + number, 100)
                    found[kind].append((time.perf_counter() - began) * 1000)
    return found


async def run(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    async with Client() as client, await client.run(options.image) as desk:
        found = await measured(desk, options.actions)
    return {kind: {"p50": statistics.median(times), "p90": statistics.quantiles(times, n=10)[8], "actions": len(times)} for kind, times in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/control.py", description="Measure actions by REST and over the control socket.")
    parser.add_argument("--actions", type=int, default=150, metavar="N", help=f"of each kind, {_TURN} to {_MOST} (default %(default)s)")
    parser.add_argument("--image", default="webtop-xfce", metavar="NAME", help="(default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    options = parser.parse_args()
    if not _TURN <= options.actions <= _MOST:
        parser.error(f"--actions must be from {_TURN} to {_MOST}")
    figures = asyncio.run(run(options))
    for kind, one in figures.items():
        print(f"{kind:7} p50 {one['p50']:6.2f} ms   p90 {one['p90']:6.2f} ms   {one['actions']:.0f} actions")
    print(f"ratio of p50: {figures['socket']['p50'] / figures['rest']['p50']:.2f}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
