"""Containers prepared for branches: network namespace, group, mounts and a restorer that waits on its socket.

crun takes 30-60 ms for one, a fork of a small workspace a few: so a few are kept ready, and crun is not on a fork's path.
An id is fixed when its container is prepared; ids of containers never used are not used again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine import bundle, syscalls
from engine.cgroups import Limits
from engine.errors import EngineError, Internal
from engine.manager import Manager
from engine.network import PortRequest
from engine.threads import in_thread

log = logging.getLogger(__name__)

_KEPT_READY = 2
_POLICY = "open"
# Until a branch is assigned: enough for the restorer, too little to be a way to use memory unnoticed.
_WAITING = Limits(memory=256 << 20, pids=64)


@dataclass
class Stage:
    """One waiting container. `control` is our end of the restorer's socket."""

    id: str
    pid: int
    pid_start: int
    control: socket.socket
    policy: str

    def alive(self) -> bool:
        try:
            return syscalls.start_time(self.pid) == self.pid_start
        except (OSError, ValueError, IndexError):
            return False


class Stages:
    """Prepares containers on demand and keeps some ready."""

    def __init__(self, manager: Manager, kept_ready: int = _KEPT_READY) -> None:
        self._manager = manager
        self._kept_ready = kept_ready
        self._ready: deque[Stage] = deque()
        self._refill: asyncio.Task[None] | None = None
        self._closed = False

    async def take(self, count: int, policy: str) -> list[Stage]:
        """`count` containers with that network policy: ready ones first, the others made now. All or none; raises EngineError."""
        taken: list[Stage] = []
        while self._ready and len(taken) < count and policy == _POLICY:
            stage = self._ready.popleft()
            if stage.alive():
                taken.append(stage)
            else:
                self._manager.background(self.discard(stage))
        missing = [self._prepare(policy) for _ in range(count - len(taken))]
        made = await asyncio.gather(*missing, return_exceptions=True)
        taken += [item for item in made if isinstance(item, Stage)]
        failures = [item for item in made if isinstance(item, BaseException)]
        if failures:
            await asyncio.gather(*(self.discard(stage) for stage in taken))
            raise failures[0]
        # Ready ones may be older than others made meanwhile: ids of a batch ascend with the branches' indexes.
        return sorted(taken, key=lambda stage: int(stage.id.partition("-")[2]))

    async def _prepare(self, policy: str) -> Stage:
        manager = self._manager
        number = await manager.database.next_number("workspace")
        identity = f"ws-{number}"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                network = await manager.network.create(identity, policy)
                directory = manager.run_dir(identity) / "bundle"
                config = bundle.stage_config(str(manager.tools.stage), network.path, manager.cgroups.oci_path(identity))
                await in_thread(lambda: bundle.write_config(directory, config))
                await manager.prepare_groups(identity, _WAITING)
                pid = await manager.runtime.start(identity, directory, None, theirs.fileno())
            start = syscalls.start_time(pid)
        except BaseException as error:
            ours.close()
            await asyncio.shield(_quietly(manager.destroy(identity)))
            if isinstance(error, (OSError, IndexError)):
                raise Internal(f"the restorer for a branch ended at once: {error}") from error
            raise
        return Stage(identity, pid, start, ours, policy)

    async def assign(self, stage: Stage, limits: Limits, hostname: str, ports: Sequence[PortRequest]) -> dict[int, int]:
        """Make a taken container that of one branch: its limits, host name and published ports; {container: host}."""
        manager = self._manager

        def local() -> None:
            manager.cgroups.set_limits(stage.id, limits)
            syscalls.set_hostname_of(stage.pid, hostname)

        try:
            await in_thread(local)
        except OSError as error:
            reason = str(error) if stage.alive() else "its restorer has ended"
            raise Internal(f"cannot set up the container of {stage.id}: {reason}") from error
        if not ports:
            return {}
        return await manager.network.publish(stage.id, ports)

    async def discard(self, stage: Stage) -> None:
        """Remove a container that did not become a branch, with all that an unfinished fork gave it."""
        stage.control.close()
        await _quietly(self._manager.destroy(stage.id))

    def refill(self) -> None:
        """Make containers in the background until enough are ready; call when a workspace was launched or forked."""
        if self._closed or (self._refill is not None and not self._refill.done()):
            return
        self._refill = self._manager.background(self._fill())

    async def _fill(self) -> None:
        while len(self._ready) < self._kept_ready and not self._closed:
            try:
                self._ready.append(await self._prepare(_POLICY))
            except EngineError as error:
                log.warning("cannot keep a container ready for the next fork: %s", error.message)
                return

    async def close(self) -> None:
        """Remove the ready containers."""
        self._closed = True
        if self._refill is not None:
            self._refill.cancel()
            await asyncio.wait({self._refill})
        await asyncio.gather(*(self.discard(stage) for stage in self._ready))
        self._ready.clear()


async def _quietly(work: object) -> None:
    """What cannot be removed must not hide why it had to be."""
    try:
        await work  # type: ignore[misc]
    except EngineError:
        pass  # destroy() has logged it
    except Exception:
        log.exception("removing a container that did not become a branch")
