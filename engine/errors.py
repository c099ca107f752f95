"""The engine's exception tree. Each class carries its wire code, HTTP status and CLI exit status (docs/reference/engine-api.md)."""

from __future__ import annotations

import errno
from typing import Any


class EngineError(Exception):
    """Base of every error the engine reports on purpose; the message names the object and the next step.

    `field`: the field of the request's body that is wrong, None when it is not about a single one.
    """

    code = "internal"
    http_status = 500
    exit_status = 1

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field

    def to_wire(self) -> dict[str, Any]:
        """The `error` object of an answer."""
        told = {"code": self.code, "message": self.message}
        return told if self.field is None else {**told, "field": self.field}


class BadRequest(EngineError):
    code, http_status, exit_status = "bad_request", 400, 2


class NotFound(EngineError):
    code, http_status, exit_status = "not_found", 404, 4


class Conflict(EngineError):
    code, http_status, exit_status = "conflict", 409, 5


class Unsupported(EngineError):
    """A fork that was refused. `blockers` are the findings (engine/findings.py) as a list, empty when only the message is known."""

    code, http_status, exit_status = "unsupported", 422, 6

    def __init__(self, message: str, blockers: list[dict[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.blockers = blockers or []

    def to_wire(self) -> dict[str, Any]:
        return {**super().to_wire(), "blockers": self.blockers}


class LimitReached(EngineError):
    code, http_status, exit_status = "limit", 429, 7


class NoSpace(EngineError):
    code, http_status, exit_status = "no_space", 507, 8


class Unavailable(EngineError):
    code, http_status, exit_status = "unavailable", 503, 9


class Internal(EngineError):
    pass


_BY_CODE = {
    cls.code: cls
    for cls in (BadRequest, NotFound, Conflict, Unsupported, LimitReached, NoSpace, Unavailable, Internal)
}


def from_oserror(what: str, error: OSError) -> EngineError:
    """NoSpace, with what to do, when the disk or the workspace is full; Internal for any other failure of the system. `what` names the object."""
    if error.errno == errno.EDQUOT:
        return NoSpace(f"{what}: the workspace's own disk limit is reached; remove files in it, or launch one with a higher limit (`tclone run --disk`)")
    if error.errno == errno.ENOSPC:
        return NoSpace(f"{what}: no space left in the data directory; remove workspaces (`tclone rm`) or images (`tclone image rm`)")
    return Internal(f"{what}: {error}")


def from_wire(code: str, message: str, blockers: list[dict[str, Any]] | None = None, field: str | None = None) -> EngineError:
    """The exception for a wire code; an unknown code becomes Internal."""
    if code == Unsupported.code:
        return Unsupported(message, blockers)
    return _BY_CODE.get(code, Internal)(message, field)
