"""Puts E2B's face together."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from portal.api.actions import Actions
from portal.api.workspaces import Workspaces
from portal.e2b.desktop import Desktop
from portal.e2b.files import FileService
from portal.e2b.keys import Keys
from portal.e2b.metadata import Metadata
from portal.e2b.processes import ProcessService
from portal.e2b.running import Processes
from portal.e2b.sandboxes import Sandboxes
from portal.e2b.snapshots import Snapshots
from portal.e2b.watches import Watches
from portal.endings import Endings
from portal.forks import Forks
from portal.identity import Identity
from portal.inside import Inside
from portal.lifetimes import Lifetimes
from portal.node import Node
from portal.once import Once
from portal.owners import Owners
from portal.rates import Rates
from portal.routes import Router


class E2b:
    """Everything below `/e2b`. `open` before serving, `close` after."""

    def __init__(
        self, identity: Identity, secret: Path, node: Node, inside: Inside, router: Router, *, owners: Owners, lifetimes: Lifetimes, workspaces: Workspaces,
        forks: Forks, once: Once, actions: Actions, rates: Rates, metadata: Metadata, endings: Endings,
    ) -> None:  # fmt: skip
        """`secret`: the file of the secret that signs sandboxes' keys."""
        self._keys = Keys(identity, secret)
        self._metadata = metadata
        self._processes = Processes(inside)
        self._watches = Watches(inside)
        self._parts = (
            Sandboxes(node, owners, lifetimes, workspaces, forks, router, once, self._keys, metadata, inside, Snapshots(node, owners, forks, metadata)),
            ProcessService(inside, self._processes, Desktop(actions, node, inside), self._keys, router, rates, endings),
            FileService(inside, node, self._keys, router, self._watches, endings),
        )

    def routes(self) -> list[web.RouteDef]:
        return [route for part in self._parts for route in part.routes()]

    async def open(self) -> None:
        """Raises OSError, sqlite3.Error."""
        self._keys.open()
        await self._metadata.open()

    async def close(self) -> None:
        await self._processes.close()
        await self._watches.close()
