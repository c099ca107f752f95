"""Live forks without the engine daemon: containers started by hand around the native programs.

    python -m tests.fidelity.harness run counter memory_private      # programs of tests/fidelity/programs, or `all`
    python -m tests.fidelity.harness shell -- busybox sleep 1000      # any command: forked once, both sides kept until Ctrl-C

It speaks the protocol of docs/explanation/architecture.md and uses the engine's own modules for storage, overlay, bundles
and crun, so that a fault found here is a fault of native code. Everything it makes dies with it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine import bundle, cgroups, overlay, runtime, storage, syscalls
from engine.learnt import Learnt
from tests.fidelity import programs
from tests.fidelity.livefork import NATIVE, Container, ForkError, ForkResult, ForkRun

BUSYBOX = Path("/bin/busybox")
_READY_SECONDS = 60.0
_RESULT_SECONDS = 90.0
_FIDELITY = "/tmp/fidelity"
_CAP_SYS_RESOURCE = 24


class HarnessError(Exception):
    """Something of the harness itself, not of the fork, went wrong."""


class Harness:
    """One pool, one crun state directory, and the containers made with them.

    The caller's thread must have a mount namespace of its own (`own_mount_namespace`).
    """

    def __init__(self, directory: Path, verbose: bool = False) -> None:
        self.directory = directory
        self.verbose = verbose
        self.storage = storage.Storage(directory / "data")
        self.cgroups = cgroups.Cgroups(f"tclone-harness-{os.getpid()}")
        self.runtime = runtime.Runtime(directory / "run", self.cgroups)
        self.containers: list[Container] = []
        self.learnt = Learnt()
        self._count = 0

    async def __aenter__(self) -> "Harness":
        self.directory.mkdir(parents=True, exist_ok=True)
        self.storage.open()
        self.cgroups.open()
        self.runtime.open()
        self._make_tools()
        self.learnt.learn(NATIVE / "tclone-livefork")
        return self

    async def __aexit__(self, *_: object) -> None:
        for container in reversed(self.containers):
            await self._remove(container)
        self.learnt.close()
        self.cgroups.remove_parent()
        self.cgroups.close()
        self.runtime.close()
        self.storage.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    # Layers

    @property
    def _tools(self) -> Path:
        return self.storage.pool / "tools" / "harness"

    def _make_tools(self) -> None:
        """The layer with tclone-init, and the stage root with tclone-restore and mount points."""
        stage = self.storage.pool / "stage" / "root"
        for root in (self._tools, stage):
            (root / "usr/libexec/tclone").mkdir(parents=True, exist_ok=True)
            for name in ("proc", "dev", "sys", "tmp"):
                (root / name).mkdir(exist_ok=True)
        for root in (self._tools, stage):
            shutil.copy2(NATIVE / "tclone-init", root / "usr/libexec/tclone/init")
            if (NATIVE / "tclone-restore").exists():
                shutil.copy2(NATIVE / "tclone-restore", root / "usr/libexec/tclone/restore")

    def import_root(self, rootfs: Path | None, binaries: list[Path]) -> Path:
        """An image layer: a copy of `rootfs`, or busybox alone; with the test programs in /fidelity."""
        image = self.storage.pool / "images" / f"image-{self._next()}"
        if rootfs is not None:
            subprocess.run(["cp", "-a", "--reflink=auto", str(rootfs), str(image)], check=True)
        else:
            self._make_busybox_root(image)
        (image / "fidelity").mkdir(exist_ok=True)
        for binary in binaries:
            shutil.copy2(binary, image / "fidelity" / binary.name)
        return image

    @staticmethod
    def _make_busybox_root(image: Path) -> None:
        for name in ("bin", "etc", "root", "run", "var/log", "proc", "sys", "dev", "tmp"):
            (image / name).mkdir(parents=True)
        (image / "tmp").chmod(0o1777)
        (image / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n")
        shutil.copy2(BUSYBOX, image / "bin/busybox")
        (image / "bin/sh").symlink_to("busybox")

    def _next(self) -> int:
        self._count += 1
        return self._count

    # Containers

    async def launch(self, image: Path, command: list[str], environment: dict[str, str] | None = None) -> Container:
        """Start a source whose pid 1 is tclone-init and runs `command`. `environment` is added to PATH, for pid 1 too."""
        name = f"h{os.getpid()}-{self._next()}"
        layer = self.storage.create_layer(name)
        netns = make_network_namespace(ping=True)
        root = overlay.mount_overlay([self._tools, image], layer / "upper", layer / "work")
        (layer / "image").symlink_to(image)
        config = bundle.source_config(
            str(self._bundle(name) / "rootfs"), command, {"PATH": bundle.DEFAULT_PATH, **(environment or {})}, "/", name,
            _path_of(netns), self.cgroups.oci_path(name),
        )  # fmt: skip
        bundle.write_config(self._bundle(name), config)
        self.cgroups.prepare(name, cgroups.Limits(None, None))
        try:
            pid = await self.runtime.start(name, self._bundle(name), root)
        finally:
            os.close(root)
        container = Container(name, pid, layer, netns)
        self.containers.append(container)
        return container

    def _bundle(self, name: str) -> Path:
        return self.directory / "bundles" / name

    async def _stage(self, parent: Container) -> tuple[Container, socket.socket]:
        """A container that waits to become a branch, and our end of its control socket."""
        name = f"h{os.getpid()}-{self._next()}"
        netns = make_network_namespace()
        stage = self.storage.pool / "stage" / "root"
        config = bundle.stage_config(str(stage), _path_of(netns), self.cgroups.oci_path(name))
        _drop_missing_capability(config)
        bundle.write_config(self._bundle(name), config)
        self.cgroups.prepare(name, cgroups.Limits(None, None))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            pid = await self.runtime.start(name, self._bundle(name), None, theirs.fileno())
        container = Container(name, pid, self.storage.layer(name), netns, parent.id)
        self.containers.append(container)
        return container, ours

    async def _remove(self, container: Container) -> None:
        await self.runtime.delete(container.id)
        left = self.cgroups.remove(container.id)
        if left:
            print(f"harness: left behind: {left}", file=sys.stderr)
        self.storage.remove_layer(container.id)
        os.close(container.netns)
        self.containers.remove(container)

    async def remove(self, container: Container) -> None:
        """Kill a container and delete all that belongs to it."""
        await self._remove(container)

    # Fork

    async def fork(
        self,
        source: Container,
        copies: int = 1,
        options: list[str] | None = None,
        stop_at: str | None = None,
        kill_at: str | None = None,
        launcher: Sequence[str] = (),
        when_stopped: Callable[[int, list[Container]], None] | None = None,
        when_staged: Callable[[list[Container]], None] | None = None,
    ) -> ForkResult:
        """Fork a workspace. Raises ForkError; the prepared branches are removed then.

        `stop_at` is a phase at which livefork shall be killed with SIGKILL (it stops itself there), or `when_stopped` called; `launcher` see
        ForkRun; `when_staged` gets the prepared branches before livefork starts; `kill_at` see ForkRun.
        """
        staged: list[tuple[Container, socket.socket]] = []
        try:
            for _ in range(copies):
                staged.append(await self._stage(source))
            self.storage.sync()
            if when_staged is not None:
                when_staged([container for container, _ in staged])
            run = ForkRun(
                source, staged, lambda branch: self.branch_root(source, branch), options or [], stop_at, self.verbose, launcher, when_stopped,
                self.learnt, kill_at,
            )  # fmt: skip
            return await asyncio.to_thread(run.run)
        except BaseException:
            for container, _ in staged:
                try:
                    await self._remove(container)
                except Exception as error:  # it must not hide why the fork failed
                    print(f"harness: removing {container.id}: {error}", file=sys.stderr)
            raise
        finally:
            for _, control in staged:
                control.close()

    def branch_root(self, source: Container, branch: Container) -> int:
        """Snapshot the source's layer for a branch and mount its root detached."""
        self.storage.snapshot_layer(source.id, branch.id)
        image = Path(os.readlink(branch.layer / "image"))
        return overlay.mount_overlay([self._tools, image], branch.layer / "upper", branch.layer / "work")


