"""Which sessions have a page open, and since when one has none."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

# Nobody asks for how long exactly a session has been away that went so long ago; ended ones are never told of here.
_REMEMBERED_SECONDS = 3600.0


class Presence:
    """Counts the pages (WebSockets) of each session. Times are monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pages: Counter[str] = Counter()
        self._left: dict[str, float] = {}
        self._begun = clock()

    def came(self, session: str) -> None:
        """A page of this session is open."""
        self._pages[session] += 1
        self._left.pop(session, None)

    def left(self, session: str) -> None:
        """One of its pages is closed."""
        self._pages[session] -= 1
        if self._pages[session] <= 0:
            del self._pages[session]
            now = self._clock()
            self._left = {other: at for other, at in self._left.items() if now - at < _REMEMBERED_SECONDS}
            self._left[session] = now

    def absent(self, session: str) -> float:
        """For how long the session has had no page open, in seconds; one that is not remembered counts from this process's start."""
        if session in self._pages:
            return 0.0
        return self._clock() - self._left.get(session, self._begun)
