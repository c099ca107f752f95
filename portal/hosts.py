"""Which host names mean what. The portal and every desktop share one port; the name alone tells them apart."""

from __future__ import annotations

import re

# Portal and desktops must be one site: browsers that block third-party storage break the viewer in its frame otherwise. Below `localhost`
# itself, which counts as a public suffix, every name is a site of its own; and a wildcard certificate must not stand directly below it.
PORTAL_HOST = "tclone.localhost"
_ALIASES = {"localhost", "127.0.0.1", "[::1]"}
_WORKSPACE_LABEL = re.compile(r"ws-[0-9]{1,18}")
_PORT = re.compile(r"[0-9]{1,5}")


def split(host: str) -> tuple[str, str]:
    """A `Host` value as (lower-case name, ":port" or ""); ("", "") when malformed."""
    host = host.strip().lower()
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        return host, ""
    if not _PORT.fullmatch(port):
        return "", ""
    return name, f":{port}"


def workspace_of(host: str) -> str | None:
    """The id of the workspace whose desktop this `Host` value names, or None."""
    label, dot, rest = split(host)[0].partition(".")
    if dot and rest == PORTAL_HOST and _WORKSPACE_LABEL.fullmatch(label):
        return label
    return None


def is_portal(host: str) -> bool:
    """Whether this `Host` value names the portal's canonical origin."""
    return split(host)[0] == PORTAL_HOST


def is_alias(host: str) -> bool:
    """Whether this `Host` value names the portal by another name, from which it redirects."""
    return split(host)[0] in _ALIASES


def portal_origin(host: str) -> str:
    """The portal's origin, on the port by which the browser came (it may be a forwarded one)."""
    return f"https://{PORTAL_HOST}{split(host)[1]}"


def desktop_origin(workspace: str, host: str) -> str:
    """The origin of a workspace's desktop, on the port by which the browser came."""
    return f"https://{workspace}.{PORTAL_HOST}{split(host)[1]}"
