"""What the portal's two processes log, as text for people or as one JSON object a line, and which request each line belongs to.

A request is told by its route (`/api/v1/workspaces/{id}`), never by its address: addresses hold paths of people's files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import re
import secrets
import time
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from engine.config import Config

FORMATS = ("text", "json")
ID_HEADER = "X-Request-Id"
_TEXT = "%(asctime)s %(name)s %(levelname)s %(message)s"
_ID = re.compile(r"[0-9a-f]{16}")
_LONGEST_METHOD = 16
_KEY = web.RequestKey("request_id", str)

# One line for each request, only in JSON: people read the audit log.
_requests = logging.getLogger("portal.requests")


def configure(form: str, level: int = logging.INFO) -> None:
    """Log to stderr in one of FORMATS. Raises ValueError, which names them."""
    if form not in FORMATS:
        raise ValueError(f"the log format (--log-format, TCLONE_LOG_FORMAT) is {' or '.join(FORMATS)}, not {form!r}")
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    _requests.setLevel(level if form == "json" else logging.CRITICAL)


def add_option(parser: argparse.ArgumentParser, config: Config) -> None:
    """`--log-format`, which stands above TCLONE_LOG_FORMAT."""
    parser.add_argument("--log-format", default=config.log_format, metavar="|".join(FORMATS), help="how to log (TCLONE_LOG_FORMAT): %(default)s")


class JsonLines(logging.Formatter):
    """One object a line. What is logged for a request has what `note` was told of it; json escapes what could forge a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **(_current.get() or {}),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


_current: ContextVar[dict[str, Any] | None] = ContextVar("request", default=None)


def note(**facts: str) -> None:
    """Say more about the request under way: `user`, `workspace`, `route`. Outside of one it says nothing."""
    known = _current.get()
    if known is not None:
        known.update(facts)


def route() -> str:
    """The route of the request under way, as the log names it; empty outside of one."""
    return str((_current.get() or {}).get("route", ""))


def new_id() -> str:
    """What lines of both processes about one request have in common; no secret."""
    return secrets.token_hex(8)


def route_of(request: web.Request) -> str:
    """The route that took a request, with names in place of what stood there; `none` when there is none."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "none"


class Answer:
    """How a request ended: set `status` before the end."""

    status = 500


@contextlib.contextmanager
def following(identity: str, method: str, answer: Answer) -> Iterator[None]:
    """A request: what is logged inside belongs to it, and at its end comes a line of its own."""
    known: dict[str, Any] = {"request_id": identity}
    token = _current.set(known)
    begun = time.perf_counter()
    try:
        yield
    finally:
        ms = round((time.perf_counter() - begun) * 1000, 1)
        _requests.info("request", extra={"fields": {"method": method[:_LONGEST_METHOD], "status": answer.status, "ms": ms}})
        _current.reset(token)


@contextlib.contextmanager
def follow(request: web.Request, answer: Answer) -> Iterator[None]:
    """Every request of control, by the id that the stream process gave it (portal.requests.Watch)."""
    given = request.headers.get(ID_HEADER, "")
    identity = request[_KEY] = given if _ID.fullmatch(given) else new_id()
    with following(identity, request.method, answer):
        note(route=route_of(request))
        yield


async def add_id(request: web.Request, response: web.StreamResponse) -> None:
    """Tell whoever asked by what id the log has it (a signal of aiohttp)."""
    if _KEY in request:
        response.headers[ID_HEADER] = request[_KEY]
