"""Finds out who makes a request."""

from __future__ import annotations

from aiohttp import hdrs, web

from portal import logs, security
from portal.errors import FactorNeeded, LoginNeeded
from portal.principal import Principal, closure, of_session, scopes_of
from portal.sessions import Session
from portal.settings import SettingsStore
from portal.tokens import Token, Tokens
from portal.users import Users

_SCHEME = "bearer"


class Identity:
    """From a session's cookie and key, or from a token in the Authorization header."""

    def __init__(self, users: Users, tokens: Tokens, settings: SettingsStore) -> None:
        self._users = users
        self._tokens = tokens
        self._settings = settings

    def of(self, request: web.Request, enrolling: bool = False) -> Principal:
        """`enrolling`: also a user who has yet to set up the second factor that everybody has to have. Raises LoginNeeded, FactorNeeded."""
        if hdrs.AUTHORIZATION in request.headers:
            return self._of_token(self.token_of(request))
        return self.of_session(security.session_of(request), enrolling)

    def of_socket(self, request: web.Request, key: object) -> Principal:
        """The same for a WebSocket, whose page sends the session key in its first message. Raises LoginNeeded, FactorNeeded."""
        if hdrs.AUTHORIZATION in request.headers:
            return self._of_token(self.token_of(request))
        return self.of_session(security.session_with_key(request, key))

    def of_session(self, session: Session, enrolling: bool = False) -> Principal:
        """Raises LoginNeeded when its user may not come in any more, FactorNeeded unless `enrolling`."""
        account = self._users.enabled(session.user)
        if account is None:
            raise LoginNeeded("log in first")
        if not enrolling and account.lacks_factor(self._settings.now.second_factor):
            raise FactorNeeded("everybody has to have a second factor here; set yours up on the account page")
        logs.note(user=session.user)
        return of_session(session, account.role)

    def token_of(self, request: web.Request) -> Token:
        """The live token of a request. Raises LoginNeeded."""
        values = request.headers.getall(hdrs.AUTHORIZATION)
        scheme, _, secret = values[0].partition(" ")
        token = self._tokens.find(secret.strip()) if len(values) == 1 and scheme.lower() == _SCHEME else None
        if token is None:
            raise LoginNeeded("this token is unknown, has expired or was revoked")
        return token

    def of_secret(self, secret: str) -> Principal:
        """Whose token this is, for faces that have a header of their own for it. Raises LoginNeeded."""
        token = self._tokens.find(secret)
        if token is None:
            raise LoginNeeded("this token is unknown, has expired or was revoked")
        return self._of_token(token)

    def of_id(self, identity: str) -> Principal:
        """By a token's public id, which something else must have vouched for. Raises LoginNeeded."""
        token = self._tokens.live(identity)
        if token is None:
            raise LoginNeeded("this token is unknown, has expired or was revoked")
        return self._of_token(token)

    def _of_token(self, token: Token) -> Principal:
        account = self._users.enabled(token.user)
        if account is None:
            raise LoginNeeded("this token is unknown, has expired or was revoked")
        self._tokens.note_use(token)
        logs.note(user=token.user, token=token.id)
        # The role may have become less since the token was made.
        return Principal(token.user, account.role, closure(token.scopes) & scopes_of(account.role), token=token.id)
