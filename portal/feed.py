"""What the engine is doing, kept ready for pages: its workspaces, the phases of what is under way, and a numbered stream of changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from engine.errors import EngineError
from portal.errors import PortalError
from portal.node import Node, checked_fork, checked_workspace

log = logging.getLogger(__name__)

_KEPT = 2048
_QUEUE = 512
_MOST_PHASES = 64
_MOST_BUILDS = 32
_LONGEST_NAME = 80
_AGAIN_SECONDS = 1.0
_PROBE_UP_SECONDS = 5.0
_PROBE_DOWN_SECONDS = 0.5

Event = dict[str, Any]
Queue = asyncio.Queue[Event | None]


class Feed:
    """State and events for all pages. Used from the event loop only."""

    def __init__(self, node: Node) -> None:
        self._node = node
        # Numbers go on across restarts without being stored: a clock in ms is past what an earlier process handed out.
        self._sequence = self._first = int(time.time() * 1000)
        self._kept: deque[Event] = deque(maxlen=_KEPT)
        self._queues: set[Queue] = set()
        self._workspaces: dict[str, dict[str, Any]] = {}
        self._operations: dict[str, dict[str, Any]] = {}
        self._engine = "down"
        self._message = "waiting for the engine"
        # Whether a first list of workspaces has come; before that `up` would show an empty page.
        self._known = False
        # Set once the engine has listed its workspaces.
        self.listed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.builds: dict[str, dict[str, Any]] = {}
        # What the portal itself knows of workspaces, by kind and id; sent as events of that kind and in the snapshot.
        self._facts: dict[str, dict[str, Any]] = {}

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._follow(), name="engine events"),
            asyncio.create_task(self._probe(), name="engine probe"),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for queue in self._queues:
            _offer(queue, None)

    @property
    def engine(self) -> str:
        """`up` or `down`."""
        return self._engine

    def workspace(self, identity: str) -> dict[str, Any] | None:
        return self._workspaces.get(identity)

    def workspaces(self) -> list[dict[str, Any]]:
        """All that there are now."""
        return list(self._workspaces.values())

    def snapshot(self) -> Event:
        """Everything a page needs to begin."""
        return {
            "type": "snapshot",
            "seq": self._sequence,
            "workspaces": list(self._workspaces.values()),
            "operations": self._operations,
            "builds": list(self.builds.values()),
            "facts": {kind: dict(known) for kind, known in self._facts.items()},
            "engine": self._engine,
            "message": self._message,
        }

    @contextlib.asynccontextmanager
    async def watch(self, since: int | None) -> AsyncIterator[Queue]:
        """A queue that begins with a snapshot, or with `resumed` and what came after `since`. None in it: connect again."""
        queue: Queue = asyncio.Queue(_QUEUE + 1)
        for event in self._beginning(since):
            queue.put_nowait(event)
        self._queues.add(queue)
        try:
            yield queue
        finally:
            self._queues.discard(queue)

    def publish(self, kind: str, **rest: Any) -> None:
        """Number an event and give it to every page."""
        self._sequence += 1
        event = {"type": kind, "seq": self._sequence, **rest}
        self._kept.append(event)
        for queue in self._queues:
            _offer(queue, event)

    def state(self, kind: str, identity: str, value: Any) -> None:
        """Tell pages a fact of a workspace when it is news; None: there is no such fact any more."""
        known = self._facts.setdefault(kind, {})
        if known.get(identity) == value:
            return
        if value is None:
            known.pop(identity, None)
        else:
            known[identity] = value
        self.publish(kind, workspace=identity, data=value)

    def show(self, identity: str) -> None:
        """Tell of a workspace again: somebody sees it from now on."""
        if identity in self._workspaces:
            self.publish("workspace", workspace=identity, data=self._workspaces[identity])

    def _beginning(self, since: int | None) -> list[Event]:
        if since is None or not self._first <= since <= self._sequence:
            return [self.snapshot()]
        missed = [event for event in self._kept if event["seq"] > since]
        if len(missed) != self._sequence - since or len(missed) > _QUEUE // 2:
            return [self.snapshot()]
        return [{"type": "resumed", "seq": since}, *missed]

    # The engine's side

    async def _follow(self) -> None:
        """Take the engine's events. The client reconnects by itself; only nonsense ends its stream."""
        while True:
            try:
                async with contextlib.aclosing(self._node.events()) as events:
                    async for event in events:
                        self._take(event)
            except (EngineError, PortalError) as error:
                self._set_engine("down", error.message)
            except Exception:  # noqa: BLE001 - pages must go on being served, whatever the engine sent
                log.exception("following the engine's events failed")
                self._set_engine("down", "the engine's events make no sense; the portal's log has more")
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _probe(self) -> None:
        """Ask the engine whether it is there: a resumed event stream may say nothing for long, and a stuck engine never does."""
        while True:
            try:
                await self._node.health()
                if self._known:
                    self._set_engine("up", "")
            except (EngineError, PortalError) as error:
                self._set_engine("down", error.message)
            await asyncio.sleep(_PROBE_UP_SECONDS if self._engine == "up" else _PROBE_DOWN_SECONDS)

    def _take(self, event: Event) -> None:
        kind, data, identity = event.get("type"), event.get("data"), event.get("workspace")
        if kind == "disconnected":
            self._set_engine("down", "the connection to the engine is lost; trying again")
            return
        self._known = True
        self._set_engine("up", "")
        if kind == "snapshot":
            self._take_snapshot(event.get("workspaces"))
            self._take_builds(event.get("builds"))
            self.listed.set()
        elif kind == "workspace":
            self._put(checked_workspace(data))
        elif kind == "progress" and isinstance(identity, str) and isinstance(data, dict):
            self._take_progress(identity, data)
        elif kind == "fork":
            result = checked_fork(data)
            source = identity if isinstance(identity, str) else result.get("source")
            self._operations.pop(str(source), None)
            self.publish("fork", workspace=source, data=result)
        elif kind == "gone" and isinstance(identity, str):
            self._drop(identity)
        elif kind == "build" and isinstance(data, dict):
            self.build(data)

    def build(self, told: dict[str, Any]) -> None:
        """Note and publish how far the build of an image is, as the engine's `build` events say it. One that failed is kept until the next of its name."""
        image, elapsed, error = str(told.get("image"))[:_LONGEST_NAME], told.get("elapsed_ms"), told.get("error")
        ended = "done" if told.get("done") is True else "failed" if error is not None else None
        state = {
            "image": image,
            "phase": ended or str(told.get("phase") or "")[:80],
            "detail": str(told.get("detail") or "")[:300],
            "elapsed_ms": elapsed if isinstance(elapsed, int | float) else None,
            "done": ended == "done",
            "error": None if error is None else str(error)[:2000],
        }
        self.builds.pop(image, None)
        if not state["done"]:
            self.builds[image] = state
            if len(self.builds) > _MOST_BUILDS:
                del self.builds[next(iter(self.builds))]
        self.publish("build", **state)

    def _take_builds(self, listed: object) -> None:
        """Those under way, of a snapshot. Others that were have ended while nobody listened: pages ask what became of them."""
        items = [item for item in (listed if isinstance(listed, list) else []) if isinstance(item, dict)]
        now = {str(item.get("image")) for item in items}
        for image, state in list(self.builds.items()):
            if image not in now and state["error"] is None:
                self.build({**state, "detail": "", "done": True})
        for item in items:
            self.build(item)

    def _take_snapshot(self, listed: object) -> None:
        items = [checked_workspace(item) for item in (listed if isinstance(listed, list) else [])]
        current = {item["id"] for item in items if item["state"] != "gone"}
        for identity in [known for known in self._workspaces if known not in current]:
            self._drop(identity)
        for item in items:
            if item != self._workspaces.get(item["id"]):
                self._put(item)

    def _put(self, workspace: dict[str, Any]) -> None:
        identity = workspace["id"]
        if workspace["state"] == "gone":
            self._drop(identity)
            return
        operation = self._operations.get(identity)
        if operation and not _still_under_way(operation["operation"], workspace["state"]):
            del self._operations[identity]
        self._workspaces[identity] = workspace
        self.publish("workspace", workspace=identity, data=workspace)

    def _drop(self, identity: str) -> None:
        self._operations.pop(identity, None)
        for known in self._facts.values():
            known.pop(identity, None)
        if self._workspaces.pop(identity, None) is not None:
            self.publish("gone", workspace=identity, data={})

    def _take_progress(self, identity: str, data: dict[str, Any]) -> None:
        elapsed = data.get("elapsed_ms")
        step = {
            "operation": str(data.get("operation", ""))[:40],
            "phase": str(data.get("phase", ""))[:80],
            "elapsed_ms": elapsed if isinstance(elapsed, int | float) else None,
            "detail": str(data.get("detail") or "")[:300],
        }
        current = self._operations.get(identity)
        if current is None or current["operation"] != step["operation"]:
            current = self._operations[identity] = {"operation": step["operation"], "phases": []}
        current["phases"].append(step)
        del current["phases"][:-_MOST_PHASES]
        self.publish("progress", workspace=identity, data=step)

    def _set_engine(self, state: str, message: str) -> None:
        if state != self._engine or (state == "down" and message != self._message):
            self._engine, self._message = state, message
            self.publish("engine", state=state, message=message)


def _still_under_way(operation: str, state: str) -> bool:
    if operation == "launch":
        return state in ("created", "starting")
    return state not in ("ready", "stopped", "failed", "removing") if operation == "fork" else state != "ready"


def _offer(queue: Queue, event: Event | None) -> None:
    """A page that does not read gets None as its last event and has to come back."""
    if queue.qsize() >= _QUEUE:
        event = None
    with contextlib.suppress(asyncio.QueueFull):
        queue.put_nowait(event)
