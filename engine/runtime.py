"""crun: start, look at and delete containers.

crun runs from threads that have a mount namespace of their own. There a workspace's root, which is mounted nowhere on the
host, is attached at the bundle's rootfs for as long as crun needs a path; and on hosts with hybrid cgroups the v2 tree,
for which crun refuses to start, is out of sight. Such a thread costs nothing per call; a wrapper process would cost a
second exec (about 4 ms).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from engine import cgroups, syscalls
from engine.errors import Internal, NoSpace, Unavailable
from engine.threads import in_thread

T = TypeVar("T")

_THREADS = 6
_LOG_TAIL = 2000
CONTROL_FD = 3
# The shell enters the group and becomes the program: 0.7 ms, and no moment in which the program is outside.
_ENTER = 'echo 0 > "$1" && shift && exec "$@"'


def _own_mount_namespace() -> None:
    """Thread initialiser. Slave propagation: an unmount on the host must not be held up by the copy in here."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
    if cgroups.layout() == "hybrid":
        with contextlib.suppress(OSError):
            syscalls.umount(str(cgroups.HYBRID_V2), syscalls.MNT_DETACH)


class Runtime:
    """Containers of one engine; crun keeps their state below `<run>/crun`."""

    def __init__(self, run: Path, groups: cgroups.Cgroups | None = None) -> None:
        self.run_dir = run
        self._groups = groups
        self.state = run / "crun"
        self._threads: ThreadPoolExecutor | None = None
        self._crun = shutil.which("crun") or ""

    def open(self) -> None:
        """Raises Unavailable without crun. Call after the pool is mounted: the threads copy the host's mounts."""
        if not self._crun:
            raise Unavailable("crun is not installed; install the package `crun`")
        self.state.mkdir(parents=True, exist_ok=True)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="runtime", initializer=_own_mount_namespace)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()

    async def call(self, function: Callable[[], T]) -> T:
        """Run a blocking function in one of the threads with a private mount namespace; never abandoned (in_thread)."""
        return await in_thread(function, self._threads)

    def command(self, *arguments: str) -> list[str]:
        return [self._crun, "--root", str(self.state), "--cgroup-manager=cgroupfs", *arguments]

    def command_inside(self, container: str, *arguments: str) -> list[str]:
        """As `command`, for one that starts a process in the container: it begins in the container's group where crun places nobody."""
        entry = None if self._groups is None else self._groups.entry(container)
        enter = [] if entry is None else ["/bin/sh", "-c", _ENTER, "sh", str(entry)]
        return [*enter, *self.command(*arguments)]

    async def start(self, container: str, bundle: Path, root: int | None, control: int | None = None) -> int:
        """Start a container in the background and return the host pid of its pid 1.

        `root` is a detached mount to attach at bundle/rootfs (None: the bundle names an existing directory). `control`
        becomes descriptor 3 of the container's process. Raises NoSpace, Internal.
        """
        return await self.call(lambda: self._start(container, bundle, root, control))

    def _start(self, container: str, bundle: Path, root: int | None, control: int | None) -> int:
        mountpoint = bundle / "rootfs"
        log = bundle / "crun.log"
        pid_file = bundle / "pid"
        options = ["--preserve-fds", "1"] if control is not None else []
        argv = self.command_inside(
            container, "--log", f"file:{log}", "run", "--detach", "--bundle", str(bundle), "--pid-file", str(pid_file), *options, container
        )
        if root is not None:
            mountpoint.mkdir(exist_ok=True)
            syscalls.move_mount(root, str(mountpoint))
        try:
            status = spawn_and_wait(argv, control)
        finally:
            if root is not None:
                syscalls.umount(str(mountpoint), syscalls.MNT_DETACH)
        if status != 0:
            message = read_tail(log) or f"exit status {status}"
            self._delete(container)
            if "No space left" in message:
                raise NoSpace(f"no space left to start {container}: {message}")
            raise Internal(f"crun cannot start {container}: {message}")
        return int(pid_file.read_text())

    async def delete(self, container: str) -> None:
        """Kill what is left of a container and forget it; an unknown container is no error."""
        await self.call(lambda: self._delete(container))

    def _delete(self, container: str) -> None:
        if not (self.state / container).exists():
            return
        spawn_and_wait(self.command("delete", "--force", container), None)
        if (self.state / container).exists():
            # A state directory that crun wrote only half (killed in between) is refused by crun itself.
            shutil.rmtree(self.state / container, ignore_errors=True)

    def containers(self) -> set[str]:
        """Containers that crun knows, dead ones included."""
        if not self.state.exists():
            return set()
        return {entry.name for entry in os.scandir(self.state) if entry.is_dir()}


def spawn(
    argv: list[str],
    stdio: tuple[int | None, int | None, int | None] = (None, None, None),
    control: int | None = None,
    keep: Sequence[int] = (),
) -> int:
    """posix_spawn from the calling thread (its namespaces are inherited); a None in `stdio` becomes /dev/null.

    Only the three, `control` at number 3 and those in `keep` under their own numbers reach the program: every descriptor of
    the engine is close-on-exec.
    """
    actions: list[tuple[object, ...]] = []
    for number, fd in enumerate(stdio):
        if fd is None:
            actions.append((os.POSIX_SPAWN_OPEN, number, "/dev/null", os.O_RDWR, 0))
        else:
            actions.append((os.POSIX_SPAWN_DUP2, fd, number))
    if control is not None:
        actions.append((os.POSIX_SPAWN_DUP2, control, CONTROL_FD))
    # dup2 onto itself is how posix_spawn clears close-on-exec.
    actions += [(os.POSIX_SPAWN_DUP2, fd, fd) for fd in keep]
    environment = {"PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")}
    return os.posix_spawn(argv[0], argv, environment, file_actions=actions, setsigdef=range(1, 32), setsigmask=[])


def spawn_and_wait(argv: list[str], control: int | None) -> int:
    """Run a program without stdio; its exit status, negative for a signal."""
    pid = spawn(argv, control=control)
    while True:
        try:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except OSError as error:
            if error.errno != errno.EINTR:
                raise


def read_tail(path: Path) -> str:
    try:
        return path.read_bytes()[-_LOG_TAIL:].decode(errors="replace").strip()
    except OSError:
        return ""
