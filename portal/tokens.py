"""API tokens: what a program sends as `Authorization: Bearer tct_…` instead of a login."""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from portal.database import Database, digest
from portal.endings import Endings
from portal.errors import Conflicting, Forbidden, Malformed, NotThere
from portal.principal import Role, Scope, closure, scopes_of
from portal.sessions import new_secret

PREFIX = "tct_"
# As clients of E2B may insist on: 160 bits in hexadecimal.
E2B_PREFIX, _E2B_BYTES = "e2b_", 20
DEFAULT_DAYS = 30
MOST_DAYS = 3660
LONGEST_NAME = 100
_LONGEST_SECRET = 128
_MOST_PER_USER = 100
# How often the last use is written down.
_TOUCH_SECONDS = 60.0


@dataclass
class Token:
    """One token. Times are unix seconds; `expires` None: never. `id` is public, the secret is known by its hash alone."""

    id: str
    hash: str
    user: str
    name: str
    scopes: frozenset[Scope]
    created: float
    expires: float | None
    used: float | None

    def over(self, now: float) -> bool:
        return self.expires is not None and now >= self.expires

    def public(self) -> dict[str, object]:
        """What its user is shown."""
        return {
            "id": self.id, "user": self.user, "name": self.name, "scopes": sorted(self.scopes), "created": self.created,
            "expires": self.expires, "used": self.used,
        }  # fmt: skip


# On one connection, for the control process and the command line alike


def create(connection: sqlite3.Connection, user: str, role: Role, name: str, scopes: Iterable[Scope], days: float | None, e2b: bool = False) -> tuple[Token, str]:
    """A new token and its secret, which exists nowhere else. `days` None: it never expires; `e2b`: in the form of E2B's API keys. Raises Malformed, Forbidden, Conflicting."""
    wanted = frozenset(scopes)
    if not wanted:
        raise Malformed(f"a token needs a scope: {', '.join(Scope)}", field="scopes")
    if beyond := closure(wanted) - scopes_of(role):
        raise Forbidden(f"{user} has no scope {', '.join(sorted(beyond))}, so a token of {user} cannot have it")
    if not name.strip() or len(name) > LONGEST_NAME:
        raise Malformed(f"a token needs a name of at most {LONGEST_NAME} characters", field="name")
    if days is not None and not 0 < days <= MOST_DAYS:
        raise Malformed(f"a token lives for up to {MOST_DAYS} days, or for ever", field="days")
    if connection.execute("SELECT count(*) FROM tokens WHERE user = ?", (user,)).fetchone()[0] >= _MOST_PER_USER:
        raise Conflicting(f"{user} has {_MOST_PER_USER} tokens already; revoke some")
    now = time.time()
    secret = E2B_PREFIX + secrets.token_hex(_E2B_BYTES) if e2b else PREFIX + new_secret()
    expires = None if days is None else now + days * 86400.0
    made = Token("tok-" + secrets.token_hex(8), digest(secret), user, name, wanted, now, expires, None)
    row = (made.id, made.hash, user, name, " ".join(sorted(wanted)), now, expires)
    connection.execute("INSERT INTO tokens(id, hash, user, name, scopes, created, expires) VALUES (?,?,?,?,?,?,?)", row)
    return made, secret


def every(connection: sqlite3.Connection) -> list[Token]:
    """All tokens, the oldest first; expired ones, too, until they are swept."""
    return [_token(row) for row in connection.execute(f"SELECT {_COLUMNS} FROM tokens ORDER BY created")]


def revoke(connection: sqlite3.Connection, identity: str, user: str | None) -> None:
    """Delete a token; `user` None: whosever it is. Raises NotThere."""
    done = connection.execute("DELETE FROM tokens WHERE id = ?1 AND (?2 IS NULL OR user = ?2)", (identity, user))
    if done.rowcount == 0:
        raise NotThere(f"no token {identity[:40]}")


class Tokens:
    """A copy in memory of the tokens. `reload` after each change, `sweep` a few times a second."""

    def __init__(self, database: Database, endings: Endings, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._endings = endings
        self._clock = clock
        self._by_hash: dict[str, Token] = {}
        self._touched: list[Token] = []

    async def reload(self) -> None:
        """Read the tokens; whatever hangs on one that is gone ends."""
        listed = await self._database.run(every)
        before, self._by_hash = self._by_hash, {token.hash: token for token in listed}
        for known in before.keys() & self._by_hash.keys():
            # Its last use may not have been written yet.
            self._by_hash[known].used = before[known].used
        for gone in before.keys() - self._by_hash.keys():
            self._endings.tell(before[gone].id, "revoked")

    async def sweep(self) -> None:
        """End those whose time has come, and write down which were used."""
        touched, self._touched = self._touched, []
        if touched:
            rows = [(token.used, token.id) for token in touched]
            await self._database.run(lambda db: db.executemany("UPDATE tokens SET used = ? WHERE id = ?", rows))
        now = self._clock()
        over = [token for token in self._by_hash.values() if token.over(now)]
        if not over:
            return
        for token in over:
            del self._by_hash[token.hash]
            self._endings.tell(token.id, "expired")
        await self._database.run(lambda db: db.executemany("DELETE FROM tokens WHERE id = ?", [(token.id,) for token in over]))

    def find(self, secret: str) -> Token | None:
        """The live token with this secret."""
        if not secret.startswith((PREFIX, E2B_PREFIX)) or len(secret) > _LONGEST_SECRET:
            return None
        token = self._by_hash.get(digest(secret))
        return token if token is not None and not token.over(self._clock()) else None

    def live(self, identity: str) -> Token | None:
        """The live token with this public id."""
        token = next((one for one in self._by_hash.values() if one.id == identity), None)
        return token if token is not None and not token.over(self._clock()) else None

    def of(self, user: str | None) -> list[Token]:
        """A user's tokens, or everybody's."""
        return [token for token in self._by_hash.values() if user in (None, token.user)]

    def note_use(self, token: Token) -> None:
        """It was used just now; `sweep` writes that down."""
        now = self._clock()
        if token.used is None or now - token.used >= _TOUCH_SECONDS:
            token.used = now
            self._touched.append(token)


_COLUMNS = "id, hash, user, name, scopes, created, expires, used"


def _token(row: tuple) -> Token:
    identity, hashed, user, name, scopes, created, expires, used = row
    return Token(identity, hashed, user, name, frozenset(Scope(scope) for scope in scopes.split()), created, expires, used)
