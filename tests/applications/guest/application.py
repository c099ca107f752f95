"""What the programs in this folder share. Each has three verbs, run inside a workspace:

    start          bring the application into a state worth keeping, and return while it runs
    check SIDE     on one side of a fork: the state is there and the application goes on; then leave SIDE's own mark in it
    verify SIDE    after every side was checked: only SIDE's own mark is there

A verb that fails says why and exits with 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

HOME = Path("/tmp/application")
# Seconds anything may take on a machine that is busy with other tests.
PATIENCE = 150.0


class Failed(Exception):
    """The state is not what it should be."""


def expect(condition: object, words: str) -> None:
    """Raise Failed unless the condition holds."""
    if not condition:
        raise Failed(words)


def wait_for(what: str, probe: Callable[[], object], seconds: float = PATIENCE):
    """The first true value of `probe`, asked again and again; an error in it counts as "not yet". Raises Failed."""
    deadline = time.monotonic() + seconds
    while True:
        last: object = "nothing"
        try:
            value = probe()
            if value:
                return value
        except Exception as error:  # noqa: BLE001 - an application that is still starting refuses in many ways
            last = error
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {seconds:.0f} s; last: {last!r}")
        time.sleep(0.1)


def background(name: str, *argv: str, **environment: str) -> int:
    """Start a program in a session of its own with its output in HOME/NAME.log; its pid."""
    HOME.mkdir(exist_ok=True)
    with open(HOME / f"{name}.log", "ab") as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=HOME, env={**os.environ, **environment}
        )
    (HOME / f"{name}.pid").write_text(str(process.pid))
    return process.pid


def alive(name: str) -> bool:
    """Does the program that `background` started still run?"""
    pid = int((HOME / f"{name}.pid").read_text())
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state not in "ZX"


def log(name: str) -> str:
    """What the program wrote so far."""
    return (HOME / f"{name}.log").read_text(errors="replace")


def output(*argv: str, stdin: str = "", seconds: float = PATIENCE, **environment: str) -> str:
    """Standard output of a command that must succeed. Raises Failed."""
    try:
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, timeout=seconds, check=False, env={**os.environ, **environment}
        )
    except subprocess.TimeoutExpired as late:
        raise Failed(f"{argv} {stdin[-300:]!r}: not within {seconds:.0f} s; said {late.stdout!r} {late.stderr!r}") from None
    expect(done.returncode == 0, f"{argv}: status {done.returncode}: {done.stdout[-500:]}{done.stderr[-1500:]}")
    return done.stdout


def get(url: str, data: bytes | None = None) -> str:
    """The body of an HTTP answer; a POST when there is data."""
    with urllib.request.urlopen(url, data=data, timeout=PATIENCE) as answer:
        return answer.read().decode()


def grows(what: str, read: Callable[[], int], by: int = 3) -> int:
    """The value of a counter after it went up by at least `by`. Raises Failed when it stands still."""
    first = read()
    wait_for(f"{what} goes on from {first}", lambda: read() >= first + by)
    return read()


def _last_words() -> str:
    """The end of what each program in the background has written."""
    return "".join(f"--- {path.name}\n{path.read_text(errors='replace')[-600:]}\n" for path in sorted(HOME.glob("*.log")))


def main(start: Callable[[], None], check: Callable[[str], None], verify: Callable[[str], None]) -> None:
    """Run the verb on the command line."""
    verbs = {"start": start, "check": check, "verify": verify}
    try:
        verbs[sys.argv[1]](*sys.argv[2:])
    except Failed as failure:
        sys.exit(f"{_last_words()}{sys.argv[1:]}: {failure}")
