"""One-time codes by which a page of the portal opens a desktop on another host."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from portal.database import digest
from portal.sessions import new_secret

LIFE_SECONDS = 30.0
# Codes of one session that wait to be redeemed; the oldest goes first. A grid of nine tiles asks for nine at once.
_PER_SESSION = 64


@dataclass(frozen=True)
class _Ticket:
    session: str
    workspace: str
    expires: float


class Tickets:
    """Codes in memory only: they live 30 s, and a restart of control makes the page ask for another."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tickets: dict[str, _Ticket] = {}

    def issue(self, session: str, workspace: str) -> str:
        """A code of 256 bits for this session or share link (its public id) and workspace."""
        self._sweep()
        own = [key for key, ticket in self._tickets.items() if ticket.session == session]
        for key in own[: max(0, len(own) + 1 - _PER_SESSION)]:
            del self._tickets[key]
        code = new_secret()
        self._tickets[digest(code)] = _Ticket(session, workspace, self._clock() + LIFE_SECONDS)
        return code

    def redeem(self, code: str, workspace: str) -> str | None:
        """The session id behind a code, once. None when unknown, used, too old or for another workspace; it is used up in any case."""
        ticket = self._tickets.pop(digest(code), None)
        if ticket is None or ticket.workspace != workspace or self._clock() >= ticket.expires:
            return None
        return ticket.session

    def forget(self, session: str) -> None:
        """Drop the codes of an ended session."""
        self._tickets = {key: ticket for key, ticket in self._tickets.items() if ticket.session != session}

    def _sweep(self) -> None:
        now = self._clock()
        self._tickets = {key: ticket for key, ticket in self._tickets.items() if ticket.expires > now}
