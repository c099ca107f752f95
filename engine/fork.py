"""A live fork as one transaction: prepare, freeze and rebuild by the native program, verify, record; or nothing at all.

What a fork makes is pushed on a stack as it is made and taken back from the top when anything fails; only the record of a
verified branch takes its entries off. The source is `ready` again whatever happens, unless it ended by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from dataclasses import dataclass, field
from typing import Any

from engine import identity, readiness
from engine.cgroups import Limits
from engine.errors import Conflict, EngineError, Internal, LimitReached
from engine.identity import Identity
from engine.livefork import BranchKilled, Livefork, SourceChanged
from engine.manager import Manager
from engine.network import PortRequest
from engine.stage import Stage, Stages
from engine.text import printable
from engine.threads import in_thread
from engine.workspace import State, Workspace, branch_names

log = logging.getLogger(__name__)

_NATIVE_SECONDS = 120.0
# A workspace that changes thousands of times a second is met in a state that passes: then all is done once more, unless it has taken this long already.
ATTEMPTS = 5
_NO_NEW_ATTEMPT_SECONDS = 3.0
# Of a default name, so that `-clone-NN-N` fits into the 41 characters of a name.
# Threads and helpers of the restorer, and what copies memory.
_MAKERS = 64
_LONGEST_BASE = 41 - len("-clone-NN-N")


@dataclass(frozen=True)
class ForkOptions:
    """A checked fork request. `ghost_limit`: most bytes of one deleted file to carry over, None for the default."""

    copies: int = 1
    name: str | None = None
    tcp_close: bool = False
    ghost_limit: int | None = None
    identity: Identity = Identity()
    network: str | None = None  # None: the source's
    labels: list[str] = field(default_factory=list)

    def arguments(self) -> list[str]:
        """Options for the native program."""
        options = ["--tcp-close"] if self.tcp_close else []
        if self.ghost_limit is not None:
            options += ["--ghost-limit", str(self.ghost_limit)]
        return options


@dataclass
class _Run:
    """One fork under way. Times in `ms` are since the request, except the native program's own phases."""

    source: Workspace
    batch: str
    options: ForkOptions
    started: float
    branches: list[Workspace] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)
    listeners: set[str] = field(default_factory=set)  # branches whose programs want to hear of the fork
    hook_errors: dict[str, str] = field(default_factory=dict)
    ms: dict[str, float | None] = field(default_factory=dict)
    native: dict[str, Any] = field(default_factory=dict)
    journal: int = 0

    def elapsed(self) -> float:
        return round((time.monotonic() - self.started) * 1000, 2)

    def result(self) -> dict[str, Any]:
        """The fork result of the API."""
        return {
            "batch": self.batch,
            "source": self.source.id,
            "mode": self.native.get("mode", "copy"),
            "processes": self.native.get("processes", 0),
            "threads": self.native.get("threads", 0),
            "bytes_copied": self.native.get("bytes_copied", 0),
            "ms": self.ms,
            "branches": [
                {
                    "id": branch.id, "name": branch.name, "ports": branch.ports, "osworld": branch.osworld, "error": self.errors.get(branch.id),
                    "hook_error": self.hook_errors.get(branch.id),
                }
                for branch in self.branches
            ],
        }


