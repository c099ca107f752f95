"""What the portal's byte relay costs and adds, beside other proxies measured in the same run.

    python bench/stream.py [--quick] [--runs N] [--only NAME]… [--json FILE] …

docs/reference/benchmarks.md says what each figure means. Exit status: 0 all measured, 1 something was not, 2 bad usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
# Run as a program, the first entry is bench/ itself, whose modules are not top-level ones.
if __name__ == "__main__":
    sys.path[0] = str(REPO)

from bench import machine, programs, report, stream_report  # noqa: E402
from bench.proxies import CONTENDERS, RELAY, Contender, Place, Running, free_port  # noqa: E402
from bench.stream_fork import beside_a_fork  # noqa: E402
from bench.viewers import Churn, Shape, realtime, settled, stream  # noqa: E402
from engine.config import Config  # noqa: E402
from engine.errors import EngineError, Internal  # noqa: E402
from portal.certificates import ensure  # noqa: E402
from portal.places import Places  # noqa: E402

_INTERRUPTED = 130
_MODES = ("plain", "tls")
DIRECT = "direct"


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="bench/stream.py", description="Measure the byte relay beside other proxies.")
    names = [contender.name for contender in CONTENDERS]
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="rounds; in each every proxy has its turn (default %(default)s)")
    parser.add_argument("--streams", type=int, default=50, metavar="N", help="viewers at once (default %(default)s)")
    parser.add_argument("--megabits", type=float, default=15.0, metavar="M", help="Mbit/s of each (default %(default)s)")
    parser.add_argument("--fps", type=int, default=60, metavar="N", help="frames a second of each (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="measured time of a turn (default %(default)s)")
    parser.add_argument("--mode", action="append", choices=_MODES, default=[], help="plain or tls; repeatable (default both)")
    parser.add_argument("--only", action="append", choices=names, default=[], help="only this proxy; repeatable (default all)")
    parser.add_argument("--stalled", type=int, default=5, metavar="N", help="viewers that never read, in the turn with such (default %(default)s)")
    parser.add_argument("--cycles", type=int, default=10_000, metavar="N", help="viewers that come and go (default %(default)s)")
    parser.add_argument("--skip", action="append", choices=("stalled", "churn", "fork"), default=[], help="leave this part out; repeatable")
    parser.add_argument("--quick", action="store_true", help="1 round of 2 s, 500 cycles, no fork: a check that it works, not a result")
    parser.add_argument("--realtime", action="store_true", help="go before all other work of this machine, where there is some; needs root")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure there")
    parser.add_argument(
        "--cache", type=Path, default=Path(os.environ.get("TCLONE_CACHE", "/var/cache/tclone")), metavar="DIRECTORY",
        help="image archives, for the fork (default TCLONE_CACHE, else %(default)s)",
    )  # fmt: skip
    options = parser.parse_args(argv)
    if options.quick:
        options.runs, options.seconds, options.cycles = 1, 2.0, 500
        options.skip = [*options.skip, "fork"]
    for name in ("runs", "streams", "fps", "stalled", "cycles"):
        if not 1 <= getattr(options, name) <= 100_000:
            parser.error(f"--{name} must be from 1 to 100000")
    if not 0.001 <= options.megabits * 1e6 / 8 / options.fps / 1e6 <= 1.0:
        parser.error("--megabits and --fps: a frame must have from 1 kB to 1 MB")
    if options.json is not None and not options.json.absolute().parent.is_dir():
        parser.error(f"--json: {options.json.absolute().parent} is not a directory")
    options.mode = options.mode or list(_MODES)
    return options


def _say(text: str) -> None:
    """Progress, on stderr: stdout holds the report alone."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


