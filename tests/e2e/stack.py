"""A whole TClone of the tests' own: engine and portal as `tclone up` starts them, with their own directories and port."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import psutil

from engine.client import EngineClient, Workspace
from engine.config import Config
from tests.e2e.waiting import PATIENCE
from tests.leaks import LeakCounter, listening_ports
from tests.leaks import cgroups as all_cgroups
from tests.ports import free_port

Result = TypeVar("Result")

IMAGE = "webtop-xfce"
# A cold build of the image takes 5 minutes on a quiet machine.
_UP_SECONDS = 1500.0


class Stack:
    """`up()` first, `down()` last. Commands inside workspaces go through the engine's client, as those of the command line do."""

    def __init__(self, directory: Path) -> None:
        """`directory` must have a short path: Unix sockets lie below it."""
        base = Config.from_environment()
        self.config: Config = replace(base, data=directory / "data", run=directory / "run", portal_port=free_port())
        self.password = ""

    @property
    def origin(self) -> str:
        return f"https://tclone.localhost:{self.config.portal_port}"

    def desktop_origin(self, workspace: str) -> str:
        return f"https://{workspace}.tclone.localhost:{self.config.portal_port}"

    def up(self) -> None:
        """Start everything; the image is built when it is not in the cache."""
        words = self.tclone("up", "--detach", "--image", IMAGE, timeout=_UP_SECONDS)
        found = re.search(r"password\s+(\S+)", words)
        assert found, f"`tclone up` printed no password:\n{words}"
        self.password = found.group(1)

    def down(self) -> None:
        self.tclone("down")

    def is_up(self) -> bool:
        """Between `up` and `down`, by whomever."""
        return (self.config.run / "supervisor.json").exists()

    def empty(self) -> None:
        """Remove every workspace, whatever state it is in."""
        left = [workspace["id"] for workspace in self.workspaces().values()]
        if left:
            self.tclone("rm", *left)

    def tclone(self, *argv: str, timeout: float = PATIENCE) -> str:
        """Standard output of the command line. Raises AssertionError with its errors when it fails."""
        done = subprocess.run(
            [sys.executable, "-m", "engine.cli.main", *argv],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, f"tclone {' '.join(argv)}: status {done.returncode}\n{done.stderr[-4000:]}"
        return done.stdout

    def _environment(self) -> dict[str, str]:
        config = self.config
        return {
            **os.environ,
            "TCLONE_DATA": str(config.data),
            "TCLONE_RUN": str(config.run),
            "TCLONE_PORTAL_PORT": str(config.portal_port),
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        }

    def fork(self, source: str, *options: str) -> dict[str, Any]:
        """Fork by the command line; the result of `--json`."""
        return json.loads(self.tclone("fork", source, "--json", *options))

    def workspaces(self) -> dict[str, Workspace]:
        """Every workspace by name."""

        async def ask(engine: EngineClient) -> list[Workspace]:
            return await engine.list()

        return {workspace["name"]: workspace for workspace in self._engine(ask)}

    def run(self, workspace: str, script: str, stdin: bytes = b"") -> tuple[int, str]:
        """Status and output of a shell script inside, as the desktop's user."""

        async def ask(engine: EngineClient) -> tuple[int, bytes, bytes]:
            return await engine.run(workspace, ["bash", "-c", script], user="user", cwd="/home/user", stdin=stdin)

        status, out, err = self._engine(ask)
        return status, (out + err).decode()

    def output(self, workspace: str, script: str, stdin: bytes = b"") -> str:
        """Output of a shell script that must succeed."""
        status, text = self.run(workspace, script, stdin)
        assert status == 0, f"{script!r} in {workspace}: status {status}\n{text}"
        return text

    def stop_repeats(self, workspace: str) -> None:
        """Let the X server repeat no key that is down for long because the machine is busy: now, and when the desktop's settings are applied once more,
        as it starts. (Selkies repeats by itself one that is down for over a second.)"""
        self.output(workspace, "xfconf-query -c keyboards -p /Default/KeyRepeat -s false && xset r off")

    def content(self, workspace: str, path: str) -> str | None:
        """A file inside; None when there is none."""
        status, text = self.run(workspace, f"cat {path}")
        return text if status == 0 else None

    def _engine(self, ask) -> Any:
        async def with_client() -> Any:
            async with EngineClient(self.config.socket) as engine:
                return await asyncio.wait_for(ask(engine), PATIENCE)

        return in_thread(with_client())

    def status(self, host: str, path: str, headers: dict[str, str] | None = None) -> int:
        """Status that the portal's port answers to a GET for this host name, without a browser. The certificate is verified."""
        trust = ssl.create_default_context(cafile=str(self.config.data / "portal" / "tls" / "ca.pem"))
        connection = http.client.HTTPSConnection("127.0.0.1", self.config.portal_port, timeout=PATIENCE, context=trust)
        try:
            connection.request("GET", path, headers={"Host": f"{host}:{self.config.portal_port}", **(headers or {})})
            return connection.getresponse().status
        finally:
            connection.close()

    def supervisor(self) -> psutil.Process:
        return psutil.Process(json.loads((self.config.run / "supervisor.json").read_text())["pid"])

    def engine_process(self) -> psutil.Process | None:
        """The engine daemon, or None while there is none."""
        for child in self.supervisor().children():
            try:
                if child.cmdline()[-1:] == ["engine"]:
                    return child
            except psutil.NoSuchProcess:
                continue
        return None

    def stream_health(self) -> dict[str, Any]:
        """What the stream process says of itself."""
        return json.loads(_get_unix(self.config.run / "portal" / "stream.sock", "/healthz"))


def in_thread(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end in another thread: Playwright's loop occupies this one."""
    outcome: list[Result] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(work))
        except BaseException as error:  # noqa: BLE001 - it is raised again below
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


def _get_unix(path: Path, target: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(path))
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: stream\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while block := connection.recv(65536):
            answer += block
    return answer.partition(b"\r\n\r\n")[2]


@dataclass(frozen=True)
class Footprint:
    """What the host holds of one workspace: taken while it is there, `left()` says what of it still is."""

    workspace: str
    processes: tuple[psutil.Process, ...]
    cgroups: tuple[Path, ...]
    paths: tuple[Path, ...]
    ports: tuple[int, ...]

    @classmethod
    def take(cls, stack: Stack, workspace: Workspace) -> "Footprint":
        identity = workspace["id"]
        # Groups of others come and go meanwhile, which Path.glob does not bear.
        named = (path for path in map(Path, sorted(all_cgroups())) if path.name == identity and path.parent.name.startswith("tclone-"))
        cgroups = tuple(path for path in named if _is_of(path, stack))
        pids = {int(pid) for path in cgroups for file in path.glob("**/cgroup.procs") for pid in file.read_text().split()}
        processes = tuple(psutil.Process(pid) for pid in sorted(pids))
        run, data = stack.config.run, stack.config.data
        paths = (run / "netns" / identity, run / "crun" / identity, data / "pool" / "workspaces" / identity)
        return cls(identity, processes, cgroups, paths, tuple(workspace["ports"].values()))

    def left(self) -> list[str]:
        """One line for each thing that is still there. (Its network namespace is held by a mount and by processes; the number of
        one that has gone is soon given to another.)"""
        found = [f"process {process.pid}" for process in self.processes if lives(process)]
        found += [str(path) for path in (*self.cgroups, *self.paths) if path.exists()]
        mounts = Path("/proc/self/mountinfo").read_text()
        found += [f"mount of {path}" for path in self.paths if f" {path} " in mounts]
        found += [f"port {port}" for port in self.ports if _listens(port)]
        return found


def _is_of(cgroup: Path, stack: Stack) -> bool:
    """Whether this cgroup is of this engine: others on this machine have workspaces of the same id."""
    counter = LeakCounter()
    counter.own_engine(stack.config.data, stack.config.run)
    return any(marker in str(cgroup) for marker in counter.markers)


def lives(process: psutil.Process) -> bool:
    """Whether a process is still there. Test runs are the subreaper of what they start, so its dead are theirs to bury."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE and process.ppid() == os.getpid():
            os.waitpid(process.pid, os.WNOHANG)
        return process.is_running()
    except (psutil.NoSuchProcess, ChildProcessError):
        return False


def _listens(port: int) -> bool:
    return port in listening_ports().values()
