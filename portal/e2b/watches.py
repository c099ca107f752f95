"""Directories that clients watch: by a program inside, with the rights of who asks, which tells what it is told by the kernel."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from typing import Any

from engine.errors import EngineError, Unavailable
from engine.waiting import seen, stopped
from portal.e2b.connect import RpcError
from portal.errors import NotThere, PortalError, TooMany
from portal.inside import Inside

Event = dict[str, Any]

MOST_WATCHERS = 16
# What waits for a client that asks now and then, and how long it may not ask.
MOST_EVENTS = 10_000
IDLE_SECONDS = 3600.0
# How long one that has ended is still there to say why.
_KEPT_SECONDS = 600.0
_PROGRAM = "/usr/libexec/tclone/init"
_KINDS = {b"C": "CREATE", b"W": "WRITE", b"R": "REMOVE", b"N": "RENAME", b"A": "CHMOD"}
_LONGEST_EVENT = 8192
# Exit status of a program of an engine before this one, which does not know what is asked of it.
_UNKNOWN = 2


class Watcher:
    """One that is asked for its events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.failure: PortalError | EngineError | None = None
        self.task: asyncio.Task[None] | None = None
        self._limit: asyncio.Timeout | None = None

    async def run(self, events: AsyncIterator[Event], began: asyncio.Future[None]) -> None:
        """Keep what comes, until nobody asks any more. Raises what ends the events, and RpcError when there are too many."""
        try:
            async with asyncio.timeout(IDLE_SECONDS) as self._limit:
                async for event in events:
                    if not began.done():
                        began.set_result(None)
                    if "filesystem" not in event:
                        continue
                    if len(self.events) >= MOST_EVENTS:
                        raise RpcError("resource_exhausted", f"more than {MOST_EVENTS} events were not asked for: watch anew", 429)
                    self.events.append(event["filesystem"])
        except TimeoutError:
            self.failure = NotThere(f"nobody asked for its events within {IDLE_SECONDS / 60:g} minutes: watch anew")

    def taken(self) -> list[Event]:
        """What has come since the last time. Raises why it watches no more, once all that came before has been taken."""
        if self._limit is not None and self.task is not None and not self.task.done():
            self._limit.reschedule(asyncio.get_running_loop().time() + IDLE_SECONDS)
        events, self.events = self.events, []
        if not events and self.failure is not None:
            raise self.failure
        return events


class Watches:
    """By workspace."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self._watchers: dict[str, dict[str, Watcher]] = {}
        self._count: dict[str, int] = {}

    async def create(self, workspace: str, path: bytes, below: bool, user: str) -> str:
        """The id of a new watcher, which watches already. Raises TooMany, RpcError, EngineError."""
        watcher, began = Watcher(), asyncio.get_running_loop().create_future()
        began.add_done_callback(seen)
        identity = secrets.token_hex(16)
        watcher.task = asyncio.create_task(self._keep(workspace, identity, watcher, path, below, user, began), name=f"watcher in {workspace}")
        try:
            await asyncio.shield(began)
        except BaseException:
            watcher.task.cancel()
            raise
        self._watchers.setdefault(workspace, {})[identity] = watcher
        return identity

    def taken(self, workspace: str, identity: object) -> list[Event]:
        """Raises NotThere, and why it watches no more."""
        watcher = self._find(workspace, identity)
        try:
            return watcher.taken()
        except (PortalError, EngineError):
            self._forget(workspace, identity)
            raise

    def remove(self, workspace: str, identity: object) -> None:
        """Raises NotThere."""
        watcher = self._find(workspace, identity)
        self._forget(workspace, identity)
        if watcher.task is not None:
            watcher.task.cancel()

    async def close(self) -> None:
        tasks = [one.task for watchers in self._watchers.values() for one in watchers.values() if one.task is not None]
        await stopped(*tasks)

    @contextlib.asynccontextmanager
    async def watching(self, workspace: str, path: bytes, below: bool, user: str) -> AsyncIterator[AsyncIterator[Event]]:
        """Its events, as E2B's stream has them, the start among them. Raises TooMany, RpcError, EngineError, here or while they are taken."""
        if self._count.get(workspace, 0) >= MOST_WATCHERS:
            raise TooMany(f"{MOST_WATCHERS} directories of {workspace} are watched; stop one")
        self._count[workspace] = self._count.get(workspace, 0) + 1
        try:
            argv = [_PROGRAM, "--watch-below" if below else "--watch", path.decode(errors="surrogateescape")]
            async with self._inside.command(workspace, argv, user=user) as session:
                await session.close_stdin()
                yield self._told(workspace, session)
        finally:
            self._count[workspace] -= 1
            if not self._count[workspace]:
                del self._count[workspace]

    async def _told(self, workspace: str, session: Any) -> AsyncIterator[Event]:
        left, said = b"", b""
        async for number, data in session.output():
            if number != 1:
                said = (said + data)[:1000]
                continue
            *events, left = (left + data).split(b"\0")
            for event in events:
                if event[:1] == b"S":
                    yield {"start": {}}
                elif event[:1] in _KINDS:
                    yield {"filesystem": {"name": event[1:].decode(errors="replace"), "type": f"EVENT_TYPE_{_KINDS[event[:1]]}"}}
            if len(left) > _LONGEST_EVENT:
                raise Unavailable(f"what watches in {workspace} says what is no event")
        status = session.exit_code()
        if status == _UNKNOWN:
            raise RpcError("unimplemented", f"{workspace} was launched by an older TClone, whose workspaces cannot be watched; launch it anew", 501)
        if status != 0:
            raise RpcError("failed_precondition", said.decode(errors="replace").strip()[:300] or f"what watches in {workspace} ended with {status}", 400)

    async def _keep(self, workspace: str, identity: str, watcher: Watcher, path: bytes, below: bool, user: str, began: asyncio.Future[None]) -> None:
        try:
            async with self.watching(workspace, path, below, user) as events:
                await watcher.run(events, began)
        except (PortalError, EngineError) as error:
            watcher.failure = watcher.failure or error
        finally:
            if not began.done():
                began.set_exception(watcher.failure or Unavailable("it could not be watched"))
            asyncio.get_running_loop().call_later(_KEPT_SECONDS, self._forget, workspace, identity)

    def _find(self, workspace: str, identity: object) -> Watcher:
        found = self._watchers.get(workspace, {}).get(str(identity))
        if found is None:
            raise NotThere(f"no such watcher in {workspace}; watch the directory anew")
        return found

    def _forget(self, workspace: str, identity: object) -> None:
        watchers = self._watchers.get(workspace, {})
        watchers.pop(str(identity), None)
        if not watchers:
            self._watchers.pop(workspace, None)
