"""What the command line does with users and tokens, without the portal running or beside it: control then knows when `run` returns."""

from __future__ import annotations

import contextlib
import http.client
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any

from engine.config import Config
from portal import accounts, audit, factors, tokens
from portal.database import connect
from portal.errors import Malformed, NotThere, PortalError
from portal.places import Places
from portal.principal import Role, Scope

_BY = "command line"
# Control reads its four tables anew in milliseconds. One that cannot for so long finds the change by itself, when it can again.
_TELL_SECONDS = 5.0


def run(config: Config, what: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """One of `WORK` with its arguments: `{"answer": …}`, or `{"error": {"code", "message"}}`. Raises sqlite3.Error, OSError, KeyError."""
    work = WORK[what]
    if work in (_user_add, _user_passwd):
        # Before the transaction: hashing takes long, and control writes to the same database.
        password = accounts.generate_password()
        wanted = {**wanted, "password": password, "stored": accounts.hashed(password)}
    trail = audit.Trail(Places(config).audit)
    trail.open()
    try:
        with _transaction(config) as db:
            answer = work(db, **wanted)
        if work not in (_user_ls, _token_ls):
            _tell(config)
        return {"answer": answer}
    except PortalError as error:
        return {"error": {"code": error.code, "message": error.message}}
    finally:
        trail.close()


@contextlib.contextmanager
def _transaction(config: Config) -> Iterator[sqlite3.Connection]:
    connection = connect(Places(config).database)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")
    finally:
        connection.close()


def _tell(config: Config) -> None:
    """Have control, if it runs, take over what was written: whoever is given a token uses it at once, and one that was revoked is good for nothing."""
    connection = http.client.HTTPConnection("private")
    connection.sock = socket.socket(socket.AF_UNIX)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.sock.settimeout(_TELL_SECONDS)
        connection.sock.connect(str(Places(config).private_socket))
        connection.request("POST", "/changed")
        connection.getresponse().read()


def _user_add(db: sqlite3.Connection, user: str, role: str, password: str, stored: str) -> dict[str, Any]:
    accounts.add(db, user, _of(Role, role), stored, time.time() + accounts.ONE_TIME_SECONDS)
    audit.record("user-add", user=_BY, name=user, role=role)
    return {"password": password}


def _user_ls(db: sqlite3.Connection) -> list[dict[str, object]]:
    return [account.public() for account in accounts.every(db)]


def _user_rm(db: sqlite3.Connection, user: str) -> None:
    accounts.remove(db, user)
    audit.record("user-remove", user=_BY, name=user)


def _user_change(db: sqlite3.Connection, user: str, role: str | None = None, disabled: bool | None = None) -> None:
    if role is not None:
        accounts.set_role(db, user, _of(Role, role))
    if disabled is not None:
        accounts.set_disabled(db, user, disabled)
    audit.record("user-change", user=_BY, name=user, role=role, disabled=disabled)


def _user_passwd(db: sqlite3.Connection, user: str, password: str, stored: str) -> dict[str, Any]:
    # The first account's is made at the machine itself: whoever reads it there is the one to use it.
    until = None if user == accounts.USER else time.time() + accounts.ONE_TIME_SECONDS
    accounts.set_password(db, user, stored, until)
    audit.record("password", user=user, by=_BY)
    return {"password": password}


def _user_factor_rm(db: sqlite3.Connection, user: str) -> None:
    factors.remove(db, user)
    audit.record("factor-remove", user=user, by=_BY)


def _token_create(db: sqlite3.Connection, user: str, name: str, scopes: list[str], days: float | None, e2b: bool = False) -> dict[str, Any]:
    account = accounts.find(db, user)
    if account is None or account.disabled:
        raise NotThere(f"no user {user} that may come in")
    made, secret = tokens.create(db, user, account.role, name, [_of(Scope, scope) for scope in scopes], days, e2b)
    audit.record("token-create", user=_BY, token=made.id, name=name, scopes=" ".join(scopes))
    return {**made.public(), "token": secret}


def _token_ls(db: sqlite3.Connection) -> list[dict[str, object]]:
    return [token.public() for token in tokens.every(db) if not token.over(time.time())]


def _token_revoke(db: sqlite3.Connection, token: str) -> None:
    tokens.revoke(db, token, None)
    audit.record("token-revoke", user=_BY, token=token)


WORK: dict[str, Callable[..., Any]] = {
    "user-add": _user_add,
    "user-ls": _user_ls,
    "user-rm": _user_rm,
    "user-change": _user_change,
    "user-passwd": _user_passwd,
    "user-factor-rm": _user_factor_rm,
    "token-create": _token_create,
    "token-ls": _token_ls,
    "token-revoke": _token_revoke,
}


def _of(kind: type[Role] | type[Scope], text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise Malformed(f"{text!r} is none of {', '.join(kind)}") from None
