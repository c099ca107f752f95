"""Refusals of the data plane. Each carries the HTTP status and the code that its page or JSON answer shows."""

from __future__ import annotations


class StreamError(Exception):
    """Base; `message` names the object and what to do."""

    status = 500
    code = "internal"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BadRequest(StreamError):
    status, code = 400, "bad_request"


class NoSession(StreamError):
    """No cookie, or one that is not good for this desktop."""

    status, code = 401, "login"


class Denied(StreamError):
    status, code = 403, "denied"


class NotFound(StreamError):
    status, code = 404, "not_found"


class WrongHost(StreamError):
    status, code = 421, "wrong_host"


class BadUpstream(StreamError):
    """The desktop or control sent something that is no HTTP."""

    status, code = 502, "bad_upstream"


class NotReady(StreamError):
    """The desktop is not there yet; asking again helps."""

    status, code = 503, "starting"


class Unavailable(StreamError):
    """The engine or control is down; asking again helps."""

    status, code = 503, "unavailable"


class UpstreamTimeout(StreamError):
    status, code = 504, "timeout"
