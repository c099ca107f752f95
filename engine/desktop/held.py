"""What is down at a desktop because an agent pressed it, and which keycodes are borrowed: all of it has to be undone whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from engine.errors import LimitReached
from engine.workspace import Workspace

MOST_WAITING = 16


class Interrupted(Exception):
    """Control of the desktop changed hands, or the workspace goes: what was under way stops."""


@dataclass
class Held:
    """Of one workspace. `keys` and `buttons` in the order in which they were pressed; `stop` ends what is under way.

    `epoch` grows with every change of hands: what was asked for before is not done after it.
    """

    keys: list[int] = field(default_factory=list)
    buttons: list[int] = field(default_factory=list)
    borrowed: set[int] = field(default_factory=set)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    epoch: int = 0
    workspace: Workspace | None = None
    expiry: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """One batch at a time, in the order in which they came. Raises LimitReached when too many wait."""
        if self.waiting >= MOST_WAITING:
            raise LimitReached(f"{MOST_WAITING} batches of actions wait for this desktop already: send the next one when one has ended")
        self.waiting += 1
        try:
            await self.lock.acquire()
        finally:
            self.waiting -= 1
        try:
            yield
        finally:
            self.lock.release()

    @property
    def anything(self) -> bool:
        return bool(self.keys or self.buttons or self.borrowed)

    async def pause(self, seconds: float) -> None:
        """Sleep. Raises Interrupted as soon as what is under way shall stop."""
        if seconds <= 0:
            await asyncio.sleep(0)
        else:
            try:
                await asyncio.wait_for(self.stop.wait(), seconds)
            except TimeoutError:
                return
        if self.stop.is_set():
            raise Interrupted