def _drop_missing_capability(config: dict[str, Any]) -> None:
    """Take CAP_SYS_RESOURCE out of a bundle where the host's root has lost it: crun would fail to set it."""
    bounding = int(Path("/proc/self/status").read_text().partition("CapBnd:")[2].split()[0], 16)
    if bounding >> _CAP_SYS_RESOURCE & 1:
        return
    for names in config["process"]["capabilities"].values():
        with contextlib.suppress(ValueError):
            names.remove("CAP_SYS_RESOURCE")


def _path_of(fd: int) -> str:
    return f"/proc/{os.getpid()}/fd/{fd}"


def make_network_namespace(ping: bool = False) -> int:
    """A fresh network namespace with `lo` up, held by nothing but the descriptor returned; with `ping` everybody may make ICMP sockets."""
    result: list[int | OSError] = []

    def make() -> None:
        try:
            syscalls.unshare(syscalls.CLONE_NEWNET)
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            if ping:
                subprocess.run(["sh", "-c", "echo 0 2147483647 > /proc/sys/net/ipv4/ping_group_range"], check=True)
            result.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            result.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if not result or isinstance(result[0], OSError):
        raise HarnessError(f"cannot make a network namespace: {result[0] if result else 'ip failed'}")
    return result[0]


def own_mount_namespace() -> None:
    """Give this process a private mount namespace: its pool is then seen by nobody else and vanishes with it."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)


# Programs ----------------------------------------------------------------------------------------------------------------


async def start_programs(harness: Harness, names: list[str], build: Path) -> Container:
    """A workspace that runs the named programs side by side; returns once every one is ready."""
    binaries = programs.build_all([*names, programs.LAUNCHER], build)
    image = harness.import_root(None, binaries)
    command = [f"/fidelity/{programs.LAUNCHER}", *(f"/fidelity/{name}" for name in names)]
    source = await harness.launch(image, command)
    await _until(lambda: _missing(source, names, "ready"), _READY_SECONDS, f"{source.id}: not ready")
    return source


def _missing(container: Container, names: list[str], suffix: str) -> list[str]:
    """Programs that have neither the wanted file nor (having failed early) a result."""
    return [
        name
        for name in names
        if container.read(f"{_FIDELITY}/{name}.{suffix}") is None and container.read(f"{_FIDELITY}/{name}.result") is None
    ]


async def _until(missing: Any, seconds: float, what: str) -> list[str]:
    deadline = time.monotonic() + seconds
    while left := missing():
        if time.monotonic() > deadline:
            print(f"{what}: {', '.join(left)}", file=sys.stderr)
            return left
        await asyncio.sleep(0.02)
    return []


async def finish(container: Container, names: list[str], side: str) -> dict[str, str]:
    """Let the programs of one workspace go on; returns each one's result ("pass", "fail: …", "no result …")."""
    container.write(f"{_FIDELITY}/go", side)
    await _until(lambda: _missing(container, names, "result"), _RESULT_SECONDS, f"{container.id} ({side}): no result")
    return {
        name: container.read(f"{_FIDELITY}/{name}.result") or f"no result within {_RESULT_SECONDS:.0f} s" for name in names
    }


