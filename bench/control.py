"""How long actions and screenshots take from the call to the answer: by a REST request each, over the control socket, and by a command run inside as others do, in turns in one run.

    python bench/control.py [--actions N] [--screenshots N] [--install] [--image NAME] [--json FILE]

Needs a running TClone and what the SDK needs (TCLONE_TOKEN …, docs/how-to/sdk.md). docs/reference/benchmarks.md says what the figures mean.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

REPO = Path(__file__).resolve().parent.parent
# Run as a program, the first entry is bench/ itself, whose modules are not top-level ones.
if __name__ == "__main__":
    sys.path[0] = str(REPO)

from bench import machine, report  # noqa: E402
from tclone.aio import Client, Control, Workspace  # noqa: E402
from tclone.errors import TCloneError  # noqa: E402

# Both kinds of actions together stay below what a token may send at once; a turn that had to wait for the rate would measure that.
_MOST = 180
_TURN = 10
_TARGET_MS = 40.0  # of the median of a whole PNG
_SETTLE_SECONDS = 10.0
# The screen has something to draw all the time, so that no picture is the one before.
_WINDOWS = (
    "setsid -f thunar >/dev/null 2>&1; setsid -f xfce4-terminal --title=busy --geometry=100x30 -x "
    "sh -c 'while :; do date +%s%N; sleep 0.05; done' >/dev/null 2>&1"
)
_PILLOW = "import sys; from PIL import ImageGrab; ImageGrab.grab(xdisplay=':1').save(sys.stdout.buffer, 'PNG')"
# What others take screenshots by, inside: the first is what OSWorld's server does, the others are what agents' images have.
_RIVALS: dict[str, list[str]] = {
    "Pillow": ["/opt/selkies/bin/python3", "-c", _PILLOW],
    "scrot": ["scrot", "-"],
    "import": ["import", "-silent", "-window", "root", "png:-"],
    "ffmpeg": ["ffmpeg", "-loglevel", "error", "-f", "x11grab", "-i", ":1", "-frames:v", "1", "-c:v", "png", "-f", "image2pipe", "-"],
}
_PACKAGES = {"scrot": "scrot", "import": "imagemagick", "ffmpeg": "ffmpeg"}
_INSTALL = "apt-get update -q && apt-get install -q -y --no-install-recommends {packages}"


@dataclass
class Series:
    """Milliseconds of each call of one kind, and bytes of each answer that is a picture."""

    times: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """p50, p90 and p99 in milliseconds, the median of the pictures' bytes, and how many there were."""
        cuts = statistics.quantiles(self.times, n=100, method="inclusive")
        return {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "bytes": statistics.median(self.sizes) if self.sizes else 0, "calls": len(self.times)}


async def _timed(series: Series, call: Awaitable[bytes | None]) -> bytes | None:
    began = time.perf_counter()
    picture = await call
    series.times.append((time.perf_counter() - began) * 1000)
    if picture is not None:
        series.sizes.append(len(picture))
    return picture


async def in_turns(kinds: dict[str, Callable[[int], Awaitable[bytes | None]]], count: int) -> dict[str, Series]:
    """So many calls of each kind, some of each in turns, after one that does not count."""
    found = {kind: Series() for kind in kinds}
    for call in kinds.values():
        await call(0)
    for turn in range(0, count, _TURN):
        for kind, call in kinds.items():
            for number in range(turn, min(turn + _TURN, count)):
                await _timed(found[kind], call(number))
    return found


def actions(desk: Workspace, control: Control) -> dict[str, Callable[[int], Awaitable[bytes | None]]]:
    def moving(move: Callable[[int, int], Awaitable[object]]) -> Callable[[int], Awaitable[None]]:
        async def call(number: int) -> None:
            await move(100 + number, 100)

        return call

    return {"move, REST": moving(desk.move), "move, socket": moving(control.move)}


def pictures(desk: Workspace, control: Control, rivals: dict[str, list[str]]) -> dict[str, Callable[[int], Awaitable[bytes | None]]]:
    def by_rest(format: str) -> Callable[[int], Awaitable[bytes]]:
        async def call(number: int) -> bytes:
            return (await desk.screenshot(format=format)).content

        return call

    def by_socket(format: str) -> Callable[[int], Awaitable[bytes]]:
        """The screen as it is, asked for anew each time; further pictures would come by themselves."""

        async def call(number: int) -> bytes:
            async with aclosing(control.frames(format=format)) as frames:  # type: ignore[type-var]
                return (await anext(frames)).content

        return call

    def by_command(argv: list[str]) -> Callable[[int], Awaitable[bytes]]:
        async def call(number: int) -> bytes:
            return (await desk.exec(argv, env={"DISPLAY": ":1"}, check=True)).stdout

        return call

    ours = {f"{format.upper()}, {way}": call(format) for format in ("png", "jpeg") for way, call in (("REST", by_rest), ("socket", by_socket))}
    return {**ours, **{f"PNG, {name} by exec": by_command(argv) for name, argv in rivals.items()}}


