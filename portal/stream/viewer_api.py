"""What of a desktop's HTTP interface a browser may reach: the files and endpoints of the viewer, nothing that gives control of the server.

Everything not listed is refused, whatever the credentials: among others `/api/tokens`, `/api/switch`, `/api/sessions`, `/api/recording`,
`/api/metrics`, `/api/screenshot`, `/api/webrtc/*` and Computer-Use.
"""

from __future__ import annotations

import enum
import re
from urllib.parse import unquote_to_bytes

WEBSOCKET_PATHS = frozenset({"/api/websockets", "/api/websockets/"})

class Role(enum.StrEnum):
    """Who opened the desktop by a login may drive it; who has a share link watches."""

    CONTROLLER = "controller"
    VIEWER = "viewer"


# What hands out more than a viewer sees on the screen.
_NOT_FOR_VIEWERS = re.compile(r"/api/(?:files|print|apps)(?:/.*)?", re.DOTALL)
_READABLE = re.compile(
    r"""/
      | /[A-Za-z0-9][A-Za-z0-9._-]*\.(?:html|js|css|json|webmanifest|ico|png|svg|txt|woff2?|wasm)
      | /(?:assets|src|codecs|jsdb|locales|fonts)/.+
      | /api/(?:status|health|websockets/?)
      | /api/files(?:/.*)?
      | /api/print/[^/]+
      | /api/apps/(?:metadata\.yml|img/[^/]+)
    """,
    re.VERBOSE | re.DOTALL,
)
_WRITABLE = {"POST": frozenset({"/api/upload"})}


def decoded_path(raw_target: str) -> str | None:
    """The path of a request target, percent-decoded once; None for one that two parsers could read differently."""
    raw = raw_target.partition("?")[0]
    if not raw.startswith("/") or "#" in raw or "\\" in raw:
        return None
    try:
        path = unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        return None
    if any(ord(character) < 0x20 or character == "\x7f" for character in path) or "\\" in path:
        return None
    if "//" in path or any(segment in (".", "..") for segment in path.split("/")):
        return None
    return path


def allows(method: str, path: str, role: Role) -> bool:
    """Whether a browser may send `method` for the decoded `path`."""
    if method in ("GET", "HEAD"):
        return _READABLE.fullmatch(path) is not None and (role is Role.CONTROLLER or _NOT_FOR_VIEWERS.fullmatch(path) is None)
    return role is Role.CONTROLLER and path in _WRITABLE.get(method, ())
