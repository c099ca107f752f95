"""One portal, seen by a program with a token."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from tclone import events, settings
from tclone.data import Event, Info
from tclone.errors import NotFound
from tclone.transport import Transport
from tclone.workspace import Workspace


class Client:
    """`async with Client() as tclone`. Without arguments it finds what it needs in the environment: `tclone.settings.found`.

    `patience`: for how many seconds in all a request is tried again while the portal is away or says that it is too much for now.
    """

    def __init__(self, url: str | None = None, *, token: str | None = None, ca: str | os.PathLike[str] | None = None, patience: float = 30.0) -> None:
        self._transport = Transport(settings.found(url, token, ca), patience)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Workspaces stay; what is open by this client ends."""
        await self._transport.close()

    async def run(
        self, image: str, *, name: str | None = None, ports: Sequence[int] = (), env: Mapping[str, str] | None = None, memory: int | None = None,
        disk: int | None = None, cpus: float | None = None, network: str = "open", timeout: float | None = None, persistent: bool = False, wait: bool = True,
    ) -> Workspace:  # fmt: skip
        """Launch a workspace from an image; with `wait` (usual) return when it is ready.

        `memory` and `disk` in bytes, `cpus`: how many processors' time it gets at most; `network`: `open` or `none`; `timeout`: seconds after which it is discarded, `persistent`: never.
        Raises NotFound for an image that is not built, LimitReached, Conflict when its start failed.
        """
        body: dict[str, Any] = {
            "image": image, "name": name, "ports": list(ports), "env": dict(env or {}) or None, "memory": memory, "disk": disk, "cpus": cpus, "network": network,
            "timeout": timeout, "persistent": persistent or None,
        }  # fmt: skip
        told = await self._transport.json("POST", "/workspaces", {key: value for key, value in body.items() if value is not None}, once=True)
        made = Workspace(self._transport, Info.of(told), made=True)
        if wait:
            await made.wait_until_ready()
        return made

    async def workspaces(self) -> list[Workspace]:
        """All that the token sees."""
        return [Workspace(self._transport, Info.of(one)) for one in await self._transport.json("GET", "/workspaces")]

    async def workspace(self, ref: str) -> Workspace:
        """One by id or name. Leaving its block does not discard it. Raises NotFound."""
        for found in await self.workspaces():
            if ref in (found.id, found.name):
                return found
        raise NotFound(f"no workspace {ref} that this token sees", code="not_found")

    async def images(self) -> list[dict[str, Any]]:
        """Images to launch from, each with its `name`."""
        found: list[dict[str, Any]] = await self._transport.json("GET", "/images")
        return found

    async def me(self) -> dict[str, Any]:
        """{"user", "role", "scopes", …} of the token."""
        found: dict[str, Any] = await self._transport.json("GET", "/me")
        return found

    async def request(self, method: str, path: str, body: Any = None, *, key: str | None = None) -> Any:
        """Anything else of the portal's API (docs/reference/portal.md): `request("PUT", "/workspaces/ws-1/lifetime", {"idle_seconds": 3600, …})`.

        `path`: what stands behind `/api/v1`, encoded, with its query; `key`: an idempotency key, with which the request is done once however often it is sent. The answer's JSON; None without one. Raises TCloneError.
        """
        return await self._transport.json(method, path, body, key=key)

    def events(self, since: int | None = None) -> AsyncIterator[Event]:
        """What happens to all workspaces that the token sees, for ever: tclone.events.followed."""
        return events.followed(self._transport, since)