class Bench:
    """One run of the program and what it has found so far. `results[mode][name]` are the turns of a proxy."""

    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self.options = options
        self.directory = directory
        self.shape = Shape(
            streams=options.streams, bytes=int(options.megabits * 1e6 / 8 / options.fps), rate=options.fps, seconds=options.seconds,
            warm=min(2.0, options.seconds),
        )  # fmt: skip
        self.contenders = [contender for contender in CONTENDERS if not options.only or contender.name in options.only]
        self.results: dict[str, dict[str, list[dict[str, Any]]]] = {mode: {} for mode in options.mode}
        self.failures: dict[str, str] = {}
        self.stalled: list[dict[str, Any]] = []
        self.churn: dict[str, Any] = {}
        self.fork: dict[str, Any] = {}
        self.finished = False
        self._turns = 0

    async def go(self) -> None:
        """Measure everything; what one proxy fails at is told, not raised."""
        self._program = programs.build("wsload", self.directory, "ssl", "crypto", "pthread")
        self._tls = self._certificate()
        for number in range(self.options.runs):
            for mode in self.options.mode:
                _say(f"round {number + 1} of {self.options.runs}, {mode}: {DIRECT}")
                turn = await stream(self._program, self.shape, None, free_port(), self.directory)
                self.results[mode].setdefault(DIRECT, []).append({**turn, "load": machine.load_average()[0]})
                # Every other round goes backwards: who comes first finds another machine than who comes last.
                for contender in self.contenders if number % 2 == 0 else reversed(self.contenders):
                    _say(f"round {number + 1} of {self.options.runs}, {mode}: {contender.name}")
                    await self._guarded(f"{contender.name}, {mode}", self._turn(mode, contender))
        if "stalled" not in self.options.skip:
            await self._guarded("stalled viewers", self._stalled())
        if "churn" not in self.options.skip:
            await self._guarded("viewers that come and go", self._churn())
        if "fork" not in self.options.skip:
            await self._guarded("fork of a busy desktop", self._beside_fork())
        self.finished = True

    async def _guarded(self, name: str, work: Any) -> None:
        try:
            await work
        except EngineError as error:
            _say(f"{name}: {error.message}")
            self.failures.setdefault(name, error.message)

    def _certificate(self) -> Path:
        base = Config.from_environment()
        values = {name: getattr(base, name) for name in base.__dataclass_fields__}
        places = Places(Config(**{**values, "data": self.directory / "data", "run": self.directory / "run"}))
        ensure(places)
        return places.tls

    def _proxy(self, contender: Contender, tls: bool) -> Running:
        """A proxy of its own for each turn. The directory's name is short: a Unix socket's path has 107 bytes."""
        self._turns += 1
        directory = self.directory / str(self._turns)
        directory.mkdir(mode=0o700)
        return Running(contender, Place(free_port(), free_port(), directory, self._tls if tls else None))

    async def _turn(self, mode: str, contender: Contender) -> None:
        async with self._proxy(contender, mode == "tls") as proxy:
            turn = await stream(self._program, self.shape, proxy, proxy.place.desktop, self.directory)
            turn |= {"load": machine.load_average()[0], "resident": proxy.resident()}
        self.results[mode].setdefault(contender.name, []).append(turn)

    async def _stalled(self) -> None:
        """Pairs of turns of the relay: without stalled viewers and with some."""
        for number in range(self.options.runs):
            pair = {}
            for name, stalled in (("without", 0), ("with", self.options.stalled)):
                _say(f"stalled viewers, pair {number + 1} of {self.options.runs}: {name}")
                shape = Shape(**{**vars(self.shape), "stalled": stalled})
                async with self._proxy(RELAY, "tls" in self.options.mode) as proxy:
                    pair[name] = await stream(self._program, shape, proxy, proxy.place.desktop, self.directory)
            self.stalled.append(pair)

    async def _churn(self) -> None:
        """Memory and descriptors after a tenth of the cycles and after all of them."""
        _say(f"{self.options.cycles} viewers that come and go")
        async with self._proxy(RELAY, "tls" in self.options.mode) as proxy:
            churn = Churn(proxy)
            idle = proxy.descriptors()
            await churn.run(max(1, self.options.cycles // 10))
            before = {"descriptors": await settled(proxy, idle), "resident": proxy.resident()}
            await churn.run(self.options.cycles - self.options.cycles // 10)
            after = {"descriptors": await settled(proxy, before["descriptors"]), "resident": proxy.resident()}
            self.churn = {"cycles": churn.cycles, "idle_descriptors": idle, "before": before, "after": after}

    async def _beside_fork(self) -> None:
        if os.geteuid() != 0:
            raise Internal("needs root: it launches a desktop and forks it")
        _say("streams while a busy desktop is forked")
        async with self._proxy(RELAY, "tls" in self.options.mode) as proxy:
            cache = self.options.cache.absolute()
            self.fork = await beside_a_fork(self._program, self.shape, proxy, self.directory, cache, self.options.realtime, _say)

    def to_json(self, head: dict[str, Any]) -> dict[str, Any]:
        """The whole report."""
        return {
            **head, "complete": self.finished, "shape": vars(self.shape), "results": self.results,
            "ratios": stream_report.all_ratios(self.results), "stalled": self.stalled, "churn": self.churn, "fork": self.fork,
            "failures": self.failures,
        }  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; the exit status."""
    options = arguments(argv)
    with realtime(options.realtime):
        return _measure(options)


def _measure(options: argparse.Namespace) -> int:
    head = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine.facts(), "realtime": options.realtime,
        "load_average": {"before": machine.load_average()},
    }  # fmt: skip
    status = 0
    with tempfile.TemporaryDirectory(prefix="tcb-") as name:
        bench = Bench(options, Path(name))
        try:
            asyncio.run(bench.go())
        except EngineError as error:
            print(f"bench: {error.message}", file=sys.stderr)
            status = error.exit_status
        except KeyboardInterrupt:
            status = _INTERRUPTED
    head["load_average"]["after"] = machine.load_average()
    print("\n".join([*report.machine_lines(head["machine"]), "", stream_report.text(bench)]))
    if options.json is not None:
        report.write_json(options.json, bench.to_json(head))
    return status or (0 if bench.finished and not bench.failures else Internal.exit_status)


if __name__ == "__main__":
    sys.exit(main())
