"""The desktops of an engine's workspaces, for agents: batches of actions, each carried out once, nothing left pressed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator
from typing import Any

from engine import syscalls
from engine.desktop import xdesktop
from engine.desktop.actions import Action, Batch
from engine.desktop.clipboard import Clipboard
from engine.desktop.held import Held, Interrupted
from engine.desktop.interface import Window
from engine.desktop.runner import Runner
from engine.errors import Conflict, EngineError, Unavailable
from engine.process import Executor
from engine.workspace import State, Workspace
from engine.x11 import XError

log = logging.getLogger(__name__)

_DISPLAY = ":1"
# A whole batch, typing and waiting included; the portal waits longer than this for its answer.
BATCH_SECONDS = 150.0
# What an agent pressed and did not come back to is released after so long: it has gone.
EXPIRY_SECONDS = 60.0
_RELEASE_SECONDS = 5.0
_LOOK_SECONDS = 5.0


class Desktops:
    """Keeps what is held in each workspace."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._held: dict[str, Held] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def act(self, workspace: Workspace, batch: Batch) -> dict[str, Any]:
        """Carry actions out in order, up to the first that fails: {"results", "screen", "cursor"}. After a failure nothing is held.

        Raises BadRequest (a place outside: nothing was done), Conflict, LimitReached, Unavailable before the first; whatever comes later is in the results.
        """
        self._check(workspace)
        held = self._held.setdefault(workspace.id, Held(workspace=workspace))
        report, epoch = _Report(batch), held.epoch
        async with held.turn():
            self._check(workspace)
            if held.epoch != epoch:
                raise Conflict(f"control of {workspace.id} changed hands: nothing was done")
            held.stop.clear()
            _forget_expiry(held)
            try:
                async with asyncio.timeout(BATCH_SECONDS), self._opened(workspace, held) as desktop:
                    runner = Runner(desktop, Clipboard(self._executor, workspace, _display(workspace)), held, batch.size)
                    report.screen = list(await runner.check(batch.actions))
                    for action in batch.actions:
                        report.done(action, await runner.run(action))
                    await desktop.finish()
                    report.cursor, report.screen = await runner.seen()
            except (EngineError, XError, Interrupted, TimeoutError) as error:
                await self._let_go(workspace, held)
                refusal = _refusal(workspace, error)
                if report.screen is None:
                    raise refusal from None
                report.failed(refusal)
            except BaseException:
                await self._let_go(workspace, held)
                raise
            if held.anything:
                held.expiry = asyncio.get_running_loop().call_later(EXPIRY_SECONDS, self._expired, workspace)
        return report.public()

    async def release(self, workspace: Workspace) -> None:
        """Stop what is under way and let go of everything that an agent holds: control changes hands. Raises nothing that a dead desktop causes."""
        held = self._held.get(workspace.id)
        if held is None:
            return
        held.epoch += 1
        held.stop.set()
        async with held.lock:
            _forget_expiry(held)
            await self._let_go(workspace, held)

    async def windows(self, workspace: Workspace) -> list[Window]:
        """Its windows, the lowest first, also while a batch is under way. Raises Conflict, Unavailable."""
        self._check(workspace)
        try:
            async with asyncio.timeout(_LOOK_SECONDS), self._opened(workspace, Held()) as desktop:
                return await desktop.windows()
        except (XError, TimeoutError) as error:
            raise Unavailable(f"the windows of {workspace.id} are not known: {error or 'no answer in time'}; see `tclone logs {workspace.id}`") from None

    async def settle(self, branch: Workspace, source: str) -> None:
        """In a new branch nothing is pressed, whatever was in the source, and no keycode is borrowed."""
        held = self._held.get(source)
        borrowed = set(held.borrowed) if held is not None else set()
        with contextlib.suppress(EngineError, XError, TimeoutError):
            async with asyncio.timeout(_RELEASE_SECONDS), self._opened(branch, Held()) as desktop:
                await desktop.let_go_of_all()
                await desktop.let_go([], [], borrowed)

    def forget(self, workspace: str) -> None:
        """Drop what is kept for a workspace that is gone."""
        held = self._held.pop(workspace, None)
        if held is not None:
            held.stop.set()
            _forget_expiry(held)

    async def close(self) -> None:
        """Stop everything and let go of everything: nobody would do it later."""
        await asyncio.gather(*(self.release(held.workspace) for held in list(self._held.values()) if held.workspace is not None))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Inside

    def _check(self, workspace: Workspace) -> None:
        if not workspace.desktop:
            raise Conflict(f"{workspace.id} has no desktop: its image {workspace.image} is headless")
        workspace.require_awake("act in")
        if workspace.state is not State.READY:
            raise Conflict(f"{workspace.id} takes no input now: it is {workspace.state.value}; try again when it is ready")

    @contextlib.asynccontextmanager
    async def _opened(self, workspace: Workspace, held: Held) -> AsyncIterator[xdesktop.XDesktop]:
        try:
            root = syscalls.open_of_process(workspace.pid, workspace.pid_start, "root", os.O_PATH | os.O_DIRECTORY)
        except OSError:
            raise Conflict(f"{workspace.id} has ended; `tclone logs {workspace.id}` may say why") from None
        try:
            async with xdesktop.opened(root, _display(workspace), held) as desktop:
                yield desktop
        finally:
            os.close(root)

    async def _let_go(self, workspace: Workspace, held: Held) -> None:
        """By a connection of its own: the one that failed may be in the midst of anything."""
        if not held.anything:
            return
        keys, buttons, borrowed = list(held.keys), list(held.buttons), set(held.borrowed)
        try:
            async with asyncio.timeout(_RELEASE_SECONDS), self._opened(workspace, Held()) as desktop:
                await desktop.let_go(keys, buttons, borrowed)
        except (EngineError, XError, TimeoutError) as error:
            log.warning("%s: what an agent held could not be released: %s", workspace.id, error)
        held.keys.clear()
        held.buttons.clear()
        held.borrowed.clear()

    def _expired(self, workspace: Workspace) -> None:
        task = asyncio.ensure_future(self.release(workspace))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _display(workspace: Workspace) -> str:
    return workspace.env.get("DISPLAY", _DISPLAY)


