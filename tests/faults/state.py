"""Everything the host can see of a workspace's processes, as plain data that can be compared and hashed.

Kept out is what moves by itself (times, counters of use, what is left of a timer) and what the fork is known to leave: the
spare end of the vdso's last page, which becomes a private copy of the process.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import hashlib
import json
import os
import re
import socket
import struct
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_CHUNK = 1 << 20
_STAT_FIELDS = {"state": 0, "ppid": 1, "pgrp": 2, "session": 3, "tty": 4, "tpgid": 5, "priority": 15, "nice": 16, "threads": 17}
_STATUS_FIELDS = (
    "Name", "Umask", "State", "TracerPid", "Uid", "Gid", "Groups", "NSpid", "NSpgid", "NSsid", "SigPnd", "ShdPnd", "SigBlk",
    "SigIgn", "SigCgt", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters", "Cpus_allowed",
)  # fmt: skip
_PROCESS_FILES = ("cmdline", "limits", "oom_score_adj", "loginuid", "personality", "coredump_filter", "timers", "uid_map", "cgroup")
# What programs ask for with mlock and madvise, as smaps shows it.
_ADVICE = {"lo", "lf", "dc", "dd", "wf", "mg", "hg", "nh", "rr", "sr"}
_SOCKET_OPTIONS = {
    "reuse": (socket.SOL_SOCKET, socket.SO_REUSEADDR), "keep": (socket.SOL_SOCKET, socket.SO_KEEPALIVE), "send": (socket.SOL_SOCKET, socket.SO_SNDBUF),
    "receive": (socket.SOL_SOCKET, socket.SO_RCVBUF), "credentials": (socket.SOL_SOCKET, socket.SO_PASSCRED),
    "no delay": (socket.IPPROTO_TCP, socket.TCP_NODELAY), "hops": (socket.IPPROTO_IP, socket.IP_TTL),
}  # fmt: skip
_PIDFD_GETFD, _IOPRIO_GET, _F_GETOWN_EX, _F_GETSIG, _F_GETPIPE_SZ = 438, 252, 16, 11, 1032
_libc = ctypes.CDLL(None, use_errno=True)
# Mappings whose pages are the kernel's own, or (the vdso) written to by the fork in a place nobody uses.
_KERNEL_MAPS = ("[vvar]", "[vvar_vclock]", "[vdso]", "[vsyscall]")
_LARGE_FILE = 0o100000
# poll, nanosleep, restart_syscall, clock_nanosleep
_SLEEPS = ("7", "35", "219", "230")


def processes(pid: int) -> list[int]:
    """A workspace's processes (host pids): `pid` and all below it."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += [int(child) for child in task.read_text().split()]
            except OSError:
                continue
    return found


def _stat(path: Path) -> dict[str, str]:
    fields = path.read_bytes().rpartition(b") ")[2].decode().split()
    return {name: fields[at] for name, at in _STAT_FIELDS.items()}


def _status(path: Path) -> dict[str, str]:
    lines = (line.partition(":\t") for line in path.read_text(errors="surrogateescape").splitlines())
    return {key: value for key, _, value in lines if key in _STATUS_FIELDS}


def _thread(path: Path) -> dict[str, Any]:
    """A thread's own state, with where it waits: the system call, its arguments, its stack and its next instruction.

    A sleep that was interrupted goes on under another number (restart_syscall), whose arguments mean nothing; a stopped job is at its call, or
    behind it.
    """
    waits = (path / "syscall").read_text().split()
    if waits[0].isdigit():
        waits = waits[7:] if waits[0] in _SLEEPS else waits
    if _stat(path / "stat")["state"] in "Tt":
        waits = waits[-2:-1]
    tid = int(path.name)
    scheduling = [os.sched_getscheduler(tid), _libc.syscall(_IOPRIO_GET, 1, tid), (path.parent.parent.parent / path.name / "timerslack_ns").read_text()]
    return {"stat": _stat(path / "stat"), "status": _status(path / "status"), "waits": waits, "scheduling": scheduling}


