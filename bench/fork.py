"""How long a live fork takes: medians of the source's pause, of `usable` and `first_frame`, beside CRIU and a fresh start.

    python bench/fork.py [--quick] [--runs N] [--only TEXT]… [--json FILE]

docs/reference/benchmarks.md says what each figure means. Needs root. Exit status: 0 all measured, 1 something was not, 2 bad usage,
9 cannot run here, 130 interrupted; in every case nothing is left running.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
# Run as a program, the first entry is bench/ itself, whose modules are not top-level ones.
if __name__ == "__main__":
    sys.path[0] = str(REPO)

from bench import criu as rival  # noqa: E402
from bench import machine, programs, report  # noqa: E402
from bench.contenders import Fork  # noqa: E402
from bench.interrupts import EXIT_STATUS, interruptible  # noqa: E402
from bench.leftovers import Leftovers  # noqa: E402
from bench.own_engine import OwnEngine  # noqa: E402
from bench.rounds import Bench, Measured  # noqa: E402
from bench.workload import FULL, QUICK, Workload, choose  # noqa: E402
from engine.errors import BadRequest, EngineError, Internal, Unavailable  # noqa: E402
from tests.leaks import become_subreaper  # noqa: E402

_RUNS, _QUICK_RUNS = 10, 3
_DEFAULT_CACHE = "/var/cache/tclone"


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/fork.py", description="Measure live forks beside CRIU and a fresh start.")
    parser.add_argument("--runs", type=int, metavar="N", help=f"counted rounds of each workload (default {_RUNS}, quick {_QUICK_RUNS})")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller workloads: a check that it works, not a result")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="only workloads with TEXT in their name; repeatable")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure there")
    parser.add_argument(
        "--cache", type=Path, default=Path(os.environ.get("TCLONE_CACHE", _DEFAULT_CACHE)), metavar="DIRECTORY",
        help="image archives (default TCLONE_CACHE, else %(default)s); an image that is not there is built, which takes minutes",
    )  # fmt: skip
    options = parser.parse_args(argv)
    if options.runs is not None and not 1 <= options.runs <= 1000:
        parser.error("--runs must be from 1 to 1000")
    if options.json is not None and not options.json.absolute().parent.is_dir():
        parser.error(f"--json: {options.json.absolute().parent} is not a directory")
    return options


def _say(text: str) -> None:
    """Progress, on stderr: stdout holds the report alone."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


class _Run:
    """One run of the program: what it has found out so far."""

    def __init__(self, options: argparse.Namespace, workloads: list[Workload]) -> None:
        self.options = options
        self.workloads = workloads
        self.runs = options.runs or (_QUICK_RUNS if options.quick else _RUNS)
        self.measured: list[Measured] = []
        self.finished = False
        self.head: dict[str, Any] = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "options": {"runs": self.runs, "quick": options.quick, "only": options.only},
            "machine": machine.facts(),
            "load_average": {"before": machine.load_average(), "after": []},
        }

    async def go(self, directory: Path) -> None:
        """Build, warm up, measure everything. Raises EngineError when nothing can be measured at all."""
        load, contain = programs.build("load", directory), programs.build("contain", directory)
        await self._touch(load)
        criu = await self._rival(contain, load)
        async with OwnEngine(directory, self.options.cache.absolute()) as engine:
            bench = Bench(engine, load, contain, criu, self.runs, _say)
            for workload in self.workloads:
                await bench.measure(workload, self.measured)
        self.finished = True

    async def _touch(self, load: Path) -> None:
        """The second pass tells how warm the first one made it."""
        size = machine.touch_size()
        _say(f"touching {size >> 20} MiB of memory and giving it back")
        passes = [await machine.touch(load, size) for _ in range(2)]
        self.head["memory_touched"] = {"bytes": size, "gigabytes_per_second": [round(size / 1e6 / ms, 2) for ms in passes]}

    async def _rival(self, contain: Path, load: Path) -> Path | None:
        found = rival.find()
        if found is None:
            self.head["criu"] = {"path": None, "version": None, "works": False, "reason": "none on PATH"}
            return None
        failure = await rival.probe(found, contain, load)
        version = await rival.version(found)
        self.head["criu"] = {"path": str(found), "version": version, "works": failure is None, "reason": failure}
        return found if failure is None else None

    def text(self) -> str:
        """The report on stdout."""
        criu = self.head.get("criu", {"path": None, "reason": "not looked for"})
        lines = [*report.machine_lines(self.head["machine"])]
        lines.append("load average before " + report.load_text(self.head["load_average"]["before"])
                     + ", after " + report.load_text(self.head["load_average"]["after"]))  # fmt: skip
        if touched := self.head.get("memory_touched"):
            first, second = touched["gigabytes_per_second"]
            lines.append(
                f"memory: {touched['bytes'] >> 20} MiB were touched and freed before anything was measured ({first} GB/s, then {second}"
                " GB/s), and as much as it needs before each measurement"
            )
        if criu.get("works"):
            lines.append(f"criu {criu['version']} ({criu['path']})")
        else:
            lines.append(f"criu: not compared: {criu['reason']}")
        if not self.finished:
            lines.append("INCOMPLETE: the run ended early")
        return "\n".join(lines) + "\n\n" + report.text(self.measured)

    def to_json(self) -> dict[str, Any]:
        return report.to_json(self.measured, {**self.head, "complete": self.finished})

    def status(self) -> int:
        """1 when a fork or a rival failed, or a workload was never reached."""
        if not self.finished or any(series.error for line in self.measured for series in line.series.values()):
            return Internal.exit_status
        return 0 if all(line.runs(Fork.name) for line in self.measured) else Internal.exit_status


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; the exit status."""
    options = _arguments(argv)
    if os.geteuid() != 0:
        print("bench: needs root: it makes namespaces, mounts and control groups", file=sys.stderr)
        return Unavailable.exit_status
    try:
        workloads = choose(QUICK if options.quick else FULL, options.only)
    except BadRequest as error:
        print(f"bench: {error.message}", file=sys.stderr)
        return error.exit_status
    become_subreaper()
    directory = Path(tempfile.mkdtemp(prefix="tclone-bench-", dir="/var/tmp"))
    leftovers = Leftovers(directory)
    leftovers.start()
    run = _Run(options, workloads)
    status = 0
    try:
        if not asyncio.run(interruptible(run.go(directory))):
            status = EXIT_STATUS
    except EngineError as error:
        print(f"bench: {error.message}", file=sys.stderr)
        status = error.exit_status
    run.head["load_average"]["after"] = machine.load_average()
    left, held = leftovers.check()
    run.head["leftovers"], run.head["held_by_others"] = left, held
    print(run.text())
    if options.json is not None:
        report.write_json(options.json, run.to_json())
    for line in held:
        _say(f"still there: {line}")
    if left:
        print("bench: left behind (see " + str(directory) + "):\n  " + "\n  ".join(left), file=sys.stderr)
        return status or Internal.exit_status
    shutil.rmtree(directory, ignore_errors=True)
    return status or run.status()


if __name__ == "__main__":
    sys.exit(main())
