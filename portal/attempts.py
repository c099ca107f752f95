"""How often somebody may try to log in."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

LIMIT = 5
WINDOW_SECONDS = 60.0
# Bounds the memory that an attacker with many addresses can use; the oldest entries go first.
_MOST_ENTRIES = 10_000


class Attempts:
    """Counts attempts by address and user over a sliding minute, or another time (seconds)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, limit: int = LIMIT, window: float = WINDOW_SECONDS) -> None:
        self._clock = clock
        self._limit = limit
        self._window = window
        self._seen: dict[tuple[str, str], deque[float]] = {}

    def take(self, address: str, user: str) -> float:
        """Count one attempt. 0.0 when it may go on, else the seconds until the next may."""
        now = self._clock()
        times = self._seen.pop((address, user), deque())
        while times and times[0] <= now - self._window:
            times.popleft()
        self._seen[(address, user)] = times
        while len(self._seen) > _MOST_ENTRIES:
            del self._seen[next(iter(self._seen))]
        if len(times) >= self._limit:
            return max(times[0] + self._window - now, 1.0)
        times.append(now)
        return 0.0

    def clear(self, address: str, user: str) -> None:
        """A success: the next mistakes count anew."""
        self._seen.pop((address, user), None)
