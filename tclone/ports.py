"""Servers inside a workspace, and their ports on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tclone.data import Listener
from tclone.transport import Transport

if TYPE_CHECKING:
    from tclone.workspace import Workspace


class Ports:
    """`workspace.ports`."""

    def __init__(self, transport: Transport, workspace: Workspace) -> None:
        self._transport = transport
        self._workspace = workspace
        self._base = f"/workspaces/{workspace.id}"

    async def listeners(self) -> list[Listener]:
        """What listens inside now."""
        told = (await self._transport.json("GET", self._base + "/listeners"))["listeners"]
        return [Listener(one["port"], one["address"], one.get("command") or "", one.get("host"), bool(one.get("desktop"))) for one in told]

    async def published(self) -> dict[int, int]:
        """Container port to host port."""
        return (await self._workspace.refresh()).ports

    async def publish(self, port: int) -> int:
        """Publish a port, which may be published already: its port on the host."""
        known = (await self.published()).get(port)
        return known if known is not None else int((await self._transport.json("POST", f"{self._base}/ports/{port}"))["host"])

    async def unpublish(self, port: int) -> None:
        await self._transport.json("DELETE", f"{self._base}/ports/{port}")

    async def url(self, port: int) -> str:
        """Where a browser on the host reaches a web server inside, which is published for it."""
        host = urlsplit(self._transport.settings.url).hostname or "localhost"
        return f"http://{'localhost' if host.endswith('.localhost') else host}:{await self.publish(port)}"