def _inside(pidfd: int, number: int) -> list[str]:
    """What a descriptor holds and how it is set, asked by a duplicate of it: unread bytes, options of sockets, owner and signal, a pipe's room."""
    fd = _libc.syscall(_PIDFD_GETFD, pidfd, number, 0)
    if fd < 0:
        raise OSError(ctypes.get_errno(), f"descriptor {number} cannot be looked at")
    answers = {}
    try:
        for name, ask in _questions(fd):
            try:
                answers[name] = ask()
            except OSError:
                continue
    finally:
        os.close(fd)
    return [f"{name}: {answer}" for name, answer in answers.items()]


def _questions(fd: int) -> Iterator[tuple[str, Any]]:
    def unread() -> int:
        count = array.array("i", [0])
        fcntl.ioctl(fd, termios.FIONREAD, count)
        return count[0]

    def option(place: tuple[int, int]) -> int:
        with socket.socket(fileno=os.dup(fd)) as copy:
            return copy.getsockopt(*place)

    yield "unread", unread
    yield "room", lambda: fcntl.fcntl(fd, _F_GETPIPE_SZ)
    yield "owner", lambda: struct.unpack("ii", fcntl.fcntl(fd, _F_GETOWN_EX, bytes(8)))[1] != 0
    yield "signal", lambda: fcntl.fcntl(fd, _F_GETSIG)
    if os.fstat(fd).st_mode & 0o170000 == 0o140000:
        for name, place in _SOCKET_OPTIONS.items():
            yield name, lambda place=place: option(place)


def _descriptors(path: Path) -> dict[str, Any]:
    found = {}
    pidfd = os.pidfd_open(int(path.name))
    for entry in sorted(path.glob("fd/*"), key=lambda entry: int(entry.name)):
        lines = (path / "fdinfo" / entry.name).read_text(errors="surrogateescape").splitlines()
        kept = [line for line in lines if not line.startswith(("it_value:", "ticks:"))]
        found[entry.name] = [os.readlink(entry), *kept, *_inside(pidfd, int(entry.name))]
    os.close(pidfd)
    return found


class Content(bytes):
    """What lies in a mapping. Two are compared as they are, a tenth of what hashing them would take; only who is told of them sees a hash."""

    def __str__(self) -> str:
        return hashlib.blake2b(self, digest_size=16).hexdigest()


def _read_range(memory: int, start: int, end: int) -> Content:
    blocks = []
    at = start
    while at < end:
        block = os.pread(memory, min(_CHUNK, end - at), at)
        if not block:
            break
        blocks.append(block)
        at += len(block)
    return Content(b"".join(blocks))


def _advice(path: Path) -> dict[str, str]:
    """Of each mapping what was asked for with mlock and madvise, by where it begins."""
    found, start = {}, ""
    for line in (path / "smaps").read_text(errors="surrogateescape").splitlines():
        if line.startswith("VmFlags:"):
            found[start] = " ".join(sorted(_ADVICE & set(line.split()[1:])))
        elif re.match("[0-9a-f]+-", line):
            start = line.partition("-")[0]
    return found


