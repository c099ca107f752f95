"""The life of workspaces: launch, watch, remove. Forks are in engine/fork.py, restarts in engine/recovery.py."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine import bundle, overlay, readiness, syscalls
from engine.cgroups import Cgroups, Limits
from engine.config import Config
from engine.database import Database
from engine.desktop.accessibility import Accessibility
from engine.desktop.service import Desktops
from engine.errors import BadRequest, Conflict, EngineError, Internal, NotFound
from engine.events import Events
from engine.identity import write_launch_files
from engine.images import Image, ImageStore
from engine.network import Network, PortRequest
from engine.process import Executor
from engine.program import check_start_command
from engine.runtime import Runtime
from engine.storage import Storage
from engine.stream_tokens import StreamTokens
from engine.threads import in_thread
from engine.tools import Tools
from engine.workspace import OSWORLD_PORTS, State, Workspace, check_reference, now

log = logging.getLogger(__name__)

_REMOVE_WAITS_SECONDS = 60.0
_REMOVE_AGAIN_SECONDS = 30.0


class Launch:
    """A checked request to launch a workspace."""

    def __init__(
        self, image: str, name: str | None, ports: dict[int, int | None], env: dict[str, str], memory: int, pids: int,
        network: str, command: list[str] | None, shm: int | None = None, disk: int | None = None, osworld: bool = False, cpus: float | None = None,
    ) -> None:  # fmt: skip
        """`osworld`: with an OSWorld server. `shm`: bytes of /dev/shm; None for the usual 1 GiB, or half of the memory limit when that is less. `disk`: bytes that it may write, `cpus`: processors whose time it may use; None: no limit."""
        self.image = image
        self.name = name
        self.ports = ports
        self.env = env
        self.memory = memory
        self.pids = pids
        self.network = network
        self.command = command
        self.disk = disk
        self.cpus = cpus
        self.osworld = osworld
        self.shm = min(bundle.DEFAULT_SHM, memory // 2) if shm is None else shm


class Manager:
    """All workspaces of one engine. Used from the event loop; blocking work goes to threads."""

    def __init__(
        self, config: Config, database: Database, storage: Storage, runtime: Runtime, cgroups: Cgroups, tools: Tools,
        images: ImageStore, network: Network,
    ) -> None:  # fmt: skip
        self.config = config
        self.database = database
        self.storage = storage
        self.runtime = runtime
        self.cgroups = cgroups
        self.tools = tools
        self.images = images
        self.network = network
        self.executor = Executor(runtime, tools, config.run)
        self.events = Events(lambda: [workspace.public() for workspace in self.workspaces.values()])
        self.workspaces: dict[str, Workspace] = {}
        self.stream_tokens = StreamTokens()
        self.desktops = Desktops(self.executor)
        self.accessibility = Accessibility(self.executor)
        self.locks: dict[str, asyncio.Lock] = {}
        self.forks_begun: Counter[str] = Counter()
        self._names_taken: set[str] = set()
        self._watched: dict[str, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._removing: set[str] = set()        # workspaces that a task is taking away at this moment

    # Looking up

    def find(self, ref: str) -> Workspace:
        """The workspace with this id or name; NotFound."""
        check_reference(ref)
        found = self.workspaces.get(ref)
        if found is None:
            found = next((item for item in self.workspaces.values() if item.name == ref), None)
        if found is None:
            raise NotFound(f"no workspace {ref}; `tclone ls` lists them")
        return found

    def list(self) -> list[Workspace]:
        return sorted(self.workspaces.values(), key=lambda item: int(item.id.partition("-")[2]))

    def run_dir(self, workspace: str) -> Path:
        return self.config.run / "workspaces" / workspace

    def names_in_use(self) -> set[str]:
        return {workspace.name for workspace in self.workspaces.values()} | self._names_taken

    def reserve_names(self, names: list[str]) -> None:
        """Hold names until release_names, so that two operations cannot both take one. Raises Conflict."""
        used = self.names_in_use()
        for name in names:
            if name in used:
                raise Conflict(f"the name {name} is taken; choose another or remove that workspace", field="name")
        self._names_taken.update(names)

    def release_names(self, names: list[str]) -> None:
        self._names_taken.difference_update(names)

    # Bookkeeping

    def background(self, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine that nobody awaits; the engine's end waits for or cancels it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_report_failure)
        return task

    async def changed(self, *workspaces: Workspace) -> None:
        """Store workspaces and tell the watchers."""
        await self.database.save_workspaces([workspace.record() for workspace in workspaces])
        for workspace in workspaces:
            self.events.publish("workspace", workspace.id, workspace.public())

    def progress(self, workspace: Workspace, operation: str, started: float) -> Callable[[str], None]:
        """A function that reports phases of an operation which began at `started` (monotonic seconds)."""

        def report(phase: str, detail: str = "") -> None:
            workspace.phase = phase
            elapsed = round((time.monotonic() - started) * 1000, 1)
            data = {"operation": operation, "phase": phase, "elapsed_ms": elapsed, "detail": detail}
            self.events.publish("progress", workspace.id, data)

        return report

    # Launch

    async def launch(self, wanted: Launch) -> Workspace:
        """Start a workspace; it is `starting` when this returns and becomes `ready` or `failed` by itself."""
        image = await asyncio.to_thread(self.images.get, wanted.image)
        command = wanted.command or image.entrypoint
        if not command:
            raise BadRequest(f"image {image.name} names no program to start; give a command")
        if wanted.osworld and image.desktop is None:
            raise BadRequest(f"osworld needs a desktop, and image {image.name} is headless")
        number = await self.database.next_number("workspace")
        identity = f"ws-{number}"
        name = wanted.name or f"{image.name[:32].rstrip('-')}-{number}"
        self.reserve_names([name])
        try:
            workspace = Workspace(
                id=identity, name=name, kind="source", image=image.name, image_digest=image.digest, hostname=name,
                desktop=image.desktop is not None, stream_port=image.desktop["port"] if image.desktop else None,
                network=wanted.network,
                memory_limit=wanted.memory, pids_limit=wanted.pids, disk_limit=wanted.disk, cpu_limit=wanted.cpus, env={**image.env, **wanted.env},
                session=image.session,
                workdir=image.workdir or "/", tools_digest=self.tools.digest,
            )  # fmt: skip
            if workspace.desktop:
                workspace.master_token = readiness.new_token()
            started = time.monotonic()
            entry = await self.database.journal_begin("launch", {"ids": [identity]})
            try:
                await self._start(workspace, image, command, wanted, self.progress(workspace, "launch", started))
            except BaseException:
                await asyncio.shield(self._take_back(workspace))
                raise
            finally:
                await self.database.journal_end(entry)
        finally:
            self.release_names([name])
        self._starting[identity] = self.background(self._await_ready(workspace, started))
        return workspace

    async def _take_back(self, workspace: Workspace) -> None:
        """Undo a launch that did not come to life."""
        self.unwatch(workspace.id)
        self.workspaces.pop(workspace.id, None)
        self.stream_tokens.forget(workspace.id)
        self.desktops.forget(workspace.id)
        await self.destroy(workspace.id)
        await self.database.delete_workspace(workspace.id, now(), forget=True)
        self.events.publish("gone", workspace.id, {})

    async def _start(
        self, workspace: Workspace, image: Image, command: list[str], launch: Launch,
        report: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.workspaces[workspace.id] = workspace
        await self.changed(workspace)
        report("network")
        local = OSWORLD_PORTS if launch.osworld else frozenset()
        wanted = dict.fromkeys([*image.ports, *local]) | launch.ports
        requests = [PortRequest(container, host, container in local) for container, host in sorted(wanted.items())]
        network = await self.network.create(workspace.id, workspace.network, requests)
        workspace.take_ports(network.ports)
        report("root file system")
        layer = await in_thread(lambda: self.storage.create_layer(workspace.id))
        if workspace.disk_limit is not None:
            size = workspace.disk_limit
            await in_thread(lambda: self.storage.limit_layer(workspace.id, size))
        root = await self.mount_root(workspace, layer)
        try:
            await in_thread(lambda: check_start_command(root, command, workspace.env, workspace.workdir))
            await in_thread(lambda: write_launch_files(root, workspace))
            report("container")
            directory = self.run_dir(workspace.id) / "bundle"
            limits = Limits(workspace.memory_limit, workspace.pids_limit, workspace.cpu_limit)
            config = bundle.source_config(
                str(directory / "rootfs"), command, workspace.env | workspace.session, workspace.workdir, workspace.hostname, network.path,
                self.cgroups.oci_path(workspace.id), launch.shm,
            )  # fmt: skip
            await in_thread(lambda: bundle.write_config(directory, config))
            await self.prepare_groups(workspace.id, limits)
            workspace.pid = await self.runtime.start(workspace.id, directory, root)
        finally:
            os.close(root)
        workspace.pid_start = _start_time(workspace)
        workspace.move_to(State.STARTING)
        self.watch(workspace)
        await self.changed(workspace)

    async def prepare_groups(self, workspace: str, limits: Limits) -> None:
        """The control groups that a container is started in, with their limits. Raises Internal."""
        try:
            await in_thread(lambda: self.cgroups.prepare(workspace, limits))
        except OSError as error:
            raise Internal(f"cannot make the control groups of {workspace}: {error}") from error

    async def hold_to_limits(self, workspace: Workspace) -> None:
        """Hold a branch, which was made with more, to its number of processes and its share of the processors. Raises Internal."""
        cpus = workspace.cpu_limit

        def hold() -> None:
            self.cgroups.set_limits(workspace.id, Limits(workspace.memory_limit, workspace.pids_limit))
            if cpus is not None:
                self.cgroups.limit_cpus(workspace.id, cpus)

        try:
            await in_thread(hold)
        except OSError as error:
            raise Internal(f"cannot set the limits of {workspace.id}: {error}") from error

    async def mount_root(self, workspace: Workspace, layer: Path) -> int:
        """The workspace's overlay as a detached mount."""
        return await self.runtime.call(lambda: self.mount_root_now(workspace, layer))

    def mount_root_now(self, workspace: Workspace, layer: Path) -> int:
        """As mount_root, for a thread of the runtime."""
        return overlay.mount_overlay(self.lower_layers(workspace), layer / "upper", layer / "work")

    def lower_layers(self, workspace: Workspace) -> list[Path]:
        """The read-only layers below a workspace's upper, topmost first."""
        return [self.tools.layer(workspace.tools_digest), self.images.rootfs(workspace.image_digest)]

    async def _await_ready(self, workspace: Workspace, started: float) -> None:
        report = self.progress(workspace, "launch", started)
        try:
            report("first command")
            await readiness.usable(self.executor, workspace)
            if workspace.desktop:
                token = readiness.new_token()
                await readiness.desktop_ready(workspace, token, readiness.DESKTOP_SECONDS, report, at_rest=True)
                workspace.stream_token = token
            if workspace.state is State.STARTING:
                workspace.move_to(State.READY)
                report("ready")
        except EngineError as error:
            if workspace.state is not State.STARTING:
                return
            workspace.move_to(State.FAILED)
            workspace.error = error.message
        finally:
            self._starting.pop(workspace.id, None)
        await self.changed(workspace)

    def resume_start(self, workspace: Workspace) -> None:
        """Go on waiting for a workspace that was starting when an earlier engine ended."""
        self._starting[workspace.id] = self.background(self._await_ready(workspace, time.monotonic()))

    async def wait_ready(self, workspace: Workspace) -> None:
        """Return when a launch has come to its end; raises Internal when it failed."""
        task = self._starting.get(workspace.id)
        if task is not None:
            await asyncio.wait({task})
        if workspace.state in (State.FAILED, State.STOPPED):
            raise Internal(f"{workspace.id} did not become ready: {workspace.error or workspace.state.value}")

    # Standing still

    async def pause(self, ref: str, still: bool) -> Workspace:
        """Let the programs of a workspace stand still in memory (`still`), or go on. Once paused, again does nothing. Raises Conflict, Internal."""
        workspace = self.find(ref)
        lock = self.lock(workspace.id)
        if lock.locked():
            raise Conflict(f"another operation on {workspace.id} is under way; try again")
        async with lock:
            # What is said to go on is thawed all the same: it is no use when it does not.
            if workspace.paused == still and (still or not workspace.alive):
                return workspace
            if still:
                workspace.require_ready("pause")
            try:
                await in_thread(lambda: self.cgroups.freeze(workspace.id, still))
            except OSError as error:
                raise Internal(f"cannot {'pause' if still else 'resume'} {workspace.id}: {error}") from error
            if workspace.paused != still:
                workspace.paused = still
                await self.changed(workspace)
        return workspace

    # The end of pid 1

    def watch(self, workspace: Workspace) -> None:
        """Notice when the workspace's pid 1 ends; at once, when it has ended already."""
        try:
            pidfd = syscalls.pidfd_open(workspace.pid)
            if syscalls.start_time(workspace.pid) != workspace.pid_start or syscalls.has_ended(pidfd):
                os.close(pidfd)
                pidfd = -1
        except (OSError, ValueError, IndexError):
            pidfd = -1
        if pidfd < 0:
            self._ended(workspace)
            return
        self._watched[workspace.id] = pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._ended, workspace)

    def unwatch(self, workspace: str) -> None:
        pidfd = self._watched.pop(workspace, None)
        if pidfd is not None:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)

    def _ended(self, workspace: Workspace) -> None:
        self.unwatch(workspace.id)
        if workspace.alive or workspace.state is State.FAILED:
            workspace.move_to(State.STOPPED)
            workspace.error = workspace.error or "its first process ended; `tclone logs` may say why"
            workspace.phase = ""
            self.background(self.changed(workspace))

    # Removal

    async def remove(self, ref: str) -> None:
        """Remove a workspace and everything that belongs to it; waits for a fork of it that is under way.

        Raises Internal with what is left; then it is tried again after a while, and may be asked for again.
        """
        workspace = self.find(ref)
        if workspace.id in self._removing:
            raise Conflict(f"{workspace.id} is being removed already")
        lock = self.lock(workspace.id)
        try:
            async with asyncio.timeout(_REMOVE_WAITS_SECONDS):
                await lock.acquire()
        except TimeoutError:
            raise Conflict(f"{workspace.id} is still being forked; try again") from None
        try:
            if workspace.id in self._removing or workspace.id not in self.workspaces:
                raise Conflict(f"{workspace.id} is being removed already")
            if workspace.state is not State.REMOVING:
                workspace.move_to(State.REMOVING)
                await self.changed(workspace)
            self._removing.add(workspace.id)
            await asyncio.shield(self.background(self.finish_removal(workspace)))
        finally:
            lock.release()

    async def finish_removal(self, workspace: Workspace) -> None:
        """The part of a removal that also an interrupted one needs. Raises Internal with what is left, and is then done again by itself."""
        self._removing.add(workspace.id)
        try:
            starting = self._starting.pop(workspace.id, None)
            if starting is not None:
                starting.cancel()
                await asyncio.wait({starting})
            self.unwatch(workspace.id)
            await self.destroy(workspace.id)
        except EngineError as error:
            workspace.error = error.message
            await self.changed(workspace)
            self.background(self._remove_later(workspace))
            raise
        finally:
            self._removing.discard(workspace.id)
        workspace.move_to(State.GONE)
        self.workspaces.pop(workspace.id, None)
        self.stream_tokens.forget(workspace.id)
        self.desktops.forget(workspace.id)
        self.locks.pop(workspace.id, None)
        self.forks_begun.pop(workspace.id, None)
        await self.database.delete_workspace(workspace.id, now())
        self.events.publish("gone", workspace.id, {"name": workspace.name})

    async def _remove_later(self, workspace: Workspace) -> None:
        await asyncio.sleep(_REMOVE_AGAIN_SECONDS)
        if workspace.id in self.workspaces and workspace.id not in self._removing:
            log.info("%s: what is left of it is removed once more", workspace.id)
            with contextlib.suppress(EngineError):
                await self.finish_removal(workspace)

    async def destroy(self, workspace: str) -> None:
        """Take away every process, namespace, group, port, layer and file of an id, as far as they exist.

        Goes through all of it even when a part fails; then raises Internal with what is left.
        """
        failures: list[str] = []

        async def attempt(what: str, work: Any) -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - the other parts must be removed all the same
                log.exception("removing %s of %s", what, workspace)
                failures.append(f"{what}: {error}")

        # What stands still cannot be killed; most have no such group any more, or never stood still.
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self.cgroups.freeze, workspace, False)
        await attempt("container", self.runtime.delete(workspace))
        await attempt("commands", self.executor.kill_all(workspace))
        await attempt("network", self.network.destroy(workspace))
        left = await asyncio.to_thread(self.cgroups.remove, workspace)
        failures += [f"control group {path}" for path in left]
        await attempt("layer", asyncio.to_thread(self.storage.remove_layer, workspace))
        await attempt("files", asyncio.to_thread(shutil.rmtree, self.run_dir(workspace), True))
        if failures:
            raise Internal(f"{workspace} is not removed completely: {'; '.join(failures)}")

    def lock(self, workspace: str) -> asyncio.Lock:
        return self.locks.setdefault(workspace, asyncio.Lock())

    # The end of the engine

    async def close(self) -> None:
        """Stop what runs in the background; workspaces go on running."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=10)
        for workspace in list(self._watched):
            self.unwatch(workspace)
        self.events.close()


def _start_time(workspace: Workspace) -> int:
    try:
        return syscalls.start_time(workspace.pid)
    except (OSError, IndexError, ValueError):
        raise Internal(f"the first process of {workspace.id} ended at once; `tclone logs` may say why") from None


def _report_failure(task: asyncio.Task[Any]) -> None:
    """Log defects; an EngineError was told to whoever asked."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, EngineError):
        log.error("background work failed", exc_info=error)
    elif isinstance(error, Internal):
        log.error("%s", error.message)