def _forget_expiry(held: Held) -> None:
    if held.expiry is not None:
        held.expiry.cancel()
        held.expiry = None


def _refusal(workspace: Workspace, error: Exception) -> EngineError:
    """What an agent is told of a failure of its actions."""
    if isinstance(error, EngineError):
        return error
    if isinstance(error, Interrupted):
        return Conflict(f"control of {workspace.id} changed hands: what was under way was stopped and everything released")
    if isinstance(error, TimeoutError):
        return Unavailable(f"the actions in {workspace.id} did not end within {BATCH_SECONDS:g} s: what was under way was stopped")
    return Unavailable(f"the desktop of {workspace.id} failed: {error}; see `tclone logs {workspace.id}`")


class _Report:
    """What became of each action. Nothing was begun while `screen` is None."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._results: list[dict[str, Any]] = []
        self.screen: list[int] | None = None
        self.cursor: list[int] | None = None

    def done(self, action: Action, known: dict[str, Any]) -> None:
        self._results.append({"action": action.action, "ok": True, **known})

    def failed(self, error: EngineError) -> None:
        """The one after those that are done; or the last, when what follows all of them failed."""
        del self._results[len(self._batch.actions) - 1 :]
        self._results.append({"action": self._batch.actions[len(self._results)].action, "ok": False, "error": error.to_wire()})
        self._results += [{"action": action.action, "ok": False, "skipped": True} for action in self._batch.actions[len(self._results) :]]

    def public(self) -> dict[str, Any]:
        return {"results": self._results, "screen": self.screen, "cursor": self.cursor}
