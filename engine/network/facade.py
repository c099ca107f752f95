"""`Network`: everything the engine does with the network of workspaces, in one object."""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.config import Config
from engine.network.ports import PortRequest
from engine.network.settings import NetworkSettings


@dataclass(frozen=True)
class NetworkHandle:
    """`path`: for `{"type":"network","path":…}` in an OCI config (valid while this engine process lives; it works from any
    mount namespace). `ports`: container port to host port."""

    path: str
    ports: dict[int, int]


class Network:
    """One engine's workspaces' networks. Every method but `listener` and `ports` is a coroutine; all errors are EngineError."""

    def __init__(self, config: Config, settings: NetworkSettings | None = None) -> None:
        raise NotImplementedError

    async def open(self) -> None:
        """Start: makes run directories, raises the soft limit of open files, opens `config.fd_socket`."""
        raise NotImplementedError

    async def create(self, workspace_id: str, policy: str = "open", ports: Sequence[PortRequest] = ()) -> NetworkHandle:
        """Make namespace, gate and published ports of a new workspace; all or nothing. Raises Conflict, LimitReached, BadRequest."""
        raise NotImplementedError

    async def adopt(self, workspace_id: str, policy: str, ports: Mapping[int, int]) -> NetworkHandle:
        """After a restart: find the namespace again, make gate and listeners anew. Raises NotFound when the namespace is gone.

        A host port that something still holds (the stream process of the portal, for a moment) is tried again in the background.
        """
        raise NotImplementedError

    async def destroy(self, workspace_id: str) -> None:
        """Close everything of a workspace; an unknown one is no error."""
        raise NotImplementedError

    async def prune(self, keep: Collection[str]) -> list[str]:
        """Destroy what an earlier engine left for workspaces not in `keep`; the ids destroyed."""
        raise NotImplementedError

    async def set_policy(self, workspace_id: str, policy: str) -> None:
        """Change a workspace's egress at once; open connections that the new policy denies are reset."""
        raise NotImplementedError

    async def connect(self, workspace_id: str, port: int) -> socket.socket:
        """A connected, non-blocking TCP socket to a server inside the workspace. Raises NotFound, Unavailable (refused, timeout)."""
        raise NotImplementedError

    def listener(self, workspace_id: str, port: int) -> socket.socket:
        """The listening host socket of container port `port`; owned by the network, do not close. Raises NotFound, Unavailable."""
        raise NotImplementedError

    def ports(self, workspace_id: str) -> dict[int, int]:
        """Container port to host port of one workspace."""
        raise NotImplementedError

    async def close(self) -> None:
        """Stop serving. Namespaces stay, for the next engine to adopt."""
        raise NotImplementedError
