"""What tells of rights that have ended: sessions, API tokens and share links, each known by its public id."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

_QUEUE = 256
# A reason that ends what is open, but not the right itself.
ROLE = "role"

Ended = tuple[str, str]  # public id, reason
Queue = asyncio.Queue[Ended | None]


class Endings:
    """Everything that is open hangs on one of these ids and closes when it is told here. Used from the event loop only."""

    def __init__(self) -> None:
        self._watchers: set[Queue] = set()

    def tell(self, identity: str, reason: str) -> None:
        """This right is over, or with ROLE less than it was. Reasons: logout, expired, revoked, password, disabled, role."""
        for queue in self._watchers:
            _offer(queue, (identity, reason))

    @contextlib.asynccontextmanager
    async def watch(self) -> AsyncIterator[Queue]:
        """A queue of what ends from now on. None: the watcher was too slow, or the portal stops."""
        queue: Queue = asyncio.Queue(_QUEUE + 1)
        self._watchers.add(queue)
        try:
            yield queue
        finally:
            self._watchers.discard(queue)

    def close(self) -> None:
        """The portal stops."""
        for queue in self._watchers:
            _offer(queue, None)


async def until(identity: str, ended: Queue) -> bool:
    """True when the right `identity` has ended; False when the watch broke and what hangs on it should come back."""
    while (item := await ended.get()) is not None:
        if item[0] == identity:
            return True
    return False


def _offer(queue: Queue, item: Ended | None) -> None:
    if queue.qsize() >= _QUEUE:
        item = None
    with contextlib.suppress(asyncio.QueueFull):
        queue.put_nowait(item)
