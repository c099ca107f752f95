"""After a start: find every workspace again, finish what was being removed, take back what was half made.

Containers do not depend on the engine: they go on while it is away. What an earlier engine was doing when it was killed
is in the journal; whatever exists under an id without a record belongs to nobody and is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path

import psutil

from engine import syscalls
from engine.errors import EngineError, Internal
from engine.livefork import tidy
from engine.manager import Manager
from engine.threads import in_thread
from engine.workspace import State, Workspace, now

log = logging.getLogger(__name__)

_KILL_SECONDS = 5


async def recover(manager: Manager) -> None:
    """Bring the manager in line with what there is. Raises nothing for a single workspace: that one is `failed`."""
    await asyncio.to_thread(_kill_livefork, manager)
    await _take_back(manager)
    records = [Workspace.from_record(record) for record in await manager.database.workspaces()]
    for workspace in records:
        manager.workspaces[workspace.id] = workspace
    for workspace in records:
        await _adopt(manager, workspace)
    await _remove_strays(manager)
    for workspace in records:
        if workspace.state is State.REMOVING:
            log.info("finishing the removal of %s", workspace.id)
            with contextlib.suppress(EngineError):
                await manager.finish_removal(workspace)


def _kill_livefork(manager: Manager) -> None:
    """End the fork programs of a killed engine: their sources run on, the branches are taken back below."""
    program = str(manager.tools.livefork.resolve())
    logs = str(manager.config.run / "livefork-")
    found: dict[int, psutil.Process] = {}
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            if os.readlink(f"/proc/{pid}/exe") == program and any(name.startswith(logs) for name in _open_files(pid)):
                found[pid] = psutil.Process(pid)
    # One that works dies with the one that waits for it, as soon as the source is safe (native/src/shield.h).
    workers = {pid for pid, process in found.items() if _parent(process) in found}
    for pid in sorted(found, key=workers.__contains__):
        with contextlib.suppress(psutil.Error):
            if pid not in workers or not _ended(found[pid]):
                found[pid].kill()
                found[pid].wait(_KILL_SECONDS)


def _parent(process: psutil.Process) -> int:
    """0 when it has ended."""
    try:
        return process.ppid()
    except psutil.Error:
        return 0


def _ended(process: psutil.Process) -> bool:
    try:
        process.wait(_KILL_SECONDS)
    except psutil.TimeoutExpired:
        return False
    return True


def _open_files(pid: int) -> list[str]:
    """What the descriptors of a process are: livefork's stderr is a file in its engine's run directory."""
    directory = Path(f"/proc/{pid}/fd")
    names = []
    for entry in os.scandir(directory):
        with contextlib.suppress(OSError):
            names.append(os.readlink(entry.path))
    return names


async def _take_back(manager: Manager) -> None:
    """Undo launches and forks that an earlier engine did not finish."""
    for entry, operation, data in await manager.database.journal():
        for identity in data.get("ids", []):
            log.info("taking back %s of an unfinished %s", identity, operation)
            with contextlib.suppress(EngineError):
                await manager.destroy(identity)
            await manager.database.delete_workspace(identity, now(), forget=True)
        await manager.database.journal_end(entry)


async def _adopt(manager: Manager, workspace: Workspace) -> None:
    """Match one record with its processes."""
    if workspace.state in (State.REMOVING, State.GONE):
        workspace.state = State.REMOVING
        return
    had = workspace.record()
    if not _runs(workspace):
        if workspace.state in (State.STARTING, State.READY, State.FORKING, State.CREATED):
            workspace.state = State.STOPPED
            workspace.error = workspace.error or "its first process ended while the engine was away"
            workspace.phase = ""
    else:
        # The fork that was under way is taken back by its journal entry.
        if workspace.state is State.FORKING:
            await tidy(manager.tools.livefork, workspace.pid)
            workspace.state = State.READY
        # The engine may have been ended between the one and the other; what was not told to have come about is taken back.
        try:
            await in_thread(lambda: manager.cgroups.freeze(workspace.id, workspace.paused))
        except OSError as error:
            log.error("whether %s stands still cannot be set: %s", workspace.id, error)
        try:
            await manager.network.adopt(workspace.id, workspace.network, workspace.published(), workspace.local_ports())
        except EngineError as error:
            log.error("network of %s: %s", workspace.id, error.message)
            workspace.error = f"its network could not be taken over: {error.message}"
        with contextlib.suppress(ProcessLookupError):
            manager.watch(workspace)
        if workspace.state is State.STARTING:
            manager.resume_start(workspace)
    if workspace.record() != had:
        await manager.changed(workspace)


def _runs(workspace: Workspace) -> bool:
    """Whether pid 1 is still the process we started: a pid alone may have been given to another."""
    if not workspace.pid:
        return False
    try:
        if syscalls.start_time(workspace.pid) != workspace.pid_start:
            return False
        return psutil.Process(workspace.pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except (OSError, psutil.Error, ValueError, IndexError):
        return False


async def _remove_strays(manager: Manager) -> None:
    """Remove containers, layers, groups, namespaces and run directories that no workspace owns."""
    known = set(manager.workspaces)

    def found() -> set[str]:
        names = manager.runtime.containers() | set(manager.storage.layers()) | manager.cgroups.names()
        with contextlib.suppress(OSError):
            names.update(entry.name for entry in os.scandir(manager.config.run / "workspaces"))
        return names

    for identity in sorted(await asyncio.to_thread(found) - known):
        log.info("removing what is left of %s", identity)
        try:
            await manager.destroy(identity)
        except Internal as error:
            log.error("%s", error.message)
    await manager.network.prune(known)
