"""Queries that name files: values are bytes, percent-encoded, for names need not be UTF-8. The portal reads its own requests by it, too."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from aiohttp import web

from engine.errors import BadRequest

LONGEST_PATH = 4095


def fields(request: web.Request) -> dict[str, bytes]:
    """Every field of the query. Raises BadRequest when one comes twice."""
    found: dict[str, bytes] = {}
    for field in request.rel_url.raw_query_string.split("&"):
        name, _, value = field.partition("=")
        if name in found:
            raise BadRequest(f"{name[:40]} is given twice")
        if name:
            found[name] = unquote_to_bytes(value.replace("+", "%20"))
    return found


def path_of(request: web.Request) -> bytes:
    """The field `path`, checked. Raises BadRequest."""
    return check_path(fields(request).get("path", b""))


def check_path(path: bytes) -> bytes:
    """An absolute path, without a slash at its end. Raises BadRequest."""
    if not path.startswith(b"/") or b"\0" in path:
        raise BadRequest("path must be an absolute path in the workspace, without NUL")
    if len(path) > LONGEST_PATH:
        raise BadRequest(f"path has {len(path)} bytes; at most {LONGEST_PATH} are allowed")
    return path.rstrip(b"/") or b"/"


def switch(request: web.Request, name: str) -> bool:
    """A field that is 0 or 1; 0 when it is not there. Raises BadRequest."""
    value = fields(request).get(name, b"0")
    if value not in (b"0", b"1"):
        raise BadRequest(f"{name} must be 0 or 1")
    return value == b"1"


def base_of(request: web.Request) -> str:
    """The field `base`: whom to compare with, `parent` when it is not there. Raises BadRequest."""
    base = fields(request).get("base", b"parent").decode("ascii", errors="replace")
    if not base.replace("-", "").isalnum() or len(base) > 60:
        raise BadRequest("base must be `parent`, `image`, or an id or name of a workspace")
    return base
