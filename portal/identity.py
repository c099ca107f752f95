"""Finds out who makes a request."""

from __future__ import annotations

from aiohttp import hdrs, web

from portal import security
from portal.errors import LoginNeeded
from portal.principal import Principal, Role, of_session
from portal.sessions import Session


class Identity:
    """From a session's cookie and key, or from a token in the Authorization header."""

    def of(self, request: web.Request) -> Principal:
        """Raises LoginNeeded."""
        if hdrs.AUTHORIZATION in request.headers:
            return self.of_token(request.headers[hdrs.AUTHORIZATION])
        return self.of_session(security.session_of(request))

    def of_socket(self, request: web.Request, key: object) -> Principal:
        """The same for a WebSocket, whose page sends the session key in its first message. Raises LoginNeeded."""
        if hdrs.AUTHORIZATION in request.headers:
            return self.of_token(request.headers[hdrs.AUTHORIZATION])
        return self.of_session(security.session_with_key(request, key))

    def of_session(self, session: Session) -> Principal:
        return of_session(session, Role.ADMIN)

    def of_token(self, authorization: str) -> Principal:
        """Raises LoginNeeded."""
        raise LoginNeeded("this token is unknown, has expired or was revoked")
