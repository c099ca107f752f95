"""The network of workspaces: namespaces, the egress gate, published ports and the descriptor socket.

`Network` is what the engine uses. The names below load on first use, so that an unprivileged program can import
`engine.network.relay` or `engine.network.fdclient` without the modules that make namespaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.network.facade import Network, NetworkHandle
    from engine.network.ports import PortRequest
    from engine.network.settings import NetworkSettings

__all__ = ["Network", "NetworkHandle", "NetworkSettings", "PortRequest"]


def __getattr__(name: str) -> Any:
    if name in ("Network", "NetworkHandle"):
        from engine.network import facade

        return getattr(facade, name)
    if name == "PortRequest":
        from engine.network.ports import PortRequest

        return PortRequest
    if name == "NetworkSettings":
        from engine.network.settings import NetworkSettings

        return NetworkSettings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
