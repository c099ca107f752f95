"""How fast somebody may go on: a bucket that fills steadily."""

from __future__ import annotations

import time
from collections.abc import Callable

from portal.errors import TooMany

# Actions of one grant: a burst, then so many a second. A model needs seconds for each; only a loop without end comes near.
BURST, PER_SECOND = 400, 40.0
# Bounds what is remembered; a full bucket need not be.
_MOST_ENTRIES = 10_000


class Rates:
    """By the public id of what let somebody in."""

    def __init__(self, burst: int = BURST, per_second: float = PER_SECOND, clock: Callable[[], float] = time.monotonic, what: str = "actions") -> None:
        self._what = what
        self._burst = burst
        self._per_second = per_second
        self._clock = clock
        self._levels: dict[str, tuple[float, float]] = {}  # what is left, and when that was

    def take(self, grant: str, count: int) -> None:
        """Take `count` out of the bucket. Raises TooMany with the time to wait when it has fewer."""
        now = self._clock()
        level, at = self._levels.pop(grant, (float(self._burst), now))
        level = min(float(self._burst), level + (now - at) * self._per_second)
        enough = count <= level
        self._levels[grant] = (level - count if enough else level, now)
        while len(self._levels) > _MOST_ENTRIES:
            del self._levels[next(iter(self._levels))]
        if not enough:
            wait = (count - level) / self._per_second
            raise TooMany(f"too many {self._what}: {self._per_second:g} a second and {self._burst} at once; try again in {wait:.1f} s", retry_after=wait)