class Forker:
    """Forks the workspaces of one manager."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self.stages = Stages(manager)

    async def close(self) -> None:
        await self.stages.close()

    async def fork(self, ref: str, options: ForkOptions) -> dict[str, Any]:
        """Fork a workspace; the fork result. Raises EngineError when no branch came to life; then nothing is left of it."""
        manager = self._manager
        started = time.monotonic()
        source = manager.find(ref)
        source.require_ready("fork")
        lock = manager.lock(source.id)
        if lock.locked():
            raise Conflict(f"another operation on {source.id} is under way; try again")
        names = self._names(source, options)
        manager.reserve_names(names)
        try:
            async with lock:
                source.require_ready("fork")
                if manager.cgroups.frozen(source.id):
                    raise Conflict(f"{source.id} is paused: its control group is frozen; thaw it and fork again")
                batch = f"batch-{await manager.database.next_number('batch')}"
                run = await self._forked(_Run(source, batch, options, started), names)
        finally:
            manager.release_names(names)
        self.stages.refill()
        await self._tell(run)
        await self._first_frames(run)
        result = run.result()
        manager.events.publish("fork", source.id, result)
        return result

    def _names(self, source: Workspace, options: ForkOptions) -> list[str]:
        """The names asked for, or the first free ones made from the source's."""
        if options.name is not None:
            return branch_names(options.name, options.copies)
        base = f"{source.name[:_LONGEST_BASE].rstrip('-')}-clone"
        used = self._manager.names_in_use()
        number = 1
        while True:
            names = branch_names(base if number == 1 else f"{base}-{number}", options.copies)
            if not used.intersection(names):
                return names
            number += 1

    async def _forked(self, run: _Run, names: list[str]) -> _Run:
        """From `ready` to `ready` of the source, under its lock: branches verified and recorded, or an exception. The attempt that succeeded."""
        manager, source = self._manager, run.source
        try:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    await self._attempt(run, names)
                    return run
                except SourceChanged as error:
                    if attempt == ATTEMPTS or run.elapsed() > _NO_NEW_ATTEMPT_SECONDS * 1000 or not source.alive:
                        raise
                    log.info("fork of %s, attempt %d: %s", source.id, attempt, error.message)
                    run = _Run(source, run.batch, run.options, run.started)
            raise AssertionError("unreachable: the last attempt returns or raises")
        finally:
            self._source_resumed(source)
            source.phase = ""
            await manager.changed(source)

    async def _attempt(self, run: _Run, names: list[str]) -> None:
        """All of one fork; whatever it has made is gone again when it raises."""
        manager, source = self._manager, run.source
        report = manager.progress(source, "fork", run.started)
        source.move_to(State.FORKING)
        manager.forks_begun[source.id] += 1
        manager.events.publish("workspace", source.id, source.public())
        async with contextlib.AsyncExitStack() as undo:
            report("prepare")
            await self._prepare(run, names, undo)
            try:
                await self._run_native(run, report)
            finally:
                self._source_resumed(source)
            survivors = [branch for branch in run.branches if branch.id not in run.errors]
            if not survivors:
                raise Internal(f"no branch of {source.id} came to life: {next(iter(run.errors.values()))}")
            await self._commit(run, survivors, undo)

    def _source_resumed(self, source: Workspace) -> None:
        if source.state is State.FORKING:
            source.move_to(State.READY)

    # Before the freeze

    async def _prepare(self, run: _Run, names: list[str], undo: contextlib.AsyncExitStack) -> None:
        """Containers for the branches, while the source's dirty files are written out."""
        manager, source = self._manager, run.source
        syncing = asyncio.ensure_future(in_thread(lambda: self._sync(run)))
        try:
            run.stages = await self.stages.take(run.options.copies, run.options.network or source.network)
            for stage in run.stages:
                undo.push_async_callback(self.stages.discard, stage)
            run.journal = await manager.database.journal_begin("fork", {"ids": [stage.id for stage in run.stages]})
            undo.push_async_callback(manager.database.journal_end, run.journal)
            # Not the processors': it is made as fast as can be. Not yet the processes' either: see _while_made.
            limits = Limits(source.memory_limit, _while_made(source.pids_limit))
            requests = [PortRequest(port, local=port in source.local_ports()) for port in source.published()]
            hostnames = run.options.identity.hostnames(source.hostname, run.options.copies)
            published = await asyncio.gather(
                *(
                    self.stages.assign(stage, limits, hostname, requests)
                    for stage, hostname in zip(run.stages, hostnames, strict=True)
                )
            )
            for index, (stage, ports) in enumerate(zip(run.stages, published, strict=True)):
                run.branches.append(self._branch(run, stage, names[index], index, ports, hostnames[index]))
            run.ms["prepare"] = run.elapsed()
        finally:
            await syncing

    def _sync(self, run: _Run) -> None:
        """A snapshot flushes what is dirty (430-790 ms per 100 MB): do it while the source still runs."""
        began = time.monotonic()
        self._manager.storage.sync()
        run.ms["sync"] = round((time.monotonic() - began) * 1000, 2)

    def _branch(self, run: _Run, stage: Stage, name: str, index: int, ports: dict[int, int], hostname: str) -> Workspace:
        source = run.source
        branch = Workspace(
            id=stage.id, name=name, kind="branch", image=source.image, state=State.STARTING, parent=source.id, batch=run.batch,
            index=index, generation=source.generation + 1, desktop=source.desktop,
            network=stage.policy,
            label=run.options.labels[index] if run.options.labels else "",
            memory_limit=source.memory_limit, pids_limit=source.pids_limit, disk_limit=source.disk_limit, cpu_limit=source.cpu_limit, image_digest=source.image_digest,
            tools_digest=source.tools_digest, stream_port=source.stream_port, hostname=hostname, env=dict(source.env), session=dict(source.session),
            workdir=source.workdir, pid=stage.pid, pid_start=stage.pid_start, master_token=source.master_token,
        )  # fmt: skip
        branch.take_ports(ports)
        return branch

    # The freeze

    async def _run_native(self, run: _Run, report: Any) -> None:
        """Let the native program do the fork; it hears of the branches' roots as soon as the source stands still."""
        manager = self._manager
        frozen_at = resumed_at = None
        log = manager.config.run / f"livefork-{run.source.id}.log"
        program = Livefork(manager.tools, run.source.pid, run.stages, run.options.arguments(), log)
        try:
            async with asyncio.timeout(_NATIVE_SECONDS), program as native:
                async for event in native.events():
                    if event["event"] == "phase":
                        phase = str(event.get("name"))[:40]
                        if phase == "frozen":
                            frozen_at = run.elapsed()
                            await self._give_roots(run, native)
                        if phase == "resumed":
                            resumed_at = run.elapsed()
                        run.ms[phase] = run.elapsed() if phase in ("frozen", "resumed", "usable") else _number(event.get("ms"))
                        report(phase)
                    elif event["event"] == "branch" and event.get("error"):
                        branch = str(event.get("id"))
                        run.errors[branch] = printable(event["error"]) + self._out_of_memory(run, branch)
                    elif event["event"] == "done":
                        run.native = event
        except BranchKilled as error:
            for stage in run.stages:
                if reason := self._out_of_memory(run, stage.id):
                    raise LimitReached(error.message + reason) from None
            raise
        except TimeoutError:
            raise Internal(f"the fork of {run.source.id} did not end within {_NATIVE_SECONDS:g} s; it was stopped") from None
        finally:
            log.unlink(missing_ok=True)
        for name, value in dict(run.native.get("ms") or {}).items():
            run.ms.setdefault(str(name)[:40], _number(value))
        if "pause" not in run.ms and frozen_at is not None and resumed_at is not None:
            run.ms["pause"] = round(resumed_at - frozen_at, 2)

    def _out_of_memory(self, run: _Run, branch: str) -> str:
        """To be said behind a branch's failure when the kernel has killed processes of it for its memory limit; else empty."""
        limit = run.source.memory_limit
        if limit is None or not self._manager.cgroups.memory_kills(branch):
            return ""
        return f"; its memory limit of {limit >> 20} MiB is too low: end something in {run.source.id}, or launch it with more (`tclone run --memory`)"

    async def _give_roots(self, run: _Run, native: Livefork) -> None:
        """Snapshot the upper for each branch and pass its root on. Inside the source's pause: one thread for each branch."""
        began = time.monotonic()
        roots = await asyncio.gather(
            *(self._manager.runtime.call(lambda branch=branch: self._root(run, branch)) for branch in run.branches),
            return_exceptions=True,
        )
        try:
            for branch, root in zip(run.branches, roots, strict=True):
                if isinstance(root, BaseException):
                    raise root
                native.send_root(branch.id, root)
        finally:
            for root in roots:
                if isinstance(root, int):
                    os.close(root)
        run.ms["snapshot"] = round((time.monotonic() - began) * 1000, 2)

    def _root(self, run: _Run, branch: Workspace) -> int:
        layer = self._manager.storage.snapshot_layer(run.source.id, branch.id)
        if branch.disk_limit is not None:
            # 0.04 ms: a snapshot has no limit of its own.
            self._manager.storage.limit_layer(branch.id, branch.disk_limit)
        root = self._manager.mount_root_now(branch, layer)
        try:
            identity.write_branch_files(root, branch, run.options.identity)
            if identity.wants_to_hear(root):
                run.listeners.add(branch.id)
        except BaseException:
            os.close(root)
            raise
        return root

    # After it

    async def _commit(self, run: _Run, survivors: list[Workspace], undo: contextlib.AsyncExitStack) -> None:
        """Make the surviving branches workspaces; the others are taken back."""
        manager = self._manager
        for branch in survivors:
            await manager.hold_to_limits(branch)
            manager.workspaces[branch.id] = branch
            manager.watch(branch)
            if branch.alive and not branch.desktop and branch.id not in run.listeners:
                branch.move_to(State.READY)
        await manager.changed(*survivors)
        undo.pop_all()
        for stage in run.stages:
            stage.control.close()
            if stage.id in run.errors:
                await self.stages.discard(stage)
        await manager.database.journal_end(run.journal)

    async def _tell(self, run: _Run) -> None:
        """Let the programs of the branches know that they were forked: before anyone is told that a branch is ready."""
        waiting = [branch for branch in run.branches if branch.id in run.listeners and branch.alive and branch.id not in run.errors]
        if waiting:
            await asyncio.gather(*(self._tell_branch(run, branch) for branch in waiting))
            run.ms["hooks"] = run.elapsed()
        for branch in run.branches:
            if branch.state is State.STOPPED and branch.id not in run.errors:
                run.errors[branch.id] = branch.error or "it has stopped"

    async def _tell_branch(self, run: _Run, branch: Workspace) -> None:
        wrong = await identity.tell(self._manager.executor, branch)
        if wrong is not None:
            log.warning("hooks of %s: %s", branch.id, wrong)
            run.hook_errors[branch.id] = wrong
        if branch.state is State.STARTING and not branch.desktop:
            branch.move_to(State.READY)
            await self._manager.changed(branch)

    async def _first_frames(self, run: _Run) -> None:
        """Wait for each branch's desktop to deliver a picture, under a stream token of its own."""
        branches = [branch for branch in run.branches if branch.id not in run.errors]
        if not run.source.desktop:
            run.ms["first_frame"] = None
            return
        await asyncio.gather(*(self._first_frame(run, branch) for branch in branches))
        run.ms["first_frame"] = None if run.errors else run.elapsed()

    async def _first_frame(self, run: _Run, branch: Workspace) -> None:
        manager = self._manager
        token = readiness.new_token()
        report = manager.progress(branch, "fork", run.started)
        try:
            # Meanwhile, and before anybody is told that it is ready: what was pressed in the source is not to be pressed here.
            settling = manager.desktops.settle(branch, run.source.id)
            await asyncio.gather(readiness.desktop_ready(branch, token, readiness.FIRST_FRAME_SECONDS, report), settling)
        except EngineError as error:
            if branch.state is State.STARTING:
                branch.move_to(State.FAILED)
                branch.error = error.message
            run.errors[branch.id] = error.message
        else:
            if branch.state is State.STARTING:
                branch.stream_token = token
                branch.move_to(State.READY)
                branch.phase = ""
        if branch.id in manager.workspaces:
            await manager.changed(branch)


def _number(value: object) -> float | None:
    """A time the native program reported, in ms."""
    return round(float(value), 3) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _while_made(pids: int | None) -> int | None:
    """How many processes a branch may have until it is one, when it may have `pids` from then on.

    An orphan, and the first of a group or session whose leader has ended, comes from a process that ends at once or when the branch
    begins to run: two for each at most. A source at its limit could not be forked otherwise.
    """
    return None if pids is None else 3 * pids + _MAKERS
