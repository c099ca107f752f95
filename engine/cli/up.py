"""`tclone up` and `tclone down`: the supervisor in the foreground or behind, and what the two tell the user."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine import syscalls
from engine.cgroups import parent_of
from engine.cli import host, images, notify, services, workspaces
from engine.cli.output import Progress, printable
from engine.cli.supervisor import StartFailure, Supervisor, tail, write_state
from engine.cli.weights import Standings
from engine.client import EngineClient
from engine.config import Config
from engine.errors import Conflict, EngineError, Internal, Unavailable

# The supervisor gives each service 15 s to stop; the engine is last.
_DOWN_SECONDS = 60.0
# Three services with 120 s each.
_START_SECONDS = 400.0
_POLL_SECONDS = 0.1
# What the tutorial begins with.
_FIRST_IMAGE = "webtop-xfce"


@dataclass(frozen=True)
class Running:
    """What the supervisor's state file says of it. `phase` is `starting <service>` or `ready`."""

    pid: int
    started: int
    port: int
    phase: str

    def open(self) -> int:
        """A pidfd of this very process, never of one that got its pid later. Raises ProcessLookupError."""
        descriptor = syscalls.pidfd_open(self.pid)
        try:
            if syscalls.start_time(self.pid) == self.started:
                return descriptor
        except OSError:
            pass
        os.close(descriptor)
        raise ProcessLookupError(self.pid)


def _state_path(config: Config) -> Path:
    return config.run / "supervisor.json"


