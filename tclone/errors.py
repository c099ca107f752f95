"""What can go wrong, as one tree: `except TCloneError` catches all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class TCloneError(Exception):
    """`message` names the thing and the next step; `code` and `reason` are for programs; `status` is HTTP's, 0 when there was no answer.

    `details`: whatever else the answer's error had.
    """

    def __init__(self, message: str, *, code: str = "internal", status: int = 0, details: dict[str, Any] | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.details = details or {}
        self.retry_after = retry_after

    @property
    def reason(self) -> str | None:
        """A closer word than `code`, where there is one: `held_by_person`."""
        reason = self.details.get("reason")
        return reason if isinstance(reason, str) else None


class BadRequest(TCloneError):
    """The request is wrong as it is: nothing was done."""


class LoginNeeded(TCloneError):
    """There is no token, or it is unknown, has expired or was revoked."""


class Forbidden(TCloneError):
    """The token has not the scope that this needs."""


class NotFound(TCloneError):
    """No such workspace, file, window, image; or somebody else's."""


class Conflict(TCloneError):
    """Not in the state that this needs: a name is taken, another fork is under way, the desktop is not ready."""


class Refused(TCloneError):
    """A fork that preflight refused: `blockers` names everything in its way."""

    @property
    def blockers(self) -> list[dict[str, Any]]:
        found = self.details.get("blockers")
        return found if isinstance(found, list) else []


class Held(TCloneError):
    """A person has control of the workspace: nothing was done. `wait_until_free` returns when it is handed back."""

    @property
    def lease(self) -> dict[str, Any]:
        """{"holder", "epoch", "since", "expires"}."""
        found = self.details.get("lease")
        return found if isinstance(found, dict) else {}

    @property
    def holder(self) -> str | None:
        holder = self.lease.get("holder")
        return holder if isinstance(holder, str) else None


class LimitReached(TCloneError):
    """A rate (`retry_after` says in seconds when to come again) or a quota (`details`)."""


class Unavailable(TCloneError):
    """The portal or its engine is away, or the connection broke. What was asked for may have been done."""


class Internal(TCloneError):
    """A defect of TClone, or an answer that makes no sense."""


class TimedOut(TCloneError, TimeoutError):
    """What was waited for did not come in time."""


class ActionFailed(TCloneError):
    """One action of a batch failed; those before it were done, those after it not. `index` is its place; `results` has all of them."""

    def __init__(self, message: str, *, code: str, index: int, results: Sequence[dict[str, Any]]) -> None:
        super().__init__(message, code=code, status=200)
        self.index = index
        self.results = list(results)


class Interrupted(TCloneError):
    """The engine was ended in the midst of a batch: nobody knows how much of it was done. Look at the screen; it is not done again."""


class CommandFailed(TCloneError):
    """A command that was to succeed ended with another status."""

    def __init__(self, message: str, *, command_status: int, stdout: bytes, stderr: bytes) -> None:
        super().__init__(message, code="command")
        self.command_status = command_status
        self.stdout = stdout
        self.stderr = stderr


_BY_STATUS: dict[int, type[TCloneError]] = {
    400: BadRequest, 401: LoginNeeded, 403: Forbidden, 404: NotFound, 405: BadRequest, 409: Conflict, 413: BadRequest, 415: BadRequest, 421: BadRequest,
    422: Refused, 423: Held, 429: LimitReached, 502: Unavailable, 503: Unavailable, 504: Unavailable, 507: LimitReached,
}  # fmt: skip
# Where there is no status: over a socket, and for each child of a fork.
_BY_CODE: dict[str, type[TCloneError]] = {
    "bad_request": BadRequest, "login": LoginNeeded, "forbidden": Forbidden, "not_found": NotFound, "conflict": Conflict, "unsupported": Refused,
    "held": Held, "limit": LimitReached, "disk_full": LimitReached, "unavailable": Unavailable, "timeout": Unavailable, "bad_answer": Unavailable,
}  # fmt: skip


def of_answer(status: int, body: object, retry_after: float | None = None) -> TCloneError:
    """The error that an HTTP answer tells of; `body` is its JSON, or None."""
    error = body.get("error") if isinstance(body, dict) else None
    told = error if isinstance(error, dict) else {}
    kind = _BY_STATUS.get(status, Internal)
    return _made(kind, told, status, retry_after, f"the portal answered {status} without a reason")


def of_wire(error: object) -> TCloneError:
    """The error of an object {"code", "message", …}."""
    told = error if isinstance(error, dict) else {}
    after = told.get("retry_after")
    kind = _BY_CODE.get(str(told.get("code")), Internal)
    return _made(kind, told, 0, float(after) if isinstance(after, int | float) else None, "the portal told of an error without a reason")


def _made(kind: type[TCloneError], told: dict[str, Any], status: int, retry_after: float | None, otherwise: str) -> TCloneError:
    details = {name: value for name, value in told.items() if name not in ("code", "message")}
    message = told.get("message")
    code = told.get("code")
    return kind(
        message if isinstance(message, str) and message else otherwise,
        code=code if isinstance(code, str) else "internal", status=status, details=details, retry_after=retry_after,
    )  # fmt: skip
