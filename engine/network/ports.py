"""Published ports: one fresh host port for each (workspace, container port)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PortRequest:
    """`container`: the port inside the workspace. `host`: the wanted port of the host, None for a free one."""

    container: int
    host: int | None = None
