"""An engine of one's own: started as a process, killed at will; and a tiny image, so that these tests need no build."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import psutil

from engine.client import EngineClient
from engine.config import Config
from engine.images import ImageStore
from tests.leaks import LeakCounter

REPO = Path(__file__).resolve().parents[2]
NATIVE = Path(os.environ.get("TCLONE_LIBEXEC", REPO / "native" / "build"))
BUSYBOX = Path("/bin/busybox")
IMAGE = "tiny"
_APPLETS = ("sh", "sleep", "cat", "echo", "ls", "id", "stty", "tty", "env", "ps", "kill", "true", "head", "yes", "stat", "ln", "rm", "grep", "nc", "cp", "mv", "killall", "pidof", "mkfifo", "dd", "mkdir", "hostname")
_START_SECONDS = 90.0  # on a machine busy with other tests; it takes 0.7 s on a quiet one
_END_SECONDS = 60.0
# How long a test waits for what must come, in seconds: test machines can be busy.
PATIENCE = 30.0


class Engine:
    """One engine process with its own run directory. `variables` are added to its environment."""

    def __init__(self, data: Path, run: Path, variables: dict[str, str] | None = None) -> None:
        self.config = Config(
            data=data, run=run, libexec=NATIVE, images=REPO / "images", portal_port=0, portal_user="nobody-of-tclone"
        )
        self.run = run
        self._variables = variables or {}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.run.with_name(self.run.name + ".log")

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start the process without waiting for it to answer."""
        environment = {
            **os.environ, "TCLONE_DATA": str(self.config.data), "TCLONE_RUN": str(self.run), "TCLONE_LIBEXEC": str(NATIVE),
            "TCLONE_PORTAL_USER": "nobody-of-tclone", **self._variables,
        }  # fmt: skip
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "engine.daemon"], cwd=REPO, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    async def start(self) -> None:
        """Start and wait until it answers."""
        self.process = self.spawn()
        deadline = time.monotonic() + _START_SECONDS
        while not self.config.socket.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                self.process.wait()
                self.process = None
                raise AssertionError(f"the engine did not start:\n{self.log.read_text()[-4000:]}")
            await asyncio.sleep(0.02)

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """End the process and return its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        status = await asyncio.to_thread(self.process.wait, _END_SECONDS)
        self.process = None
        if number == signal.SIGKILL:
            self.config.socket.unlink(missing_ok=True)
        return status

    @contextlib.asynccontextmanager
    async def client(self):
        async with EngineClient(self.config.socket) as client:
            yield client

    async def remove_everything(self) -> None:
        async with self.client() as client:
            for workspace in await client.list():
                await client.remove(workspace["id"])


def unseen_errors(log: Path) -> list[str]:
    """The lines of a log which say that asyncio found an error, or a task, that nobody waited for."""
    return [line for line in log.read_text().splitlines() if "was never retrieved" in line or "but it is pending" in line]


@contextlib.contextmanager
def own_engine(prefix: str, image: str, ready: Callable[[EngineClient], Awaitable[object]] | None = None, **variables: str) -> Iterator[Engine]:
    """An engine for many tests that has an image, with directories of its own and the cache of packages that there is. `ready` readies what else
    they need. What the host holds is counted before it starts and after it ended."""
    counter = LeakCounter()
    counter.start()
    # A short path, which Unix sockets need.
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    if "TCLONE_CACHE" in os.environ:
        variables["TCLONE_CACHE"] = os.environ["TCLONE_CACHE"]
    made = Engine(directory / "data", directory / "run", variables)
    counter.own_engine(made.config.data, made.run)
    try:
        asyncio.run(_started(made, image, ready))
        yield made
        asyncio.run(made.remove_everything())
    finally:
        status = asyncio.run(made.stop())
        shutil.rmtree(directory)
    assert status == 0
    counter.check(within=20.0)


async def _started(engine: Engine, image: str, ready: Callable[[EngineClient], Awaitable[object]] | None) -> None:
    await engine.start()
    async with engine.client() as client:
        async for _ in client.build(image):
            pass
        if ready is not None:
            await ready(client)


def make_image(config: Config, name: str = IMAGE) -> str:
    """Publish a busybox image through the store; its digest."""
    store = ImageStore(config)
    stage = store.new_stage(name)
    root = stage / "rootfs"
    for directory in ("bin", "etc", "root", "run", "var/log", "tmp", "proc", "sys", "dev"):
        (root / directory).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    shutil.copy(BUSYBOX, root / "bin/busybox")
    for applet in _APPLETS:
        (root / "bin" / applet).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nusers:x:1000:\naudio:x:29:user\n")
    digest = f"{name}-0000000000"
    settings = {
        "entrypoint": ["/bin/sh", "-c", "echo started; exec sleep 100000"], "env": {"PATH": "/bin", "LANG": "C.UTF-8"},
        "workdir": "/", "desktop": None, "ports": [3000],
    }  # fmt: skip
    store.describe(stage, name, digest, settings)
    store.publish(stage, digest)
    store.discard(stage)
    return digest


def leftovers(engine: Engine, identity: str) -> list[str]:
    """What the host still has of a workspace id."""
    found = []
    for path in (
        engine.run / "workspaces" / identity,
        engine.run / "crun" / identity,
        engine.run / "netns" / identity,
        engine.config.pool / "workspaces" / identity,
    ):
        if path.exists():
            found.append(str(path))
    for directory, names, _ in os.walk("/sys/fs/cgroup"):
        found += [f"{directory}/{name}" for name in names if name == identity and _is_of(engine, directory)]
    return found


def _is_of(engine: Engine, directory: str) -> bool:
    from engine.cgroups import parent_of

    return directory.endswith("/" + parent_of(engine.run))


def pids_of(engine: Engine, identity: str) -> list[int]:
    """Host pids in a workspace's control group."""
    from engine.cgroups import Cgroups
    from engine.cgroups import parent_of

    return Cgroups(parent_of(engine.run)).processes(identity)


async def eventually(condition, seconds: float = PATIENCE, what: str = "the condition"):
    """Wait until `condition()` (plain or coroutine function) is true; its value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {seconds} s")
        await asyncio.sleep(0.02)


def exists(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
