"""The portal's own exceptions; the engine's (engine.errors) pass through beside them."""

from __future__ import annotations

from typing import Any

from engine.errors import EngineError


class PortalError(Exception):
    """Base of every refusal the portal makes itself. `code` and `status` are what the browser sees, and `more` beside the message: `field`, when one
    field of the body was wrong, is its name."""

    code = "internal"
    status = 500
    # Whether the audit log has it.
    on_record = False

    def __init__(self, message: str, retry_after: float | None = None, **more: Any) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        self.more = more


class LoginNeeded(PortalError):
    code, status = "login", 401


class WrongPassword(PortalError):
    code, status = "denied", 401


class Denied(PortalError):
    code, status = "denied", 403


class Forbidden(PortalError):
    """Known who it is, and that one may not."""

    code, status = "forbidden", 403


class NoWorkspace(PortalError):
    code, status = "not_found", 404


class Held(PortalError):
    """A person drives the workspace; a program has to wait until it is handed back."""

    code, status = "held", 423


class NotThere(PortalError):
    """A user, session, token or share link that there is not, or that is somebody else's."""

    code, status = "not_found", 404


class NewPasswordNeeded(PortalError):
    """The password was right and has been used up: the user has to choose one of its own."""

    code, status = "new_password", 403


class NotShown(PortalError):
    """The session is good, but what is asked for takes that its user has just shown who it is."""

    code, status = "confirm", 403


class CodeNeeded(PortalError):
    """The password was right; a code of the second factor has to come with it."""

    code, status = "second_factor", 403


class WrongCode(PortalError):
    code, status = "wrong_code", 401


class FactorNeeded(PortalError):
    """Everybody has to have a second factor, and this user has none: it can do nothing but set one up."""

    code, status = "enrol", 403


class CrossSite(PortalError):
    code, status = "csrf", 403


class WrongType(PortalError):
    """The body is of another type than the route takes; a form of another site can send none of those."""

    code, status = "media_type", 415


class TooMany(PortalError):
    code, status = "limit", 429


class OverQuota(PortalError):
    """`more` has quota, limit, use, wanted and user."""

    code, status = "limit", 429


class Malformed(PortalError):
    code, status = "bad_request", 400


class Conflicting(PortalError):
    code, status = "conflict", 409


class NotStarted(Conflicting):
    """A command could not be started: nothing was done."""

    code, status = "not_started", 500


class Unreachable(PortalError):
    """The identity provider is down or makes no sense."""

    code, status = "provider", 502


class BadAnswer(PortalError):
    """The engine said something that is not in its API."""

    code, status = "bad_answer", 502


class TimedOut(PortalError):
    code, status = "timeout", 504


def error_body(code: str, message: str, **more: Any) -> dict[str, dict[str, Any]]:
    """The body of every error, in the engine API's shape; `more` is what a program can read of it."""
    return {"error": {"code": code, "message": message, **more}}


def refusal_body(error: PortalError | EngineError) -> dict[str, dict[str, Any]]:
    """The body of a refusal where there are no headers, as over a WebSocket: when to try again, in seconds, stands in it."""
    if isinstance(error, EngineError):
        return {"error": error.to_wire()}
    after = {"retry_after": round(error.retry_after, 2)} if error.retry_after else {}
    return error_body(error.code, error.message, **error.more, **after)
