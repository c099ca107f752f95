"""Files that a desktop writes by itself, whoever works in it: logs, caches, sockets, the browser's profile. Among them what somebody did is not to be found."""

from __future__ import annotations

import re

_HOME = rb"/(?:home/[^/]+|root)"
_OWN = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        rb"/var/(?:log|tmp|cache)(?:/.*)?",
        rb"/run(?:/.*)?",
        rb"/tmp(?:/(?:\.X11-unix|\.ICE-unix|\.X\d+-lock|dbus-[^/]*|ssh-[^/]*|\.org\.chromium\.[^/]*|selkies_web[^/]*)(?:/.*)?)?",
        _HOME + rb"/\.(?:cache|dbus|pki|config/(?:chromium|pulse|dconf)|local/share/(?:gvfs-metadata|xfce4|applications))(?:/.*)?",
        _HOME + rb"/(?:\.xsession-errors[^/]*|\.ICEauthority|\.Xauthority|\.local/share/recently-used\.xbel[^/]*)",
    )
)


def is_own(path: bytes) -> bool:
    """Whether the file at an absolute path is one of those."""
    return any(pattern.fullmatch(path) for pattern in _OWN)
