"""The native program's look at running processes: every blocker by name, whatever the processes call themselves. On processes of the host."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import syscalls
from tests.engine import guest
from tests.engine.support import NATIVE

REFUSED = {
    "io_uring": "io_uring switched off",
    "bpf": "end the program that loaded it",
    "perf": "profiler",
    "userfaultfd": "paging",
    "fuse": "unmount",
    "landlock": "closed it",
    "seccomp_listener": "supervising",
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return guest.build("refused", tmp_path_factory.mktemp("guest"))


def _own_network() -> None:
    """Whatever interfaces the host has, a workspace does not see them."""
    syscalls.unshare(syscalls.CLONE_NEWNET)


@contextlib.contextmanager
def running(*argv: str | bytes | Path) -> Iterator[tuple[int, dict[str, int]]]:
    """A process and what it printed before `done`: its name for each thing it holds, and the number."""
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=_own_network) as process:
        try:
            held = {}
            assert process.stdout is not None
            for line in process.stdout:
                if line == "done\n":
                    break
                name, number = line.split()
                held[name] = int(number)
            yield process.pid, held
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def check(pid: int) -> dict[str, Any]:
    """What is found, but for the host's own file systems, which no workspace sees."""
    done = subprocess.run([NATIVE / "tclone-livefork", "check", "--source", str(pid)], capture_output=True, check=True)
    found = json.loads(done.stdout)
    found["blockers"] = [blocker for blocker in found["blockers"] if "sees a file system" not in blocker["message"]]
    return found


def test_nothing_is_found_in_an_ordinary_program(refused: Path) -> None:
    with running(refused) as (pid, _):
        assert check(pid) == {"blockers": [], "blockers_omitted": 0, "warnings": [], "warnings_omitted": 0, "processes": 1}


def test_every_blocker_is_named_with_its_descriptor_and_remedy(refused: Path) -> None:
    with running(refused, *REFUSED) as (pid, held):
        made = {name: fd for name, fd in held.items() if fd >= 0}
        assert {"io_uring", "perf", "userfaultfd", "seccomp_listener"} <= set(made), f"this machine makes only {held}"
        found = {blocker["fd"]: blocker for blocker in check(pid)["blockers"]}
        assert set(found) == set(made.values())
        for name, fd in made.items():
            blocker = found[fd]
            assert REFUSED[name] in blocker["remedy"] and blocker["message"].endswith("; " + blocker["remedy"])
            assert f"(fd {fd})" in blocker["message"] and (blocker["pid"], blocker["command"]) == (pid, "refused")


@pytest.mark.parametrize("name", [b"a) R 1 (b", b"two\nlines", b"\x1b[2Jx", b'"; {}', b"\xff\xfe", "naïve".encode()])
def test_a_process_may_call_itself_anything(refused: Path, name: bytes) -> None:
    with running(refused, b"name=" + name, "io_uring") as (pid, held):
        (blocker,) = check(pid)["blockers"]
    assert blocker["fd"] == held["io_uring"] and blocker["remedy"].startswith("start it with io_uring")
    assert blocker["command"].isprintable() and blocker["message"].isprintable()
    if name == "naïve".encode():
        assert blocker["command"] == "naïve"


def test_children_of_threads_and_traced_programs_are_seen(refused: Path) -> None:
    with running(refused, "traced_by_thread") as (pid, held):
        found = check(pid)
    (blocker,) = found["blockers"]
    assert found["processes"] == 2
    assert (blocker["pid"], blocker["command"], blocker["fd"]) == (held["traced_by_thread"], "traced", None)
    assert "debugger" in blocker["message"] and "detach" in blocker["remedy"]


def test_a_32_bit_program(tmp_path: Path) -> None:
    source = tmp_path / "small.c"
    source.write_text('void _start(void) { for (;;) __asm__ volatile("int $0x80" :: "a"(29)); }')
    subprocess.run(["gcc", "-m32", "-nostdlib", "-static", "-o", tmp_path / "small", source], check=True)
    with subprocess.Popen([tmp_path / "small"], preexec_fn=_own_network) as process:
        try:
            (blocker,) = check(process.pid)["blockers"]
        finally:
            process.kill()
    assert "32-bit" in blocker["message"] and "64-bit" in blocker["remedy"] and blocker["command"] == "small"


def test_a_program_that_runs_from_outside_the_root(refused: Path, tmp_path: Path) -> None:
    script = 'mount -t tmpfs none "$1" && cp "$2" "$1/helper" && { "$1/helper" > /dev/null & sleep 0.5; umount -l "$1"; echo done; wait; }'
    with running("unshare", "--mount", "sh", "-c", script, "sh", tmp_path, refused) as (pid, _):
        messages = [blocker["message"] for blocker in check(pid)["blockers"]]
    assert any("(helper) runs" in message and "outside the workspace's root" in message for message in messages), messages


def test_a_flood_of_blockers_is_cut_and_counted(refused: Path) -> None:
    with running("sh", "-c", 'ulimit -n 4096; exec "$@"', "sh", refused, *["fuse"] * 1100) as (pid, held):
        found = check(pid)
    listed, omitted = len(found["blockers"]), found["blockers_omitted"]
    assert held["fuse"] > 1000 and 990 <= listed <= 1000 and 100 <= omitted < 120


def test_a_process_that_is_gone() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    done = subprocess.run([NATIVE / "tclone-livefork", "check", "--source", str(process.pid)], capture_output=True)
    assert done.returncode == 4 and b"ended" in done.stderr
