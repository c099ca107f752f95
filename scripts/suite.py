"""Runs the tests twice over: what may run beside others, in several processes; then, alone, the tests marked so.

    python scripts/suite.py [TESTS...] [-- ARGUMENTS OF PYTEST...]

Both runs are made whatever comes of the first. The exit status is 0 when all passed, else that of the first run that did not. `-n N` among
the arguments changes the number of processes of the first run, `-n 0` makes it one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

# Each of them builds, compiles and drives browsers besides: more of them than this gain nothing and take memory.
_MOST_PROCESSES = 4
# Tests wait for about half of their time, for processes that start and for what must not happen: with one process for each
# processor, two processors were idle for 45 % of a run.
_PROCESSES_FOR_PROCESSOR = 1.5
# pytest's exit statuses.
_PASSED, _INTERRUPTED, _NOTHING_FOUND = 0, 2, 5
_WORDS = {_PASSED: "passed", 1: "FAILED", _INTERRUPTED: "interrupted", _NOTHING_FOUND: "has no tests"}


@dataclass(frozen=True)
class Run:
    """One pytest process, with those of the tests asked for that belong into it."""

    name: str
    options: tuple[str, ...]
    # Behind the caller's arguments, so that they stand against them.
    fixed: tuple[str, ...] = ()


def runs() -> tuple[Run, Run]:
    """Both runs for this machine. On a single processor the first has one process, too."""
    processes = min(int(len(os.sched_getaffinity(0)) * _PROCESSES_FOR_PROCESSOR), _MOST_PROCESSES)
    spread = ("-n", str(processes), "--no-loadscope-reorder") if processes > 1 else ()
    return Run("side by side", ("--alone=no", *spread)), Run("alone", ("--alone=only",), ("-n", "0"))


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """Tests and arguments of pytest: what stands before and behind `--`."""
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def total(statuses: list[int]) -> int:
    """The exit status of both: a run without tests is nothing wrong as long as the other one had some."""
    wrong = [status for status in statuses if status not in (_PASSED, _NOTHING_FOUND)]
    if wrong:
        return wrong[0]
    return _PASSED if _PASSED in statuses else _NOTHING_FOUND


def _environment() -> dict[str, str]:
    """That of the tests. Python keeps what it compiles in it, whatever is set: they start some thousand processes, each of which would compile anew."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _ended(words: list[str]) -> int:
    """The exit status of a program that SIGTERM for this process interrupts."""
    with subprocess.Popen(words, env=_environment(), preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler)) as process:
        signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGINT))
        try:
            return process.wait()
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _processors() -> tuple[int, int]:
    """Ticks since this machine began in which its processors worked, and all ticks."""
    with open("/proc/stat", encoding="ascii") as file:
        # user nice system idle iowait irq softirq steal; what guests take is part of user.
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def main(argv: list[str]) -> int:
    tests, arguments = split(argv)
    statuses: list[int] = []
    told: list[str] = []
    # Ctrl-C reaches pytest by itself, which then ends what its tests have started; an order to end is passed on to it as one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for run in runs():
        # The name is short: paths of Unix sockets begin with it.
        place = tempfile.mkdtemp(prefix="tclone-t-")
        words = [sys.executable, "-m", "pytest", *tests, "--fail-on-skip", "--times", "-ra", f"--basetemp={place}/t", *run.options, *arguments, *run.fixed]
        print(f"suite: {run.name}: {' '.join(words[1:])}", flush=True)
        began, before = time.monotonic(), _processors()
        status = _ended(words)
        statuses.append(status)
        worked, all_ticks = (after - ticks for after, ticks in zip(_processors(), before))
        line = f"suite: {run.name}: {_WORDS.get(status, f'ended with status {status}')} after {time.monotonic() - began:.0f} s"
        line += f", processors busy {100 * worked / max(1, all_ticks):.0f} %"
        if status in (_PASSED, _NOTHING_FOUND):
            shutil.rmtree(place, ignore_errors=True)
        else:
            line += f"; its files are in {place}"
        told.append(line)
        if status == _INTERRUPTED:
            break
    print("\n".join(told), flush=True)
    return total(statuses)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
