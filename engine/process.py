"""Commands run inside a workspace: pipes or a terminal, the exit status, and which host processes they are.

A terminal is allocated in the *workspace's* devpts: nothing inside ever holds a host terminal, which a fork could not
make again. The engine knows the sessions of each workspace, so that a fork can leave them out.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import termios
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine import bundle, runtime, syscalls
from engine.account import Account, find_account
from engine.errors import Conflict, Internal
from engine.runtime import Runtime
from engine.tools import Tools
from engine.waiting import readable, stopped, together
from engine.workspace import Workspace

_CONSOLE_SECONDS = 10.0
_KILL_SECONDS = 1.0
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127
_OUTPUT_LIMIT = 1 << 20
_BUFFER = 1 << 16


@dataclass(frozen=True)
class Command:
    """What to run. `cwd` None is the image's directory, or HOME for other users than root."""

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    user: str = "root"
    cwd: str | None = None
    tty: bool = False
    rows: int = 24
    cols: int = 80


class _OutputProtocol(asyncio.StreamReaderProtocol):
    """A terminal whose last user has gone reads as EIO. That is its end of file: as an error, a StreamReader would drop what
    it still holds."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(None)


class Session:
    """A running command. Read `stdout` and `stderr` (empty with a terminal) to their end, then await `wait()`."""

    def __init__(self, workspace: str, scratch: Path) -> None:
        self.workspace = workspace
        self.scratch = scratch
        self.stdout = asyncio.StreamReader(_BUFFER)
        self.stderr = asyncio.StreamReader(_BUFFER)
        self.stdin: asyncio.StreamWriter
        self.master: int | None = None
        self.message = ""  # why the command could not be started, known once `wait` returned
        self.on_end: Callable[[], None] = lambda: None
        self._transports: list[asyncio.BaseTransport] = []
        self.tty = False
        self._runner = 0
        self._runner_pidfd = -1
        self._ended: asyncio.Task[int] | None = None

    # Starting (used by Executor)

    def started(self, runner: int) -> None:
        """Note the pid of crun, which waits for the command and passes its status on."""
        self._runner = runner
        self._runner_pidfd = syscalls.pidfd_open(runner)
        self._ended = asyncio.ensure_future(self._reap())

    async def attach(self, stdin: int, stdout: int, stderr: int | None) -> None:
        """Connect the streams to our ends of the pipes or of the terminal (each a descriptor of its own)."""
        loop = asyncio.get_running_loop()
        for fd, stream in ((stdout, self.stdout), (stderr, self.stderr)):
            if fd is None:
                stream.feed_eof()
                continue
            protocol = _OutputProtocol(stream)
            transport, _ = await loop.connect_read_pipe(lambda made=protocol: made, os.fdopen(fd, "rb", 0))
            self._transports.append(transport)
        writing, flow = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(stdin, "wb", 0))
        self._transports.append(writing)
        self.stdin = asyncio.StreamWriter(writing, flow, None, loop)

    async def receive_master(self, listener: socket.socket) -> int:
        """The master end that crun sends; Internal when crun ends first."""
        assert self._ended is not None
        loop = asyncio.get_running_loop()
        accepting = asyncio.ensure_future(loop.sock_accept(listener))
        try:
            await asyncio.wait({accepting, self._ended}, timeout=_CONSOLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not accepting.done():
                raise Internal(f"no terminal in {self.workspace}: {self.failure() or 'crun did not send one'}")
            connection, _ = accepting.result()
        finally:
            await stopped(accepting)
        with connection:
            connection.setblocking(False)
            await readable(connection.fileno())
            _, fds, _, _ = socket.recv_fds(connection, 4096, 1)
        if not fds:
            raise Internal(f"no terminal in {self.workspace}: {self.failure()}")
        os.set_inheritable(fds[0], False)
        return fds[0]

    def failure(self) -> str:
        """What crun said, when it could not run the command."""
        return runtime.read_tail(self.scratch.with_suffix(".log"))

    def discard(self) -> None:
        """Take back a start that failed."""
        if self._ended is not None and not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._runner, signal.SIGKILL)
        else:
            self._close()

    # While it runs

    @property
    def pid(self) -> int | None:
        """Host pid of the command itself, None before it exists and after it ended."""
        if self._ended is None or self._ended.done():
            return None
        try:
            return int(self.scratch.with_suffix(".pid").read_text())
        except (OSError, ValueError):
            return None

    def resize(self, rows: int, cols: int) -> None:
        """Tell the terminal its new size; ignored without one."""
        if self.master is not None:
            with contextlib.suppress(OSError):
                fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def close_stdin(self) -> None:
        """End of input: closes the pipe, or types Ctrl-D into a terminal."""
        if self.master is not None:
            self.stdin.write(b"\x04")
        else:
            self.stdin.close()

    async def wait(self) -> int:
        """Exit status of the command: 128 + N for signal N, 127 not found, 126 not executable."""
        assert self._ended is not None
        return await asyncio.shield(self._ended)

    async def kill(self) -> None:
        """Hang up on the command, then kill it; returns when it has ended. Closes the streams."""
        assert self._ended is not None
        for number in (signal.SIGHUP, signal.SIGKILL):
            if self._ended.done():
                break
            # The pid is still the command's own: its parent, the runner, has not been reaped.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid or self._runner, number)
            await asyncio.wait({self._ended}, timeout=_KILL_SECONDS)
        if not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._runner, signal.SIGKILL)
        await self.wait()
        for transport in self._transports:
            transport.close()

    async def _reap(self) -> int:
        await readable(self._runner_pidfd)
        _, status = os.waitpid(self._runner, 0)
        code = os.waitstatus_to_exitcode(status)
        self.message = self.failure() if code != 0 else ""
        if self.message:
            code = _NOT_FOUND if "No such file" in self.message else _NOT_EXECUTABLE
        self._close()
        self.on_end()
        return 128 - code if code < 0 else code

    def _close(self) -> None:
        for suffix in (".json", ".pid", ".log"):
            self.scratch.with_suffix(suffix).unlink(missing_ok=True)
        if self._runner_pidfd >= 0:
            os.close(self._runner_pidfd)
            self._runner_pidfd = -1
        if self.master is not None:
            os.close(self.master)
            self.master = None


class Executor:
    """Starts commands in workspaces and knows the ones that run."""

    def __init__(self, runtime_: Runtime, tools: Tools, run: Path) -> None:
        self._runtime = runtime_
        self._tools = tools
        self._scratch = run / "exec"
        self._sessions: dict[str, set[Session]] = {}

    def open(self) -> None:
        self._scratch.mkdir(parents=True, exist_ok=True)
        for left in self._scratch.iterdir():
            left.unlink()

    def pids(self, workspace: str) -> list[int]:
        """Host pids of the commands under way in a workspace."""
        return [pid for session in self._sessions.get(workspace, ()) if (pid := session.pid) is not None]

    async def start(self, workspace: Workspace, command: Command) -> Session:
        """Start a command. Raises Conflict when the workspace does not run, BadRequest for an unknown user."""
        if not workspace.pid or not workspace.alive:
            raise Conflict(f"{workspace.id} is not running; it is {workspace.state.value}")
        workspace.require_awake("run a command in")
        account = await asyncio.to_thread(find_account, workspace, command.user)
        session = Session(workspace.id, self._scratch / uuid.uuid4().hex)
        # A workspace that an older engine launched has its init, too.
        waits = command.tty and workspace.tools_digest == self._tools.digest
        process = bundle.exec_process(
            bundle.in_terminal(command.argv) if waits else command.argv, _environment(workspace, command, account), _directory(workspace, command, account),
            account.uid, account.gid, account.groups, command.tty,
        )  # fmt: skip
        session.scratch.with_suffix(".json").write_text(json.dumps(process))
        try:
            if command.tty:
                await self._start_with_terminal(session, command)
            else:
                await self._start_with_pipes(session)
        except BaseException:
            session.discard()
            raise
        sessions = self._sessions.setdefault(workspace.id, set())
        sessions.add(session)
        session.on_end = lambda: self._forget(session)
        return session

    def _forget(self, session: Session) -> None:
        sessions = self._sessions.get(session.workspace, set())
        sessions.discard(session)
        if not sessions:
            self._sessions.pop(session.workspace, None)

    def _argv(self, session: Session, *options: str) -> list[str]:
        files = {suffix: str(session.scratch.with_suffix(suffix)) for suffix in (".json", ".pid", ".log")}
        return self._runtime.command_inside(
            session.workspace,
            "--log", f"file:{files['.log']}", "exec", "--process", files[".json"], "--pid-file", files[".pid"],
            *options, session.workspace,
        )  # fmt: skip

    async def _start_with_pipes(self, session: Session) -> None:
        ours, theirs = [], []
        try:
            for writes in (True, False, False):
                reading, writing = os.pipe2(os.O_CLOEXEC)
                ours.append(writing if writes else reading)
                theirs.append(reading if writes else writing)
            stdio = (theirs[0], theirs[1], theirs[2])
            argv = self._argv(session)
            session.started(await self._runtime.call(lambda: runtime.spawn(argv, stdio)))
        except BaseException:
            for fd in ours:
                os.close(fd)
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        await session.attach(*ours)

    async def _start_with_terminal(self, session: Session, command: Command) -> None:
        """crun makes the terminal inside and sends its master end to a socket named in the arguments."""
        path = session.scratch.with_suffix(".sock")
        directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            # Through the directory's descriptor: a socket address holds 107 bytes, a run directory may be longer.
            address = f"/proc/{os.getpid()}/fd/{directory}/{path.name}"
            listener.bind(address)
            listener.listen(1)
            argv = self._argv(session, "--console-socket", address)
            session.started(await self._runtime.call(lambda: runtime.spawn(argv)))
            master = await session.receive_master(listener)
        finally:
            listener.close()
            os.close(directory)
            path.unlink(missing_ok=True)
        session.master, session.tty = master, True
        session.resize(command.rows, command.cols)
        os.set_blocking(master, False)
        await session.attach(os.dup(master), os.dup(master), None)

    async def run(self, workspace: Workspace, command: Command, seconds: float) -> tuple[int, bytes, bytes]:
        """Run a command to its end without input; (status, stdout, stderr). Raises Internal at the time limit, and at once for more than a MiB of either."""
        session = await self.start(workspace, command)
        try:
            async with asyncio.timeout(seconds):
                session.close_stdin()
                out, err = await together(_read_all(session.stdout), _read_all(session.stderr))
                return await session.wait(), out, err
        except TimeoutError:
            raise Internal(f"{command.argv[0]} in {workspace.id} did not end within {seconds:g} s") from None
        except _TooMuch:
            raise Internal(f"{command.argv[0]} in {workspace.id} wrote more than {_OUTPUT_LIMIT >> 20} MiB") from None
        finally:
            await session.kill()

    async def kill_all(self, workspace: str) -> None:
        """End every command of a workspace that is being removed."""
        await asyncio.gather(*(session.kill() for session in list(self._sessions.get(workspace, ()))))


class _TooMuch(Exception):
    """A command wrote more than anybody wants of it."""


async def _read_all(stream: asyncio.StreamReader) -> bytes:
    """Read to the end. Raises _TooMuch for more than a MiB: a flood would be read until the time is up, to be thrown away."""
    kept = bytearray()
    while chunk := await stream.read(65536):
        kept += chunk
        if len(kept) > _OUTPUT_LIMIT:
            raise _TooMuch
    return bytes(kept)


def _environment(workspace: Workspace, command: Command, account: Account) -> dict[str, str]:
    """The workspace's own environment, who it is, for the desktop's user where its session is, the account's names, then what the caller gave."""
    env = {"PATH": bundle.DEFAULT_PATH, **workspace.env, **workspace.variables()}
    if account.desktop:
        # Not for root and others: what they leave in the user's runtime directory, the user could not write any more.
        env.update(workspace.session)
    env.update({"HOME": account.home, "USER": account.name, "LOGNAME": account.name})
    if command.tty:
        env.setdefault("TERM", "xterm-256color")
    return env | command.env


def _directory(workspace: Workspace, command: Command, account: Account) -> str:
    if command.cwd is not None:
        return command.cwd
    return workspace.workdir if account.uid == 0 else account.home
