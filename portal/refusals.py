"""Calls of somebody who has no right to them, on record: whoever tries what others have, or what a stolen token might be good for, is seen."""

from __future__ import annotations

from collections import Counter

from portal import audit, logs
from portal.errors import PortalError, TooMany
from portal.principal import Principal
from portal.rates import Rates

# A program that does not give up must not fill the disk: of each grant so many at once, then one in a while, which says how many it stands for.
_BURST, _PER_SECOND = 50, 0.1
_MOST_ENTRIES = 10_000


class Refusals:
    """What `record` is told of, as `refused` in the audit log."""

    def __init__(self) -> None:
        self._rates = Rates(_BURST, _PER_SECOND, what="refusals")
        self._left_out: Counter[str] = Counter()

    def record(self, principal: Principal, workspace: str, error: PortalError, asked: str = "") -> None:
        """`asked`: what was asked for, where it is not told by the request's route."""
        try:
            self._rates.take(principal.grant, 1)
        except TooMany:
            if principal.grant in self._left_out or len(self._left_out) < _MOST_ENTRIES:
                self._left_out[principal.grant] += 1
            return
        count = self._left_out.pop(principal.grant, 0)
        more = {"left_out": count} if count else {}
        audit.record("refused", user=principal.user, token=principal.token, workspace=workspace, asked=asked or logs.route(), outcome=error.code, **more)
