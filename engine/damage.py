"""Whether a screen changes, told by its X server (the DAMAGE extension) instead of by looking again and again."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

from engine.desktop.connection import Connection, connected

_QUERY_VERSION, _CREATE, _SUBTRACT = 0, 1, 3
# One event until it is taken back, however much is drawn.
_NON_EMPTY = 3


class Damage:
    """Of the root window and all that is on it. `watching` makes it."""

    def __init__(self, x: Connection, extension: int, first_event: int, identity: int) -> None:
        self._x = x
        self._extension = extension
        self._event = first_event
        self._identity = identity

    async def wait(self, seconds: float) -> bool:
        """Whether something was drawn since the last call (or the beginning); waits for it, at most so long. Raises XError."""
        try:
            async with asyncio.timeout(seconds):
                while (await self._x.event())[0] & 0x7F != self._event:
                    pass
        except TimeoutError:
            return False
        await self._x.send(struct.pack("<BBHIII", self._extension, _SUBTRACT, 4, self._identity, 0, 0))
        return True


@contextlib.asynccontextmanager
async def watching(root_fd: int, display: str) -> AsyncIterator[Damage]:
    """From here on whatever is drawn on `display` is noticed. Raises XError, also when the server has no such extension."""
    async with connected(root_fd, display) as x:
        extension, event = await x.extension_and_event("DAMAGE")
        await x.ask(struct.pack("<BBHII", extension, _QUERY_VERSION, 3, 1, 1))
        identity = x.screen.identities
        await x.send(struct.pack("<BBHIIBxxx", extension, _CREATE, 4, identity, x.screen.root, _NON_EMPTY))
        await x.settled()
        yield Damage(x, extension, event, identity)
