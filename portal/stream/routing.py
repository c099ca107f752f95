"""Which host a request is for, and what that makes its origin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from portal import hosts


@dataclass(frozen=True)
class Route:
    """Where a request goes. `origin`: what pages of this host have; `workspace` is set for a desktop."""

    kind: Literal["portal", "desktop"]
    origin: str
    portal_origin: str
    workspace: str = ""


def resolve(host: str) -> Route | None:
    """The route for a Host header; None for one that is not ours.

    Any port is taken for the caller's public one: a forwarded port differs from the one listened on, and links have to keep it.
    """
    portal = hosts.portal_origin(host)
    workspace = hosts.workspace_of(host)
    if workspace is not None:
        return Route("desktop", hosts.desktop_origin(workspace, host), portal, workspace)
    if hosts.is_portal(host):
        return Route("portal", portal, portal)
    if hosts.is_alias(host):
        # Control answers these with a redirect to the canonical origin, so no page of theirs opens a websocket.
        return Route("portal", portal, portal)
    return None