def _maps(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each mapping, what was asked for it, and its content; that of reserved ranges, which nobody can read, is left out."""
    advice = _advice(path)
    memory = os.open(path / "mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for line in (path / "maps").read_text(errors="surrogateescape").splitlines():
            match = re.match(r"([0-9a-f]+)-([0-9a-f]+) (....) (\S+ \S+ \S+)\s*(.*)", line)
            assert match, line
            start, end = int(match[1], 16), int(match[2], 16)
            known: dict[str, Any] = {}
            if match[3][:3] != "---" and match[5] not in _KERNEL_MAPS:
                known = {"content": _read_range(memory, start, end), "advice": advice[match[1]]}
            yield f"{match[1]}-{match[2]} {match[3]} {match[4]} {match[5]}", known
    finally:
        os.close(memory)


def _process(pid: int) -> dict[str, Any]:
    path = Path(f"/proc/{pid}")
    threads = {task.name: _thread(task) for task in sorted(path.glob("task/*"))}
    if str(pid) not in threads:
        raise ProcessLookupError(f"process {pid} has ended")
    state: dict[str, Any] = {"threads": threads}
    if threads[str(pid)]["stat"]["state"] == "Z":
        return state
    state |= {name: (path / name).read_text(errors="surrogateescape") for name in _PROCESS_FILES}
    state |= {name: os.readlink(path / name) for name in ("cwd", "root", "exe")}
    state["namespaces"] = {entry.name: os.readlink(entry) for entry in sorted(path.glob("ns/*"))}
    state["descriptors"] = _descriptors(path)
    state["maps"] = dict(_maps(path))
    return state


def state_of(pid: int) -> dict[str, Any]:
    """The state of the workspace whose first process is `pid`, by host pid. Raises OSError when a process ends meanwhile."""
    return {str(each): _process(each) for each in processes(pid)}


def digest(state: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(state, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """Where two states differ, one line each."""
    if isinstance(before, dict) and isinstance(after, dict):
        lines = []
        for key in sorted({*before, *after}):
            where = f"{path}/{key}"
            if key not in before:
                lines.append(f"{where}: new: {str(after[key])[:200]}")
            elif key not in after:
                lines.append(f"{where}: gone, was {str(before[key])[:200]}")
            else:
                lines += differences(before[key], after[key], where)
        return lines
    return [] if before == after else [f"{path}: {str(before)[:200]} -> {str(after)[:200]}"]


def portable(state: dict[str, Any]) -> dict[str, Any]:
    """The state with what must differ between a source and its branch taken out: host pids, inode and device numbers, namespaces, cgroups."""
    inner = {pid: each["threads"][pid]["status"]["NSpid"].split()[-1] for pid, each in state.items()}
    return {inner[pid]: _portable_process(each, inner) for pid, each in state.items()}


def _portable_process(process: dict[str, Any], inner: dict[str, str]) -> dict[str, Any]:
    if "maps" not in process:
        return {"zombie": True}
    kept = {name: value for name, value in process.items() if name not in ("threads", "namespaces", "cgroup", "timers", "maps", "descriptors")}
    kept["threads"] = {
        thread["status"]["NSpid"].split()[-1]: {
            "status": {name: value.split()[-1:] if name.startswith("NS") else value for name, value in thread["status"].items()},
            "stat": {name: value for name, value in thread["stat"].items() if name in ("state", "priority", "nice", "threads")},
            "waits": thread["waits"][-2:],
            "scheduling": thread["scheduling"],
        }
        for thread in process["threads"].values()
    }
    kept["maps"] = {_portable_map(name): content for name, content in process["maps"].items()}
    kept["descriptors"] = {fd: _portable_descriptor(lines) for fd, lines in process["descriptors"].items()}
    return kept


def _portable_map(line: str) -> str:
    """Anonymous shared memory has another name in a branch: it is made of a memfd there."""
    fields = line.replace("/memfd:/dev/zero (deleted)", "/dev/zero (deleted)").split(None, 5)
    return " ".join([*fields[:3], *fields[5:]])


_PORTABLE_LINES = ("pos:", "flags:", "eventfd-count:", "sigmask:", "clockid:", "unread:", "room:", "owner:", "signal:", *(f"{name}:" for name in _SOCKET_OPTIONS))


def _portable_descriptor(lines: list[str]) -> list[str]:
    """Its target, position, flags and content; O_LARGEFILE, which a pipe in a branch has and no program asks for, is left out."""
    kept = [line for line in lines[1:] if line.startswith(_PORTABLE_LINES)]
    kept = [f"flags: {int(line.split()[1], 8) & ~_LARGE_FILE:o}" if line.startswith("flags:") else line for line in kept]
    target = re.sub(r":\[\d+\]", "", lines[0])
    # The name of a file that has none any more is what can be missing after a fault (fd N is there under a spare name).
    return ["(deleted)" if target.endswith(" (deleted)") else target, *kept]