async def run_programs(harness: Harness, names: list[str], build: Path, copies: int = 1, generations: int = 1) -> dict[str, Any]:
    """Start, fork, then check in every branch and last in the source."""
    source = await start_programs(harness, names, build)
    forks: list[ForkResult] = []
    parent = source
    for _ in range(generations):
        forks.append(await harness.fork(parent, copies))
        parent = forks[-1].branches[-1]
    results: dict[str, dict[str, str]] = {}
    for fork in forks:
        for branch in fork.branches:
            results[branch.id] = await finish(branch, names, "branch")
    results["source"] = await finish(source, names, "source")
    console = {container.id: container.read("/var/log/tclone/console.log") for container in harness.containers}
    return {
        "forks": [{"done": fork.done, "phases": fork.phases, "errors": fork.branch_errors} for fork in forks],
        "results": results,
        "console": console,
    }


def _print_report(report: dict[str, Any]) -> bool:
    for fork in report["forks"]:
        print("fork:", json.dumps(fork))
    good = True
    for side, results in report["results"].items():
        for name, result in results.items():
            if result != "pass":
                good = False
                print(f"{side}: {name}: {result}")
        print(f"{side}: {sum(result == 'pass' for result in results.values())} of {len(results)} passed")
    for side, text in report["console"].items():
        if text:
            print(f"console of {side}:\n{text[-2000:]}")
    return good