async def rivals_of(desk: Workspace, install: bool) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The commands that take a picture in this desktop, and for the others why not."""
    if install:
        done = await desk.exec(_INSTALL.format(packages=" ".join(_PACKAGES.values())), user="root")
        if done.status != 0:
            print(f"bench: apt-get inside ended with status {done.status}: {done.stderr.decode(errors='replace').strip()[-300:]}", file=sys.stderr)
    there, absent = {}, {}
    for name, argv in _RIVALS.items():
        done = await desk.exec(argv, env={"DISPLAY": ":1"})
        try:
            size = Image.open(io.BytesIO(done.stdout)).size if done.status == 0 else None
        except OSError:
            size = None
        if size == (await desk.screenshot(width=16)).screen:
            there[name] = argv
        else:
            absent[name] = "not in this image" if done.status in (126, 127) else f"took no picture (status {done.status})"
    return there, absent


async def run(options: argparse.Namespace) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
    async with Client() as client, await client.run(options.image) as desk:
        rivals, absent = await rivals_of(desk, options.install)
        await desk.exec(_WINDOWS, env={"DISPLAY": ":1"}, check=True)
        await desk.wait_for_window("busy", timeout=60)
        await asyncio.sleep(_SETTLE_SECONDS)
        async with desk.control() as control:
            found = await in_turns(actions(desk, control), options.actions)
            found |= await in_turns(pictures(desk, control, rivals), options.screenshots)
    return {kind: series.figures() for kind, series in found.items()}, absent


def text(figures: dict[str, dict[str, float]], absent: dict[str, str]) -> str:
    """One table; then ratios, and whether the target is met."""
    lines = [f"{'':24}{'p50 ms':>9}{'p90 ms':>9}{'p99 ms':>9}{'kB':>8}{'calls':>8}"]
    for kind, one in figures.items():
        size = f"{one['bytes'] / 1000:.0f}" if one["bytes"] else ""
        lines.append(f"{kind:24}{one['p50']:>9.2f}{one['p90']:>9.2f}{one['p99']:>9.2f}{size:>8}{one['calls']:>8.0f}")
    lines += ["", f"move, socket against REST: {figures['move, socket']['p50'] / figures['move, REST']['p50']:.2f} (p50)"]
    ours = figures["PNG, REST"]["p50"]
    for kind, one in figures.items():
        if kind.endswith("by exec"):
            lines.append(f"{kind} takes {one['p50'] / ours:.1f} times as long as PNG by REST (p50)")
    lines += [f"{name}: {why}" for name, why in absent.items()]
    lines.append(f"PNG, REST: p50 {ours:.1f} ms, target {_TARGET_MS:.0f} ms: {'met' if ours <= _TARGET_MS else 'MISSED'}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/control.py", description="Measure actions and screenshots by REST, over the control socket and by commands inside.")
    parser.add_argument("--actions", type=int, default=150, metavar="N", help=f"of each kind, {_TURN} to {_MOST} (default %(default)s)")
    parser.add_argument("--screenshots", type=int, default=200, metavar="N", help=f"of each kind, at least {_TURN} (default %(default)s)")
    parser.add_argument("--install", action="store_true", help="install further rivals in the desktop by apt-get: it needs the network")
    parser.add_argument("--image", default="webtop-xfce", metavar="NAME", help="(default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    options = parser.parse_args()
    if not _TURN <= options.actions <= _MOST:
        parser.error(f"--actions must be from {_TURN} to {_MOST}")
    if options.screenshots < _TURN:
        parser.error(f"--screenshots must be at least {_TURN}")
    before = machine.load_average()
    try:
        figures, absent = asyncio.run(run(options))
    except TCloneError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    facts: dict[str, Any] = machine.facts()
    print("\n".join(report.machine_lines(facts)))
    print(f"load average before {report.load_text(before)}, after {report.load_text(machine.load_average())}\n")
    print(text(figures, absent))
    if options.json is not None:
        report.write_json(options.json, {"machine": facts, "figures": figures, "absent": absent})
    return 0


if __name__ == "__main__":
    sys.exit(main())
