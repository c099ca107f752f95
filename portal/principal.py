"""Who makes a request, and what that person or program may do."""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable
from dataclasses import dataclass

from portal.errors import NotShown
from portal.sessions import FRESH_SECONDS, Session


class Scope(enum.StrEnum):
    """What a request needs. `admin` includes all; each of the others includes `read`."""

    READ = "read"
    CONTROL = "control"
    FORK = "fork"
    ADMIN = "admin"


class Role(enum.StrEnum):
    """A user sees the workspaces that are its own, an admin all."""

    ADMIN = "admin"
    USER = "user"


def closure(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """`scopes` with those that they include."""
    wanted = frozenset(scopes)
    if Scope.ADMIN in wanted:
        return frozenset(Scope)
    return wanted | {Scope.READ} if wanted else wanted


@dataclass(frozen=True)
class Principal:
    """An authenticated user. One of `session` (a browser) and `token` (the public id of an API token) is set."""

    user: str
    role: Role
    scopes: frozenset[Scope]
    session: Session | None = None
    token: str | None = None

    @property
    def grant(self) -> str:
        """The public id of what lets it in: everything that it opened closes when portal.endings tells of this."""
        return self.session.id if self.session is not None else self.token or ""

    @property
    def is_person(self) -> bool:
        """Whether a browser's login made the request, not a program's token."""
        return self.session is not None

    def require_fresh(self) -> None:
        """For what decides about logins and rights: whoever found a browser open must not do it. A token is what it is. Raises NotShown."""
        if self.session is not None and not self.session.is_fresh(time.time()):
            raise NotShown(f"show again who you are first: this asks for it when it was longer than {FRESH_SECONDS / 60:.0f} minutes ago")

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes


def scopes_of(role: Role) -> frozenset[Scope]:
    """All that a role allows."""
    return frozenset(Scope) if role is Role.ADMIN else closure([Scope.CONTROL, Scope.FORK])


def of_session(session: Session, role: Role) -> Principal:
    """What a login gives: everything that the role allows."""
    return Principal(session.user, role, scopes_of(role), session=session)
