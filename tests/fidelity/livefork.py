"""A client of tclone-livefork: starts it, answers its requests for root file systems, gathers what it reports."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.config import REPO
from engine.learnt import Learnt

NATIVE = Path(os.environ.get("TCLONE_LIBEXEC", REPO / "native" / "build"))
_FORK_SECONDS = 60.0
_PACKET = 1 << 16


# The code of a livefork that said none.
SILENT = "silent"


class ForkError(Exception):
    """livefork refused or failed. `code` is the protocol's, or `SILENT`; `status` the exit status (negative: a signal)."""

    def __init__(self, code: str, message: str, status: int) -> None:
        super().__init__(f"{code}: {message} (exit status {status})")
        self.code = code
        self.message = message
        self.status = status


@dataclass
class Container:
    """A running workspace. `pid` is its pid 1 on the host."""

    id: str
    pid: int
    layer: Path
    netns: int
    parent: str | None = None

    def inside(self, path: str) -> Path:
        """A path of the workspace as the host reaches it. Only for test programs that we trust."""
        return Path(f"/proc/{self.pid}/root{path}")

    def read(self, path: str) -> str | None:
        """Content of a file inside, None when it is not there. What a workspace wrote last outlives it in its layer."""
        for place in (self.inside(path), self.layer / "upper" / path.lstrip("/")):
            try:
                return place.read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
        return None

    def write(self, path: str, text: str) -> None:
        """Make a file inside appear at once with its whole content."""
        target = self.inside(path)
        partial = target.with_name(target.name + ".partial")
        partial.write_text(text)
        partial.rename(target)

    @property
    def alive(self) -> bool:
        try:
            return Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
        except OSError:
            return False


@dataclass
class ForkResult:
    """What livefork reported: the closing packet, each phase's milliseconds, the branches."""

    done: dict[str, Any]
    phases: dict[str, float]
    branches: list[Container]
    branch_errors: dict[str, str] = field(default_factory=dict)


class ForkRun:
    """One run of tclone-livefork. `make_root` snapshots the source and returns the detached root mount of a branch."""

    def __init__(
        self,
        source: Container,
        staged: list[tuple[Container, socket.socket]],
        make_root: Callable[[Container], int],
        options: list[str],
        stop_at: str | None = None,
        verbose: bool = False,
        launcher: Sequence[str] = (),
        when_stopped: Callable[[int, list[Container]], None] | None = None,
        learnt: Learnt | None = None,
        kill_at: str | None = None,
    ) -> None:
        """`launcher` is put before livefork's command line. `when_stopped` gets livefork's pid once it has stopped itself at the phase
        `stop_at`, and the branches; without it livefork is killed there. `learnt`: what is told to livefork about the kernel.
        `kill_at`: the name of a moment at which the process that was started is killed by the child that works for it (native/src/shield.h); with
        "worker:" before it, the child itself is; "call:N": the child, at its n-th system call.
        """
        self.kill_at = kill_at
        self.learnt = learnt or Learnt()
        self.launcher = launcher
        self.when_stopped = when_stopped
        self.make_root = make_root
        self.verbose = verbose
        self.source = source
        self.staged = staged
        self.options = options
        self.stop_at = stop_at
        self.phases: dict[str, float] = {}
        self.branch_errors: dict[str, str] = {}

    def run(self) -> ForkResult:
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.settimeout(_FORK_SECONDS)
        with control:
            process = self._start(theirs)
            killer = self._arm_killer(process)
            try:
                last = self._converse(control)
            finally:
                status = self._end(process)
                if killer is not None:
                    killer.join()
                if status < 0:
                    self._tidy()
        if last is None or last["event"] != "done" or status != 0:
            last = last or {}
            raise ForkError(last.get("code", SILENT), last.get("message", "it ended without a word"), status)
        branches = [container for container, _ in self.staged]
        return ForkResult(last, self.phases, branches, self.branch_errors)

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        argv = [*self.launcher, str(NATIVE / "tclone-livefork"), "fork", "--source", str(self.source.pid), "--control", str(theirs.fileno())]
        argv += self.learnt.arguments
        passed = [theirs.fileno(), *self.learnt.fds]
        for container, sock in self.staged:
            argv += ["--branch", f"{container.id}:{sock.fileno()}:{container.pid}"]
            passed.append(sock.fileno())
        environment = dict(os.environ)
        if self.stop_at:
            environment["TCLONE_LIVEFORK_STOP_AT"] = self.stop_at
        if self.kill_at:
            environment["TCLONE_LIVEFORK_KILL_AT"] = self.kill_at
        with theirs:
            return subprocess.Popen([*argv, *self.options], pass_fds=passed, stdin=subprocess.DEVNULL, env=environment)

    def _arm_killer(self, process: subprocess.Popen[bytes]) -> threading.Thread | None:
        """Kill livefork, or do what was asked for, once it has stopped itself at the phase that was asked for."""
        if not self.stop_at:
            return None

        def wait_and_kill() -> None:
            deadline = time.monotonic() + _FORK_SECONDS
            while time.monotonic() < deadline and process.returncode is None:
                if _state_of(process.pid) == "T":
                    if self.when_stopped is None:
                        os.kill(process.pid, signal.SIGKILL)
                    else:
                        self.when_stopped(process.pid, [container for container, _ in self.staged])
                    return
                if _state_of(process.pid) in ("Z", ""):
                    return
                time.sleep(0.001)

        thread = threading.Thread(target=wait_and_kill)
        thread.start()
        return thread

    def _converse(self, control: socket.socket) -> dict[str, Any] | None:
        """Read packets until the last one; None when livefork ended before it."""
        while True:
            packet = _receive(control)
            if not packet:
                return None
            message = json.loads(packet)
            if self.verbose:
                print(f"  livefork: {packet.decode()}", file=sys.stderr)
            if message["event"] == "phase":
                self.phases[message["name"]] = message["ms"]
                if message["name"] == "frozen":
                    self._send_roots(control)
            elif message["event"] == "blocker":
                continue        # the error that follows has them all
            elif message["event"] == "branch":
                if message["error"]:
                    self.branch_errors[message["id"]] = message["error"]
            elif message["event"] != "blocker":  # each is in the error's text, too
                return message

    def _send_roots(self, control: socket.socket) -> None:
        for container, _ in self.staged:
            root = self.make_root(container)
            try:
                socket.send_fds(control, [json.dumps({"op": "root", "branch": container.id}).encode()], [root])
            except (BrokenPipeError, ConnectionResetError):
                return
            finally:
                os.close(root)

    def _tidy(self) -> None:
        """As the engine does when livefork was killed. A source that has ended meanwhile needs none."""
        argv = [str(NATIVE / "tclone-livefork"), "tidy", "--source", str(self.source.pid)]
        subprocess.run(argv, stdin=subprocess.DEVNULL, timeout=_FORK_SECONDS, check=False)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(_FORK_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def _receive(control: socket.socket) -> bytes:
    """One packet. A peer that ended with a packet of ours unread makes the next recv fail once; what it said is still queued."""
    try:
        return control.recv(_PACKET)
    except ConnectionResetError:
        return control.recv(_PACKET)


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return ""
