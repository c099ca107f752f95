"""Which host names mean what. The portal and every desktop share one port; the name alone tells them apart."""

from __future__ import annotations

import re

# Portal and desktops must be one site: browsers that block third-party storage break the viewer in its frame otherwise. Below `localhost`
# itself, which counts as a public suffix, every name is a site of its own; and a wildcard certificate must not stand directly below it.
PORTAL_HOST = "tclone.localhost"
# What this process serves (`serve`): the portal's host name, and whether its certificate is the operator's own.
_served = PORTAL_HOST
_certified = False
_ALIASES = {"localhost", "127.0.0.1", "[::1]"}
_WORKSPACE_LABEL = re.compile(r"ws-[0-9]{1,18}")
_PORT_LABEL = re.compile(r"[0-9]{1,5}-(ws-[0-9]{1,18})")
_PORT = re.compile(r"[0-9]{1,5}")
_NAME = re.compile(r"(?=.{4,200}$)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
_YEAR = 365 * 86400


def check(name: str) -> None:
    """Raises ValueError for what cannot be the portal's host name, with desktops one label below it."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"TCLONE_PORTAL_HOST={name}: give a name of two labels or more, such as desks.example.org, without a port")


def serve(name: str, certified: bool) -> None:
    """Set once at the start of a process. `certified`: the certificate is one that the operator supplied. Raises ValueError."""
    global _served, _certified
    check(name)
    _served, _certified = name, certified


def served() -> str:
    """The portal's host name."""
    return _served


def transport_policy() -> dict[str, str]:
    """HSTS, where the certificate is the operator's own: a browser must not be locked out of a host whose certificate it has to be told to trust."""
    return {"Strict-Transport-Security": f"max-age={_YEAR}; includeSubDomains"} if _certified else {}


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
    if dot and rest == _served and _WORKSPACE_LABEL.fullmatch(label):
        return label
    return None


def stream_of(host: str) -> str | None:
    """The id of the workspace in a name such as `6080-ws-3.…`, by which clients of E2B look for a desktop's stream, or None."""
    label, dot, rest = split(host)[0].partition(".")
    found = _PORT_LABEL.fullmatch(label) if dot and rest == _served else None
    return found[1] if found else None


def is_portal(host: str) -> bool:
    """Whether this `Host` value names the portal's canonical origin."""
    return split(host)[0] == _served


def is_alias(host: str) -> bool:
    """Whether this `Host` value names the portal by another name, from which it redirects."""
    return split(host)[0] in _ALIASES


def portal_origin(host: str) -> str:
    """The portal's origin, on the port by which the browser came (it may be a forwarded one)."""
    return f"https://{_served}{split(host)[1]}"


def desktop_origin(workspace: str, host: str) -> str:
    """The origin of a workspace's desktop, on the port by which the browser came."""
    return f"https://{workspace}.{_served}{split(host)[1]}"