async def _main(arguments: argparse.Namespace) -> int:
    directory = Path(tempfile.mkdtemp(prefix="tclone-harness-"))
    build = arguments.build or programs.BUILT
    async with Harness(directory, arguments.verbose) as harness:
        if arguments.verb == "run":
            names = programs.names() if arguments.programs == ["all"] else arguments.programs
            report = await run_programs(harness, names, build, arguments.copies, arguments.generations)
            if arguments.json:
                print(json.dumps(report))
            good = _print_report(report) if not arguments.json else True
            return 0 if good else 1
        return await _shell(harness, arguments)


async def _shell(harness: Harness, arguments: argparse.Namespace) -> int:
    """Start a command, fork it, print where source and branches are, and wait for Ctrl-C or end of input."""
    image = harness.import_root(arguments.rootfs, [])
    source = await harness.launch(image, arguments.command)
    await asyncio.sleep(arguments.settle)
    print(f"source {source.id}: pid 1 is host pid {source.pid}; nsenter -t {source.pid} -a /bin/sh")
    try:
        result = await harness.fork(source, arguments.copies)
    except ForkError as error:
        print(error)
    else:
        print(json.dumps({"done": result.done, "phases": result.phases, "errors": result.branch_errors}))
        for branch in result.branches:
            print(f"branch {branch.id}: pid 1 is host pid {branch.pid}; nsenter -t {branch.pid} -a /bin/sh")
    print("end of input or Ctrl-C ends it all")
    with contextlib.suppress(KeyboardInterrupt):
        await asyncio.to_thread(sys.stdin.read)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fidelity.harness", description="live forks without the engine daemon")
    parser.add_argument("--verbose", "-v", action="store_true", help="print every packet of livefork")
    parser.add_argument("--build", type=Path, help="where programs are built and kept (default: beside the native programs)")
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run fidelity programs through a fork")
    run.add_argument("programs", nargs="+", metavar="PROGRAM", help="names, or `all`")
    run.add_argument("--generations", type=int, default=1, help="fork the branch again, so often")
    run.add_argument("--copies", type=int, default=1)
    run.add_argument("--json", action="store_true")
    shell = verbs.add_parser("shell", help="fork any command and keep both sides running")
    shell.add_argument("--rootfs", type=Path, help="directory to use as the image (default: busybox)")
    shell.add_argument("--copies", type=int, default=1)
    shell.add_argument("--settle", type=float, default=1.0, metavar="SECONDS", help="wait before the fork")
    shell.add_argument("command", nargs="+")
    return parser


def main() -> int:
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    own_mount_namespace()
    try:
        return asyncio.run(_main(arguments))
    except (ForkError, HarnessError, programs.BuildError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
