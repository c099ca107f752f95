"""The text of a workspace's clipboard."""

from __future__ import annotations

from tclone.transport import Transport


class Clipboard:
    """`workspace.clipboard`. Each branch has its own."""

    def __init__(self, transport: Transport, workspace: str) -> None:
        self._transport = transport
        self._path = f"/workspaces/{workspace}/clipboard"

    async def get(self) -> str:
        return str((await self._transport.json("GET", self._path))["text"])

    async def set(self, text: str) -> None:
        await self._transport.json("PUT", self._path, {"text": text})
