"""What is down at a desktop because an agent pressed it, and which keycodes are borrowed: all of it has to be undone whatever happens."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field


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
    epoch: int = 0
    expiry: asyncio.TimerHandle | None = None

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
