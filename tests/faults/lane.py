"""Fault injection: a workspace that stands still is forked again and again, each time with one fault, and must be the same afterwards.

    python -m tests.faults.lane [--seconds N] [--seed N] [--jobs N] [--exhaustive [--calls FIRST-LAST[:STEP]]] [--only KIND]...

Faults (`KINDS`): livefork killed at a phase (`phase`), its working child at its n-th system call (`kill`), the process that waits for it at
the n-th of both (`first`); the n-th call of both failing (`errno`); the branch killed at a phase (`branch`); the n-th call of the branch's
restorer, or of a process it makes, failing (`restore`).
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults import state
from tests.fidelity.harness import Harness, own_mount_namespace
from tests.fidelity.livefork import SILENT, Container, ForkError, ForkResult

PHASES = ("preflight", "frozen", "captured", "copying", "resumed", "rebuilt", "usable")
# However short the time: both kinds of fault at each phase, and a few system calls.
FEWEST = 2 * len(PHASES) + 6
KINDS = ("phase", "branch", "kill", "first", "errno", "restore")
ERRORS = (errno.ENOMEM, errno.EMFILE, errno.ENOSPC, errno.EPERM, errno.ESRCH, errno.EIO)
_SOURCES = Path(__file__).resolve().parent / "programs"
_READY_SECONDS = 20.0
# A batch that lost its tracer sleeps for 5 s before it finds back by itself.
_NOT_STARTED = 127      # the call that failed was one by which the kernel or the loader start livefork, and the loader told why
_SETTLE_SECONDS = 12.0
# rseq and futex: the C library ends a program to which the kernel answers what it never does, by SIGABRT and with a line on stderr.
_ENDED_BY_LIBC = (334, 202)
# sendmsg: what a packet filter says to a datagram, which is lost then as datagrams may be (native/src/tolerances.c).
_REAL_ANSWERS = ((46, errno.EPERM),)
# Without rseq, into which the kernel writes whenever a thread moves to another core.
_ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}


@dataclass(frozen=True)
class Fault:
    """One fault: its kind, and the phase or the count and errno (0: kill) that say where; `number`: only this system call counts."""

    kind: str
    phase: str = ""
    count: int = 0
    error: int = 0
    number: int = -1

    def __str__(self) -> str:
        where = self.phase or f"call {self.count}" + (f" of number {self.number}" if self.number >= 0 else "")
        return f"{self.kind} at {where}" + (f" with {errno.errorcode[self.error]}" if self.error else "")


@dataclass
class Outcome:
    """What came of a fault: how the fork ended, and what is wrong (nothing, if all is well)."""

    fault: Fault
    ended: str
    wrong: list[str] = field(default_factory=list)


def build(directory: Path) -> None:
    """Compile the two programs. Raises CalledProcessError with the compiler's message on stderr."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("still", "inject"):
        flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-static", "-pthread"]
        subprocess.run(["gcc", *flags, "-o", str(directory / name), str(_SOURCES / f"{name}.c")], check=True)


