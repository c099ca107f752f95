"""How much an agent that tries before it decides gains by forks: ten tasks, branching before every step, beside fresh containers in which all is done again.

    python bench/osworld.py                       all tasks, 3 branches a step, and the rival
    python bench/osworld.py --only form --branches 2
    AGENT_MODEL_URL=… AGENT_MODEL_NAME=… python bench/osworld.py --no-rival      a model instead of the script
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import aiohttp

# Run as a program, the first entry is bench/ itself, whose modules are not top-level ones.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench import criu as rival  # noqa: E402
from bench import machine, programs, report  # noqa: E402
from bench.agent_loop import Outcome, Policy, Scripted, run  # noqa: E402
from bench.agent_model import Model  # noqa: E402
from bench.agent_tasks import GROUPS, choose  # noqa: E402
from bench.agent_ways import Forking, Replaying, Way  # noqa: E402
from bench.interrupts import EXIT_STATUS, interruptible  # noqa: E402
from bench.leftovers import Leftovers  # noqa: E402
from bench.model_endpoint import Endpoint  # noqa: E402
from bench.own_engine import OwnEngine  # noqa: E402
from bench.workload import MEGABYTE, Workload  # noqa: E402
from engine.config import Config  # noqa: E402
from engine.errors import EngineError, Internal, Unavailable  # noqa: E402
from tests.leaks import become_subreaper  # noqa: E402

_IMAGE = "webtop-xfce"


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--branches", type=int, default=3, help="how many branches act at each step, 2 to 8 (3)")
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="tasks with this in their name or group")
    parser.add_argument("--no-rival", action="store_true", help="without the fresh containers, which take most of the time")
    parser.add_argument("--pictures", type=Path, metavar="DIRECTORY", help="keep what each branch showed after each step; takes time, so the seconds in all are no result")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--cache", type=Path, default=Config.from_environment().cache, help="image archives (%(default)s)")
    parsed = parser.parse_args(argv)
    if not 2 <= parsed.branches <= 8:
        parser.error("--branches: 2 to 8")
    if not choose(parsed.only):
        parser.error("--only: no task has that in its name or group")
    return parsed


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


async def measure(engine: OwnEngine, options: argparse.Namespace, policy: Policy, with_rival: bool, outcomes: list[Outcome]) -> None:
    """Each task by each way, one after the other; each outcome is there as soon as it is known."""
    for task in choose(options.only):
        ways: list[Way] = [Forking(engine.client), *([Replaying(engine.client)] if with_rival else [])]
        for way in ways:
            outcome = await run(task, way, policy, options.branches, options.pictures)
            _say(f"{task.name}, {way.name}: {'done' if outcome.done else outcome.error or 'not done'} in {outcome.total:.1f} s")
            outcomes.append(outcome)


async def criu_seconds(directory: Path, branches: int, processes: int, memory: int) -> tuple[float | None, str]:
    """Seconds that CRIU takes to make so many copies of a load as large as the desktop, and which CRIU that is; None and why not."""
    found = rival.find()
    if found is None:
        return None, "none on PATH"
    load, contain = programs.build("load", directory), programs.build("contain", directory)
    failure = await rival.probe(found, contain, load)
    if failure is not None:
        return None, failure
    try:
        async with rival.Criu(found, contain, load, Workload("desktop's size", processes=processes, dirty=memory)) as contender:
            return (await contender.measure(branches))["usable"] / 1000, f"criu {await rival.version(found)}"
    except EngineError as error:
        return None, error.message


def text(outcomes: list[Outcome], branches: int, criu: tuple[float | None, str]) -> str:
    """The report: each task, then what forking saves."""
    lines = [f"{'task':<40}{'way':<18}{'done':<6}{'total s':>9}{'branching s':>13}{'a step s':>10}{'memory MB':>11}"]
    for one in outcomes:
        a_step = f"{statistics.median(one.branching):.2f}" if one.branching else "-"
        memory = f"{one.memory // MEGABYTE}" if one.memory else "-"
        lines.append(f"{one.task:<40}{one.way:<18}{'yes' if one.done else 'NO':<6}{one.total:>9.1f}{sum(one.branching):>13.2f}{a_step:>10}{memory:>11}")
        if one.error:
            lines.append(f"    {one.error}")
    by_way = {name: [one for one in outcomes if one.way == name and one.done] for name in (Forking.name, Replaying.name)}
    ours = by_way[Forking.name]
    if not ours:
        return "\n".join([*lines, "", "no task was done by forks"])
    steps = [seconds for one in ours for seconds in one.branching]
    lines += ["", f"forks: {branches} branches in {statistics.median(steps):.2f} s (median of {len(steps)} steps, {min(steps):.2f}-{max(steps):.2f})"]
    pairs = [(one, other) for one in ours for other in by_way[Replaying.name] if one.task == other.task]
    if pairs:
        whole = statistics.median(other.total / one.total for one, other in pairs)
        branching = statistics.median(sum(other.branching) / sum(one.branching) for one, other in pairs)
        memory = statistics.median(other.memory / one.memory for one, other in pairs if one.memory)
        lines.append(f"fresh and replay, against forks: tasks take {whole:.1f} times as long, making branches {branching:.1f} times, memory is {memory:.1f} times as much (medians of {len(pairs)} tasks)")
    seconds, which = criu
    if seconds is None:
        lines.append(f"criu: not compared: {which}")
    else:
        lines.append(f"{which}: {branches} copies of a load of the desktop's size in {seconds:.2f} s, {seconds / statistics.median(steps):.1f} times a step's forks")
    return "\n".join(lines)


class _Run:
    """What there is to report so far."""

    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self.outcomes: list[Outcome] = []
        self.criu: tuple[float | None, str] = (None, "the run ended early")
        self._options = options
        self._directory = directory

    async def go(self) -> None:
        options, endpoint = self._options, Endpoint.of_environment()
        async with contextlib.AsyncExitStack() as stack:
            engine = await stack.enter_async_context(OwnEngine(self._directory, options.cache.absolute()))
            async for _ in engine.client.build(_IMAGE):
                pass
            policy: Policy = Scripted()
            if endpoint is not None:
                policy = Model(endpoint, await stack.enter_async_context(aiohttp.ClientSession()))
            # What a model did once it would do otherwise the next time: nothing to be done again.
            await measure(engine, options, policy, not options.no_rival and endpoint is None, self.outcomes)
            size = await _size(engine)
        self.criu = await criu_seconds(self._directory, options.branches, *size)


async def _size(engine: OwnEngine) -> tuple[int, int]:
    """Processes and bytes of a desktop of its own."""
    made = await engine.client.launch(_IMAGE, wait=True)
    stats = await engine.client.stats(made["id"])
    await engine.client.remove(made["id"])
    return int(stats["processes"]), int(stats["unique_bytes"])


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark; the exit status: 1 when a task was not done, 130 when interrupted (what was measured is told)."""
    options = _arguments(argv)
    if os.geteuid() != 0:
        print("bench: needs root: it makes namespaces, mounts and control groups", file=sys.stderr)
        return Unavailable.exit_status
    become_subreaper()
    directory = Path(tempfile.mkdtemp(prefix="tclone-bench-", dir="/var/tmp"))
    leftovers = Leftovers(directory)
    leftovers.start()
    before = machine.load_average()
    bench, status = _Run(options, directory), 0
    try:
        if not asyncio.run(interruptible(bench.go())):
            status = EXIT_STATUS
    except EngineError as error:
        print(f"bench: {error.message}", file=sys.stderr)
        status = error.exit_status
    facts, load = machine.facts(), {"before": before, "after": machine.load_average()}
    print("\n".join(report.machine_lines(facts)))
    print(f"load average before {report.load_text(load['before'])}, after {report.load_text(load['after'])}\n")
    print(text(bench.outcomes, options.branches, bench.criu))
    if options.json is not None:
        outcomes = [one.public() for one in bench.outcomes]
        report.write_json(options.json, {"machine": facts, "load_average": load, "groups": GROUPS, "branches": options.branches, "outcomes": outcomes, "criu": bench.criu})
    left, held = leftovers.check()
    for line in held:
        _say(f"still there: {line}")
    if left:
        print("bench: left behind (see " + str(directory) + "):\n  " + "\n  ".join(left), file=sys.stderr)
        return status or Internal.exit_status
    shutil.rmtree(directory, ignore_errors=True)
    return status or (0 if all(one.done for one in bench.outcomes) else 1)


if __name__ == "__main__":
    sys.exit(main())
