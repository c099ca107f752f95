"""What is open, by session and by workspace: so that a session's or a workspace's end closes all of it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from portal.stream.frames import POLICY
from portal.stream.front import NativeRelay
from portal.stream.relay import Relay

_SWEEP_SECONDS = 5.0


@dataclass(eq=False)
class OpenRelay:
    """A relay and whose it is. `expires`: unix seconds after which the session's right to it is over; 0 for never."""

    relay: Relay | NativeRelay
    session: str = ""
    workspace: str = ""
    expires: float = 0.0
    since: float = field(default_factory=time.time)


class Registry:
    """Relays and keep-alive connections of this process. Used from its event loop only."""

    def __init__(self, on_change: Callable[[list[tuple[str, str, int]]], None] = lambda _: None) -> None:
        """`on_change` is called with `opened()` after each desktop's relay that begins or ends."""
        self._on_change = on_change
        self._relays: set[OpenRelay] = set()
        # Connection (any hashable; the HTTP protocol object) to the session that used it and how to close it.
        self._connections: dict[object, tuple[str, str, Callable[[], None]]] = {}
        self._sweeper: asyncio.Task[None] | None = None
        # Bytes of relays that have ended, by workspace.
        self._carried: Counter[str] = Counter()

    def start(self) -> None:
        """Begin to close relays whose right has expired."""
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep())

    async def stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)

    def add(self, entry: OpenRelay) -> None:
        """Keep a relay until its end."""
        self._relays.add(entry)
        entry.relay.done.add_done_callback(lambda _: self._discard(entry))
        self._on_change(self.opened())

    def _discard(self, entry: OpenRelay) -> None:
        self._relays.discard(entry)
        if entry.workspace:
            self._carried[entry.workspace] += entry.relay.carried
        self._on_change(self.opened())

    def opened(self) -> list[tuple[str, str, int]]:
        """Open relays of desktops: (session, workspace, how many)."""
        counted = Counter((entry.session, entry.workspace) for entry in self._relays if entry.session and entry.workspace)
        return sorted((session, workspace, count) for (session, workspace), count in counted.items())

    def hold_connection(self, connection: object, session: str, workspace: str, close: Callable[[], None]) -> None:
        """Remember that a keep-alive connection served `session`; forget it with `drop_connection`."""
        self._connections[connection] = (session, workspace, close)

    def drop_connection(self, connection: object) -> None:
        self._connections.pop(connection, None)

    def end_session(self, session: str, reason: str) -> int:
        """Close everything of a session, within a second. The count of relays."""
        self._close_connections(lambda owner, _: owner == session)
        return self._close(lambda entry: entry.session == session, POLICY, f"session ended: {reason}")

    def keep_sessions(self, live: Iterable[str]) -> int:
        """Close everything of sessions that are not in `live`. The count of relays."""
        known = set(live)
        self._close_connections(lambda owner, _: bool(owner) and owner not in known)
        return self._close(lambda entry: bool(entry.session) and entry.session not in known, POLICY, "session ended")

    def end_workspace(self, workspace: str, code: int, reason: str) -> int:
        """Close everything that leads to a workspace. The count of relays."""
        self._close_connections(lambda _, place: place == workspace)
        return self._close(lambda entry: entry.workspace == workspace, code, reason)

    def workspaces(self) -> set[str]:
        """The workspaces that an open relay leads to."""
        return {entry.workspace for entry in self._relays if entry.workspace}

    def traffic(self) -> dict[str, int]:
        """Bytes that relays have carried for each workspace, both ways, since this process began."""
        carried = Counter(self._carried)
        for entry in self._relays:
            if entry.workspace:
                carried[entry.workspace] += entry.relay.carried
        return dict(carried)

    def forget_traffic(self, present: Iterable[str]) -> None:
        """Forget what was carried for workspaces that are not in `present`; ids are never used again."""
        for workspace in self._carried.keys() - set(present):
            del self._carried[workspace]

    async def drain(self, code: int, reason: str, seconds: float) -> None:
        """Close every relay; those still there after `seconds` are dropped."""
        relays = [entry.relay for entry in self._relays]
        for relay in relays:
            relay.close(code, reason)
        if relays:
            await asyncio.wait([relay.done for relay in relays], timeout=seconds)
        for relay in relays:
            relay.abort()

    def counts(self) -> dict[str, int]:
        """Figures for the health endpoint; `buffered` is bytes."""
        return {
            "relays": len(self._relays),
            "websockets": sum(entry.relay.websocket for entry in self._relays),
            "sessions": len({entry.session for entry in self._relays if entry.session}),
            "connections": len(self._connections),
            "buffered": sum(entry.relay.buffered for entry in self._relays),
        }

    def _close(self, wanted: Callable[[OpenRelay], bool], code: int, reason: str) -> int:
        chosen = [entry for entry in self._relays if wanted(entry)]
        for entry in chosen:
            entry.relay.close(code, reason)
        return len(chosen)

    def _close_connections(self, wanted: Callable[[str, str], bool]) -> None:
        for connection, (session, workspace, close) in list(self._connections.items()):
            if wanted(session, workspace):
                self._connections.pop(connection, None)
                close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = time.time()
            self._close(lambda entry: 0 < entry.expires <= now, POLICY, "session expired")