class Lane:
    """A still workspace, and forks of it with faults."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.programs = directory / "programs"
        self.harness = Harness(directory / "harness")
        self.source: Container
        self.before: dict = {}
        self.totals: dict[str, int] = {}

    async def __aenter__(self) -> "Lane":
        build(self.programs)
        await self.harness.__aenter__()
        try:
            await self._begin()
        except BaseException:
            await self.harness.__aexit__(*sys.exc_info())
            raise
        return self

    async def _begin(self) -> None:
        """Start the workspace, and count what there is to be hit."""
        image = self.harness.import_root(None, [self.programs / "still"])
        self.source = await self.harness.launch(image, ["/fidelity/still"], _ENVIRONMENT)
        deadline = time.monotonic() + _READY_SECONDS
        while self.source.read("/tmp/still.ready") is None:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the workspace is not ready: {self.source.read('/var/log/tclone/console.log')}")
            await asyncio.sleep(0.05)
        self.before = state.state_of(self.source.pid)
        self.leftovers = self._host()
        for kind in ("errno", "kill", "restore"):
            self.totals[kind] = await self._count(kind)
        self.totals["first"] = self.totals["errno"]

    async def __aexit__(self, *error: object) -> None:
        await self.harness.__aexit__(*error)

    # What must be as before

    def _host(self) -> dict[str, object]:
        """What a fork could leave behind on the host, of this lane's own."""
        group = f"tclone-harness-{os.getpid()}"
        return {
            "containers": sorted(container.id for container in self.harness.containers),
            "cgroups": sorted(str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{group}/*") if path.is_dir()),
            "mounts": Path("/proc/self/mountinfo").read_text().count(str(self.directory)),
            "layers": sorted(path.name for path in (self.harness.storage.pool / "workspaces").iterdir()),
            "descriptors": len(os.listdir("/proc/self/fd")),
            "processes": sorted(pid for pid in self._candidates(group) if self._ours(pid, group)),
        }

    @staticmethod
    def _candidates(group: str) -> set[str]:
        """Those who are in a cgroup of this lane, and children of this process: far fewer than a busy host's processes."""
        found: set[str] = set()
        lists = [path for tree in Path("/sys/fs/cgroup").glob(f"*/{group}") for path in tree.rglob("cgroup.procs")]
        for path in [*lists, *Path("/proc/self/task").glob("*/children")]:
            try:
                found.update(path.read_text().split())
            except OSError:
                continue
        return found

    @staticmethod
    def _ours(pid: str, group: str) -> bool:
        """Is it in a cgroup of this lane, or a native program that this process started?"""
        try:
            status, parent = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:2]
            # What has ended and waits for the host's first process is nothing that is left; the v2 tree goes on naming its group.
            if status in (b"Z", b"X"):
                return False
            if group in Path(f"/proc/{pid}/cgroup").read_text():
                return True
            return int(parent) == os.getpid() and Path(os.readlink(f"/proc/{pid}/exe")).name in ("tclone-livefork", "inject")
        except OSError:
            return False

    async def _settled(self) -> list[str]:
        """Wait until source and host are as before; what still differs at the end of the time."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            try:
                wrong = [f"source{line}" for line in state.differences(self.before, state.state_of(self.source.pid))]
            except OSError as error:
                wrong = [f"source: {error}"]
            wrong += [f"host{line}" for line in state.differences(self.leftovers, self._host())]
            if not wrong or time.monotonic() > deadline:
                return wrong
            await asyncio.sleep(0.1)

    # Forks

    async def _count(self, kind: str) -> int:
        """How many system calls there are to be hit, from a fork without a fault."""
        result, report = await self._fork(Fault(kind))
        if isinstance(result, ForkError) and kind != "restore":
            raise result
        if isinstance(result, ForkResult):
            await self._remove(result)
        wrong = await self._settled()
        if wrong:
            raise RuntimeError("a fork without a fault changed something: " + "; ".join(wrong))
        return int(report.split()[1])

    async def _remove(self, result: ForkResult) -> None:
        for branch in result.branches:
            await self.harness.remove(branch)

    async def _fork(self, fault: Fault) -> tuple[ForkResult | ForkError, str]:
        report = self.directory / "report"
        report.unlink(missing_ok=True)
        what = "worker" if fault.kind == "kill" else str(fault.error) if fault.error else "first"
        what += f"@{fault.number}" if fault.number >= 0 else ""
        inject = [str(self.programs / "inject"), str(report), what, str(fault.count)]
        attached: list[subprocess.Popen] = []
        options: dict = {}
        if fault.kind == "kill" and fault.count:
            options["kill_at"] = f"call:{fault.count}"
        elif fault.kind in ("kill", "first", "errno"):
            options["launcher"] = [*inject, "run"]
        elif fault.kind == "restore":
            options["when_staged"] = lambda branches: attached.append(_attach(inject, branches[0]))
        else:
            options["stop_at"] = fault.phase
            if fault.kind == "branch":
                options["when_stopped"] = _kill_branches
        try:
            result: ForkResult | ForkError = await self.harness.fork(self.source, 1, **options)
        except ForkError as error:
            result = error
        except TimeoutError:
            result = ForkError(SILENT, "it hung", 0)
        for process in attached:
            process.terminate()
            process.wait(20)
        return result, report.read_text() if report.exists() else ""

    async def attempt(self, fault: Fault) -> Outcome:
        """Fork with the fault, then compare."""
        result, report = await self._fork(fault)
        number = int(report.split()[1]) if report.startswith("hit") else -1
        wrong = []
        if isinstance(result, ForkResult):
            ended = "done" if not result.branch_errors else f"branch failed: {result.branch_errors}"
            if not result.branch_errors and fault.kind != "branch" and (number, fault.error) not in _REAL_ANSWERS:
                wrong += await self._compare_branch(result.branches[0])
            await self._remove(result)
        else:
            ended = str(result)
            wrong += _bad_end(fault, result, number)
        if number >= 0:
            ended += f" [system call {number}]"
        wrong += await self._settled()
        return Outcome(fault, ended, wrong)

    async def _compare_branch(self, branch: Container) -> list[str]:
        """A fork that says it is done in spite of a fault must have made a whole branch."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            try:
                wrong = state.differences(state.portable(self.before), state.portable(state.state_of(branch.pid)))
            except OSError as error:
                wrong = [f": {error}"]
            if not wrong or time.monotonic() > deadline:
                return [f"branch{line}" for line in wrong]
            await asyncio.sleep(0.1)

    # Which faults

    def faults(self, generator: random.Random, kinds: tuple[str, ...], calls: range | None) -> Iterator[Fault]:
        """Every phase; then system calls: those of the range, or (None) one after the other at random without end."""
        for kind in ("phase", "branch"):
            if kind in kinds:
                yield from (Fault(kind, phase=phase) for phase in PHASES)
        counting = [kind for kind in ("kill", "first", "errno", "restore") if kind in kinds]
        if calls is not None:
            for kind in counting:
                for count in range(calls.start, min(calls.stop, self.totals[kind] + 1), calls.step):
                    yield Fault(kind, count=count, error=0 if kind in ("kill", "first") else generator.choice(ERRORS))
            return
        while counting:
            for kind in counting:
                yield Fault(kind, count=generator.randint(1, self.totals[kind]), error=0 if kind in ("kill", "first") else generator.choice(ERRORS))


def _attach(inject: list[str], branch: Container) -> subprocess.Popen:
    process = subprocess.Popen([*inject, "attach", str(branch.pid)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
    return process


def _kill_branches(livefork: int, branches: list[Container]) -> None:
    for branch in branches:
        os.kill(branch.pid, signal.SIGKILL)
    os.kill(livefork, signal.SIGCONT)


def _bad_end(fault: Fault, error: ForkError, number: int) -> list[str]:
    """An error must say what it is; only a livefork that is killed, or ended by its C library at the system call `number`, ends without a word."""
    if fault.kind in ("phase", "kill", "first"):
        return [] if error.status == -signal.SIGKILL else [f"it ended with {error}"]
    if error.status == _NOT_STARTED or (error.status == -signal.SIGABRT and number in _ENDED_BY_LIBC):
        return []
    if error.code == SILENT or not error.message:
        return [f"it ended without telling why: {error}"]
    return []


def parse_fault(text: str) -> Fault:
    """"kill:1101", "errno:517:28", "errno:1:28:308" (the first call of number 308), "phase:frozen"."""
    kind, place, *rest = text.split(":")
    if place.isdigit():
        error, number = ([int(word) for word in rest] + [0, -1][len(rest) :])[:2]
        return Fault(kind, count=int(place), error=error, number=number)
    return Fault(kind, phase=place)


def _calls(text: str) -> range:
    places, _, step = text.partition(":")
    first, _, last = places.partition("-")
    return range(int(first), int(last) + 1, int(step or 1))


def _share(text: str) -> tuple[int, int]:
    number, _, of = text.partition("/")
    return int(number), int(of)


async def run(
    directory: Path, seconds: float, seed: int, kinds: tuple[str, ...] = KINDS, calls: range | None = None, chosen: Sequence[Fault] = (),
    share: tuple[int, int] = (0, 1),
) -> dict:  # fmt: skip
    """Outcomes as plain data: {"seed", "totals", "tried", "last", "ended": {fault: how}, "wrong": [{"fault", "ended", "wrong"}]}.

    `share`: of several lanes side by side (number, how many) each takes every so many-th fault.
    """
    generator = random.Random(seed)
    outcomes: list[Outcome] = []
    async with Lane(directory) as lane:
        deadline = time.monotonic() + seconds
        for number, fault in enumerate(chosen or lane.faults(generator, kinds, calls)):
            if number % share[1] != share[0]:
                continue
            if calls is None and time.monotonic() > deadline and number >= FEWEST:
                break
            outcome = await lane.attempt(fault)
            outcomes.append(outcome)
            print(f"{fault}: {outcome.ended}" + "".join(f"\n    WRONG {line}" for line in outcome.wrong), file=sys.stderr, flush=True)
            if outcome.wrong:
                lane.before = state.state_of(lane.source.pid)       # what comes next is judged by itself
                lane.leftovers = lane._host()
        last = await lane.attempt(Fault("errno"))
        outcomes.append(last)
        totals = lane.totals
    wrong = [{"fault": str(each.fault), "ended": each.ended, "wrong": each.wrong} for each in outcomes if each.wrong]
    ended = {str(each.fault): each.ended for each in outcomes}
    return {"seed": seed, "totals": totals, "tried": len(outcomes), "last": last.ended, "ended": ended, "wrong": wrong}


def _side_by_side(jobs: int, arguments: Sequence[str], seed: int) -> int:
    """Several lanes, each with a workspace of its own and its share of the faults; their reports become one."""
    argv = [sys.executable, "-m", "tests.faults.lane", *arguments, "--seed", str(seed), "--jobs", "1"]
    lanes = [subprocess.Popen([*argv, "--share", f"{number}/{jobs}"], stdout=subprocess.PIPE, text=True) for number in range(jobs)]
    try:
        said = [lane.communicate()[0].splitlines() for lane in lanes]
    except BaseException:
        for lane in lanes:
            lane.send_signal(signal.SIGINT)
            lane.wait()
        raise
    reports = [json.loads(lines[-1]) for lines in said if lines]
    whole = len(reports) == jobs and all(lane.returncode in (0, 1) for lane in lanes)
    report = {
        "seed": seed, "totals": [each["totals"] for each in reports], "tried": sum(each["tried"] - 1 for each in reports) + 1,
        "last": "done" if whole and all(each["last"] == "done" for each in reports) else "a lane of several did not come to its end",
        "ended": {fault: how for each in reports for fault, how in each["ended"].items()},
        "wrong": [wrong for each in reports for wrong in each["wrong"]],
    }  # fmt: skip
    print(json.dumps(report))
    return 1 if report["wrong"] or report["last"] != "done" else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.lane")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--exhaustive", action="store_true", help="every system call once, however long it takes")
    every = range(1, sys.maxsize)
    parser.add_argument("--calls", type=_calls, default=every, metavar="FIRST-LAST[:STEP]", help="with --exhaustive: of each kind these alone")
    parser.add_argument("--fault", action="append", metavar="KIND:COUNT[:ERRNO[:NUMBER]]", help="these alone")
    parser.add_argument("--only", action="append", choices=KINDS)
    parser.add_argument("--jobs", type=int, default=1, help="so many lanes side by side, each with a workspace of its own")
    parser.add_argument("--share", type=_share, default=(0, 1), metavar="NUMBER/OF", help="of several lanes: this one's faults alone")
    arguments = parser.parse_args()
    if arguments.jobs > 1:
        return _side_by_side(arguments.jobs, sys.argv[1:], arguments.seed)
    own_mount_namespace()
    directory = Path(tempfile.mkdtemp(prefix="tclone-faults-"))
    try:
        report = asyncio.run(
            run(directory, arguments.seconds, arguments.seed, tuple(arguments.only or KINDS), arguments.calls if arguments.exhaustive else None,
                [parse_fault(text) for text in arguments.fault or []], arguments.share)
        )  # fmt: skip
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(json.dumps(report))
    return 1 if report["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
