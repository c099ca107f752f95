"""The event stream: numbered, kept for a while so that a watcher who comes back misses nothing."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

_KEPT = 4096
_QUEUE = 1024


class Watcher:
    """One reader of the stream. `queue` ends with None when the reader was too slow and must connect again."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(_QUEUE + 1)
        self.lost = False

    def offer(self, event: dict[str, Any]) -> None:
        if self.lost:
            return
        if self.queue.qsize() >= _QUEUE:
            self.lost = True
            self.queue.put_nowait(None)
            return
        self.queue.put_nowait(event)


class Events:
    """Publish and watch; used from the event loop only."""

    def __init__(self, snapshot: Callable[[], list[dict[str, Any]]]) -> None:
        # Numbers go on across restarts without being stored: a clock in ms is past anything an earlier engine handed out.
        self._sequence = int(time.time() * 1000)
        self._first = self._sequence
        self._kept: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._watchers: set[Watcher] = set()
        self._snapshot = snapshot
        # Builds and imports of images that are under way, by name: the data of the last `build` event of each.
        self.builds: dict[str, dict[str, Any]] = {}

    @property
    def sequence(self) -> int:
        return self._sequence

    def publish(self, kind: str, workspace: str | None, data: Any) -> None:
        self._sequence += 1
        event: dict[str, Any] = {"seq": self._sequence, "time": round(time.time(), 3), "type": kind}
        if workspace is not None:
            event["workspace"] = workspace
        event["data"] = data
        self._kept.append(event)
        for watcher in self._watchers:
            watcher.offer(event)

    def kept(self) -> list[dict[str, Any]]:
        """What is remembered, the oldest first."""
        return list(self._kept)

    def build(self, image: str, state: dict[str, Any]) -> None:
        """Publish how far the build of an image is: `phase`, `detail`, `elapsed_ms`, `done`, `error` (a message, or None)."""
        data = {"image": image, **state}
        if state["done"] or state["error"] is not None:
            self.builds.pop(image, None)
        else:
            self.builds[image] = data
        self.publish("build", None, data)

    def watch(self, since: int | None) -> Watcher:
        """A watcher that gets first the snapshot or, when `since` is still known, everything after it."""
        watcher = Watcher()
        oldest = self._kept[0]["seq"] if self._kept else self._sequence + 1
        known = since is not None and self._first <= since <= self._sequence and since >= oldest - 1
        missed = [event for event in self._kept if known and event["seq"] > since]  # type: ignore[operator]
        if known and len(missed) < _QUEUE // 2:
            for event in missed:
                watcher.offer(event)
        else:
            watcher.offer({"type": "snapshot", "seq": self._sequence, "workspaces": self._snapshot(), "builds": list(self.builds.values())})
        self._watchers.add(watcher)
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def close(self) -> None:
        """Tell every watcher that the engine goes away."""
        for watcher in self._watchers:
            if not watcher.lost:
                watcher.lost = True
                watcher.queue.put_nowait(None)
