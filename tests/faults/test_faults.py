"""The fault injection lane (lane.py): every phase, and as many system calls as fit into a budget of time.

`TCLONE_FAULTS_SECONDS` is that budget (default 20), `TCLONE_FAULTS_SEED` repeats a run, `TCLONE_FAULTS_EXHAUSTIVE=1` tries every system call
once, which takes hours.
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults import lane, state

pytestmark = [pytest.mark.root, pytest.mark.slow]

_SECONDS = float(os.environ.get("TCLONE_FAULTS_SECONDS", "20"))
_SEED = int(os.environ.get("TCLONE_FAULTS_SEED", str(random.SystemRandom().randrange(1 << 32))))
_EXHAUSTIVE = os.environ.get("TCLONE_FAULTS_EXHAUSTIVE") == "1"
_TIMEOUT = 24 * 3600 if _EXHAUSTIVE else _SECONDS + 240


# Calls whose failure once passed in silence, or ended the program before it could tell: links of namespaces (of a source that ends just then), the ways
# into namespaces and out of them; lists of descriptors; in a branch the positions of files.
_READLINK, _SETNS, _LSEEK, _LIST = 89, 308, 8, 217
_LOOKED_AT, _ENTERED, _SET, _LISTED = 8, 8, 4, range(52, 64, 3)
_PTRACE, _STOPPED = 101, range(140, 230, 12)


# Operations of a branch that may fail for a known reason, or once could in silence: lack of memory is none, and is told with process and object.
_TOLD = {
    f"restore:1:{errno.ENOMEM}:325": r"pid \d+ \(still\): memory lock",
    f"restore:1:{errno.ENOMEM}:251": r"pid \d+ \(still\): I/O priority",
    f"restore:1:{errno.ENOMEM}:314": r"pid \d+ \(.*\): scheduling",
    f"restore:1:{errno.ENOMEM}:54": r"pid \d+ \(still\) fd \d+: internet socket",
    f"restore:1:{errno.ENOMEM}:157": r"pid 1: bounding set",
    f"restore:1:{errno.ENOMEM}:1": "which pid is the next",
}
# Questions to the source: whoever cannot answer has not said no. Options of sockets, positions, names (of files, by handles, of sockets), links of
# namespaces, of descriptors and directories; what two processes share, whether two descriptors are one open file (kcmp). And to the branch's /dev
# (fstatat, in the middle of the look at it).
_ASKED = {55: (3, 9, 20), _LSEEK: (3, 4), 437: (2, 5), 303: (1, 2), 51: (2,), _READLINK: (3, 30, 90), 262: (280,), 312: (6, 48)}


def _report(*options: str) -> dict[str, Any]:
    """What the lane reports, with nothing wrong. It says on stderr how each fault ended."""
    argv = [sys.executable, "-m", "tests.faults.lane", *options]
    done = subprocess.run(
        argv, cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, timeout=_TIMEOUT, check=False, env=os.environ
    )
    assert done.returncode == 0, f"{' '.join(argv)}:\n{done.stderr[-8000:]}\n{done.stdout}"
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["wrong"] == []
    assert report["last"] == "done", "a fork without a fault no longer works"
    return report


@pytest.mark.timeout(_TIMEOUT + 30)
def test_source_is_as_before_whatever_fails() -> None:
    report = _report("--seconds", str(_SECONDS), "--seed", str(_SEED), *(["--exhaustive"] if _EXHAUSTIVE else []))
    assert report["tried"] > lane.FEWEST


@pytest.mark.timeout(_TIMEOUT + 30)
def test_what_was_once_not_told_is_told() -> None:
    faults = [f"errno:{count}:{errno.ESRCH}:{_READLINK}" for count in range(1, _LOOKED_AT + 1)]
    faults += [f"errno:{count}:{errno.ENOMEM}:{_SETNS}" for count in range(1, _ENTERED + 1)]
    faults += [f"errno:{count}:{errno.ENOMEM}:{_LIST}" for count in _LISTED]
    faults += [f"restore:{count}:{errno.ENOMEM}:{_LSEEK}" for count in range(1, _SET + 1)]
    # Threads of the source that are stopped, asked, stopped again and let go: one that was not stopped again went on in what was none of its own.
    faults += [f"errno:{count}:{errno.EIO}:{_PTRACE}" for count in _STOPPED]
    report = _report(*(f"--fault={fault}" for fault in faults))
    assert report["tried"] == len(faults) + 1


@pytest.mark.timeout(_TIMEOUT + 30)
def test_lack_of_memory_is_never_passed_over() -> None:
    asked = [f"errno:{count}:{errno.ENOMEM}:{number}" for number, counts in _ASKED.items() for count in counts]
    report = _report(*(f"--fault={fault}" for fault in [*_TOLD, *asked]))
    for fault, told in _TOLD.items():
        assert re.search(told, report["ended"][str(lane.parse_fault(fault))]), fault
    for fault in asked:
        assert "Cannot allocate memory" in report["ended"][str(lane.parse_fault(fault))], fault


def test_a_changed_process_is_noticed(tmp_path: Path) -> None:
    """The comparison itself: a byte of memory, a descriptor's position, a name."""
    program = (
        "import ctypes, os, sys\n"
        "block = ctypes.create_string_buffer(1 << 16)\n"
        f"fd = os.open({str(tmp_path / 'file')!r}, os.O_RDWR | os.O_CREAT)\n"
        "for line in sys.stdin:\n"
        "    if line == 'memory\\n': block[5] = b'x'\n"
        "    if line == 'position\\n': os.write(fd, b'abc')\n"
        "    if line == 'name\\n': ctypes.CDLL(None).prctl(15, b'other', 0, 0, 0)\n"
        "    print('done', flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        for change, where in (("memory", "/maps/"), ("position", "/descriptors/"), ("name", "/status/Name")):
            process.stdin.write("nothing\n")
            process.stdin.flush()
            process.stdout.readline()
            before = state.state_of(process.pid)
            process.stdin.write(change + "\n")
            process.stdin.flush()
            process.stdout.readline()
            differences = state.differences(before, state.state_of(process.pid))
            assert any(where in line for line in differences), differences
        process.stdin.close()
