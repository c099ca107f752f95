"""How many look at each desktop, as the workers of the stream process report it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from portal.feed import Feed

Open = Sequence[tuple[str, str, int]]  # public id of the right, workspace, open viewers


class Viewers:
    """The sum over all workers. A worker's report replaces its one before.

    `stranger`: whether who has this right is somebody else than the workspace's owner, who is to see that he is watched.
    """

    def __init__(self, feed: Feed, stranger: Callable[[str, str], bool]) -> None:
        self._feed = feed
        self._stranger = stranger
        self._reports: dict[object, Open] = {}

    def report(self, worker: object, opened: Open) -> None:
        """What a worker has open now; pages are told where the count has changed."""
        before = self.counts()
        self._reports[worker] = [(str(right), str(workspace), int(count)) for right, workspace, count in opened]
        self._tell(before)

    def forget(self, worker: object) -> None:
        """A worker's connection is gone, and with it what it had open, until it reports again."""
        before = self.counts()
        if self._reports.pop(worker, None) is not None:
            self._tell(before)

    def counts(self) -> Counter[str]:
        """Viewers by workspace."""
        counted: Counter[str] = Counter()
        for _, workspace, count in self._all():
            counted[workspace] += count
        return counted

    def by(self, right: str) -> int:
        """How many look on by this session or share link."""
        return sum(count for one, _, count in self._all() if one == right)

    def _all(self) -> list[tuple[str, str, int]]:
        return [entry for opened in self._reports.values() for entry in opened]

    def _tell(self, before: Counter[str]) -> None:
        now = self.counts()
        for workspace in sorted(before.keys() | now.keys()):
            if before[workspace] != now[workspace]:
                self._feed.publish("viewers", workspace=workspace, data={"viewers": now[workspace]})
            watching = sum(count for right, one, count in self._all() if one == workspace and self._stranger(right, workspace))
            self._feed.state("watched", workspace, watching or None)
