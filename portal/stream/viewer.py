"""Our part of the viewer's page: a script and a style sheet, added to the HTML that a workspace serves for `/`."""

from __future__ import annotations

import html
import re
from pathlib import Path

from multidict import CIMultiDict

OWN_PATHS = "/__tclone/"
VIEWER_SCRIPT_PATH = f"{OWN_PATHS}viewer.js"
VIEWER_STYLE_PATH = f"{OWN_PATHS}viewer.css"
# A page longer than this passes as it is. Selkies' has 1 KB.
LONGEST_PAGE = 256 * 1024

_DIRECTORY = Path(__file__).resolve().parents[2] / "static" / "viewer"
_HEAD = re.compile(rb"<head(?:\s[^>]*)?>", re.IGNORECASE)

FILES = {
    VIEWER_SCRIPT_PATH: ((_DIRECTORY / "viewer.js").read_text(), "text/javascript"),
    VIEWER_STYLE_PATH: ((_DIRECTORY / "viewer.css").read_text(), "text/css"),
}


def ask_for_plain(headers: CIMultiDict[str]) -> None:
    """Make of a request one whose answer can be changed: whole, not compressed, and not `304`."""
    for name in ("Accept-Encoding", "If-None-Match", "If-Modified-Since", "Range", "If-Range"):
        headers.popall(name, None)


def is_plain_page(status: int, headers: CIMultiDict[str]) -> bool:
    """Whether an answer is HTML that can be added to."""
    kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return status == 200 and kind == "text/html" and not headers.get("Content-Encoding")


def added(page: bytes, headers: CIMultiDict[str], portal_origin: str) -> bytes:
    """The page with our script first in its head. Its headers lose what described the page as it was."""
    head = _HEAD.search(page)
    if head is None:
        return page
    for name in ("Content-Length", "ETag", "Last-Modified", "Accept-Ranges"):
        headers.popall(name, None)
    headers["Cache-Control"] = "no-store"
    origin = html.escape(portal_origin)
    ours = f'<script src="{VIEWER_SCRIPT_PATH}" data-portal="{origin}"></script><link rel="stylesheet" href="{VIEWER_STYLE_PATH}">'
    return page[: head.end()] + ours.encode() + page[head.end() :]