def _lock(config: Config, kind: int) -> int:
    """A descriptor with the lock of these directories, which their supervisor holds exclusively; the kernel drops it when the holder
    dies. Raises BlockingIOError when another has it."""
    descriptor = os.open(config.run / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor


def running(config: Config) -> Running | None:
    """The supervisor that is running for these directories, or None. A state file left by a killed one counts as none."""
    if not config.run.is_dir():
        return None
    try:
        os.close(_lock(config, fcntl.LOCK_SH))
        return None
    except BlockingIOError:
        pass
    try:
        state = json.loads(_state_path(config).read_text())
        return Running(state["pid"], state["started"], state["port"], state["phase"])
    except (OSError, ValueError, KeyError):
        return None


@contextlib.contextmanager
def _only_one(config: Config) -> Iterator[None]:
    """Be the one supervisor of these directories. Raises Conflict."""
    # `running` holds the lock for an instant when it looks: try again before believing it.
    for attempt in range(20):
        try:
            descriptor = _lock(config, fcntl.LOCK_EX)
            break
        except BlockingIOError:
            if attempt == 19:
                raise Conflict(f"another `tclone up` is at work on {config.run}; `tclone down` stops it") from None
            time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _one_preparing(config: Config) -> Iterator[None]:
    """Wait until no other `tclone up` makes the portal's keys and account: two at once would spoil each other's."""
    descriptor = os.open(config.run / "prepare.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _report(line: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {printable(line)}", file=sys.stderr, flush=True)


def url(config: Config, port: int) -> str:
    """The portal's address for a browser."""
    return f"https://{config.portal_host}:{port}/"


async def supervise(config: Config, port: int, phase: Callable[[str], None], ready: Callable[[], Awaitable[None]]) -> signal.Signals:
    """Run the services until a signal arrives, stop them and return that signal. Raises StartFailure.

    `phase` is told what is being started, `ready` is called once everything answers. SIGINT (Ctrl-C) removes the workspaces first;
    SIGTERM, which `tclone down` and service managers send, leaves them running.
    """
    state = {"pid": os.getpid(), "started": syscalls.start_time(os.getpid()), "port": port}

    def note(name: str) -> None:
        write_state(_state_path(config), {**state, "phase": f"starting {name}"})
        notify.tell(STATUS=f"starting {name}")
        phase(f"starting {name}")

    standings = Standings(parent_of(config.run), services.STANDINGS)
    supervisor = Supervisor(services.all_services(config, port), _report, standings.give)
    try:
        with supervisor.signals():
            start = asyncio.create_task(supervisor.start(note))
            stop = asyncio.create_task(supervisor.wait())
            await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not start.done():
                start.cancel()
                await asyncio.gather(start, return_exceptions=True)
                return await stop
            try:
                await start
            except StartFailure:
                stop.cancel()
                raise
            write_state(_state_path(config), {**state, "phase": "ready"})
            notify.tell(READY=1, STATUS=f"at {url(config, port)}")
            number = await _until_signal(ready(), stop)
            if number == signal.SIGINT:
                await _remove_workspaces(config)
            return number
    finally:
        notify.tell(STOPPING=1)
        await supervisor.stop()
        standings.close()
        _state_path(config).unlink(missing_ok=True)


async def _until_signal(work: Coroutine[None, None, None], stop: "asyncio.Task[signal.Signals]") -> signal.Signals:
    """The signal; `work` is done meanwhile, and given up when the signal comes first."""
    task = asyncio.create_task(work)
    await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    else:
        try:
            await task
        except EngineError:
            stop.cancel()
            raise
    return await stop


async def _remove_workspaces(config: Config) -> None:
    """Remove every workspace, saying so; failures are told and leave the workspace to the next `tclone up`."""
    try:
        removed, failures = await workspaces.remove_all(config)
    except EngineError as failure:
        print(f"tclone: workspaces were not removed: {failure.message}", file=sys.stderr)
        return
    if removed:
        print(f"removed {len(removed)} workspace{'s' if len(removed) != 1 else ''}: {' '.join(removed)}", file=sys.stderr)
    for failure in failures:
        print(f"tclone: {printable(failure)}", file=sys.stderr)


class _Greeting:
    """What `tclone up` tells the user: address, certificate fingerprint and, the one time it is known, the first password, once."""

    def __init__(self, config: Config, port: int, password: str | None) -> None:
        self._config = config
        self._port = port
        self._password = password

    def show(self) -> None:
        """Everything, at once also to a reader behind a pipe: what comes after it may take minutes."""
        print(f"TClone is up at {url(self._config, self._port)}")
        authority = services.authority(self._config)
        print(f"  CA certificate  {authority.path}")
        print(f"  SHA-256         {authority.fingerprint}")
        self.show_password()

    def show_password(self) -> None:
        """The password unless it was shown already, or was never known."""
        if self._password is not None and notify.managed():
            # What is printed would stay in the manager's log.
            print("  password        not shown in a log: `tclone passwd` makes one (user admin)")
            self._password = None
        if self._password is not None:
            print(f"  password        {self._password}")
            print("                  (user admin; shown this once, `tclone passwd` makes another)")
            self._password = None
        sys.stdout.flush()

    def show_next(self, command: str) -> None:
        """The last line, once everything is there: where to go on. An image was built in between, maybe for minutes."""
        print(f"Ready: open {url(self._config, self._port)} in a browser (user admin), or go on with `{command}`", flush=True)


def up(config: Config, detach: bool, port: int | None, supervised: bool, image: str | None) -> int:
    """Start everything. Returns the exit status. Raises EngineError.

    `supervised` marks the process that a detached `up` starts behind itself: it says nothing on success. `image` is built when its
    recipe's image is missing, after the address and the password were told: a first build takes minutes, and the portal shows it.
    """
    host.require_root("up")
    port = port or config.portal_port
    present = running(config)
    if present is not None and not supervised:
        return _already(config, present, port, image)
    password = None
    if not supervised:
        account = host.ensure_user(config.portal_user)
        host.prepare_directories(config, account)
        with _one_preparing(config):
            present = running(config)
            if present is not None:
                return _already(config, present, port, image)
            host.require_free_port(port)
            password = services.first_start(config)
    greeting = _Greeting(config, port, password)
    try:
        if detach:
            _detach(config, port)
            greeting.show()
            greeting.show_next(asyncio.run(_next_step(config, image)))
        else:
            _stay(config, port, greeting, image, supervised)
    except EngineError:
        greeting.show_password()
        raise
    return 0


def _stay(config: Config, port: int, greeting: _Greeting, image: str | None, quiet: bool) -> None:
    """Be the supervisor until a signal. Raises Conflict, Unavailable."""
    with _only_one(config), Progress("tclone up", quiet=quiet) as progress:

        async def ready() -> None:
            progress.close()
            if not quiet:
                greeting.show()
                print("Ctrl-C stops TClone and removes its workspaces.", file=sys.stderr)
            if not quiet:
                greeting.show_next(await _next_step(config, image))

        try:
            asyncio.run(supervise(config, port, progress.phase, ready))
        except StartFailure as failure:
            raise Unavailable(str(failure)) from failure


async def _next_step(config: Config, image: str | None) -> str:
    """The command to go on with: `image` is built when it is missing, and run; without it one that is there. Raises EngineError when `image` cannot be had."""
    async with EngineClient(config.socket) as client:
        if image is not None:
            await images.build(client, image)
            return f"tclone run {image}"
        # It is a hint: what is up stays so without it.
        with contextlib.suppress(EngineError):
            # Desktops before others, the first one's recipe before other desktops.
            there = sorted(await client.images(), key=lambda one: (one["name"] != _FIRST_IMAGE, not one["desktop"], one["name"]))
            if there:
                return f"tclone run {printable(there[0]['name'])}"
    return f"tclone image build {_FIRST_IMAGE}"


def _already(config: Config, present: Running, port: int, image: str | None) -> int:
    if present.phase != "ready":
        _wait_ready(config, None)
    if present.port != port and port != config.portal_port:
        raise Conflict(f"TClone is already up on port {present.port} (pid {present.pid}); run `tclone down --keep` first to change the port")
    print(f"TClone is already up at {url(config, present.port)} (pid {present.pid})", flush=True)
    _Greeting(config, present.port, None).show_next(asyncio.run(_next_step(config, image)))
    return 0


def _detach(config: Config, port: int) -> None:
    """Start the supervisor in a session of its own and wait until it is ready. Raises Unavailable with its last words."""
    log_path = host.logs(config) / "supervisor.log"
    descriptor = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    since = os.fstat(descriptor).st_size
    try:
        process = subprocess.Popen(
            [*services.COMMAND, "up", "--supervised", "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd="/",
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    try:
        _wait_ready(config, process)
    except Unavailable:
        words = tail(log_path, lines=20, since=since).removeprefix("tclone: ")
        raise Unavailable(words or f"TClone did not start; see {host.logs(config)}") from None
    # It outlives us on purpose; without this the interpreter would warn of an abandoned child.
    process.returncode = 0


def _wait_ready(config: Config, process: "subprocess.Popen[bytes] | None") -> None:
    """Return when the supervisor of these directories is ready. Raises Unavailable when `process`, its start, ended instead."""
    deadline = time.monotonic() + _START_SECONDS
    with Progress("tclone up") as progress:
        while time.monotonic() < deadline:
            present = running(config)
            if present is not None and present.phase == "ready":
                return
            # When another `tclone up` was faster, ours has ended, and we wait for the other's.
            if process is not None and process.poll() is not None and present is None:
                raise Unavailable("the supervisor ended")
            if present is not None:
                progress.phase(present.phase)
            time.sleep(_POLL_SECONDS)
    raise Unavailable(f"TClone was not ready after {_START_SECONDS:.0f} s; see {host.logs(config)}")


def down(config: Config, keep: bool) -> int:
    """Stop everything; workspaces go too unless `keep`. Returns the exit status. Raises EngineError."""
    host.require_root("down")
    present = running(config)
    if present is None:
        print("TClone is not running")
        return 0
    if not keep:
        asyncio.run(_remove_workspaces(config))
    with contextlib.suppress(ProcessLookupError):
        _stop(config, present)
    print("TClone is down; its workspaces keep running until the next `tclone up`" if keep else "TClone is down")
    return 0


def _stop(config: Config, supervisor: Running) -> None:
    """End the supervisor and wait until it is gone. Raises ProcessLookupError when it was already."""
    descriptor = supervisor.open()
    try:
        syscalls.pidfd_send_signal(descriptor, signal.SIGTERM)
        with Progress("tclone down") as progress:
            deadline = time.monotonic() + _DOWN_SECONDS
            while not select.select([descriptor], [], [], _POLL_SECONDS)[0]:
                if time.monotonic() > deadline:
                    raise Internal(
                        f"the supervisor (pid {supervisor.pid}) did not stop within {_DOWN_SECONDS:.0f} s; see {host.logs(config)}"
                    )
                progress.phase("stopping")
    finally:
        os.close(descriptor)
