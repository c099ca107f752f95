"""Forks as every face of the portal makes them: room for the children, their owner and time to live, and what came of each."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from engine.errors import EngineError
from engine.labels import is_reserved
from portal import audit, tracing
from portal.errors import Malformed, OverQuota, PortalError
from portal.feed import Feed
from portal.lifetimes import Lifetimes, Rules
from portal.node import Node
from portal.owners import Owners
from portal.principal import Principal, Role
from portal.quotas import Limits, Quotas
from portal.rates import Rates

# Children of one grant: a burst, then so many a second. A search forks eight at a time; only a loop without end comes near.
MADE_BURST, MADE_PER_SECOND = 200, 5.0


@dataclass(frozen=True)
class Wanted:
    """A checked request. `timeout`: seconds after which each child is discarded; `persistent`: never. Without either it is as with its parent.

    `partial`: when there is not room for all, make as many as there is room for, and tell of the others.
    """

    count: int = 1
    name: str | None = None
    tcp_close: bool = False
    network: str | None = None
    labels: list[str] = field(default_factory=list)
    timeout: float | None = None
    persistent: bool = False
    partial: bool = False


class Forks:
    """`fork` for one principal at a time."""

    def __init__(self, node: Node, feed: Feed, owners: Owners, quotas: Quotas, lifetimes: Lifetimes) -> None:
        self._node = node
        self._feed = feed
        self._owners = owners
        self._quotas = quotas
        self._lifetimes = lifetimes
        self._rates = Rates(MADE_BURST, MADE_PER_SECOND, what="new workspaces")

    def pace(self, principal: Principal, count: int) -> None:
        """Before `count` workspaces are made. Raises TooMany."""
        self._rates.take(principal.grant, count)

    async def fork(self, principal: Principal, workspace: str, wanted: Wanted, request_id: str | None = None) -> dict[str, Any]:
        """The engine's fork result, and beside it `results`: for each child {"workspace"} or {"error": {"code", "message", …}}.

        Raises PortalError and EngineError when there is no child at all.
        """
        with audit.outcome("fork", principal, workspace, count=wanted.count) as told:
            _check_labels(principal, wanted.labels)
            self.pace(principal, wanted.count)
            source = await self._node.workspace(workspace)
            with contextlib.ExitStack() as reserved:
                refused = self._reserve(reserved, principal, workspace, wanted, source)
                copies = wanted.count - len(refused)
                measured = reserved.enter_context(tracing.fork(workspace))
                result = await self._node.fork(
                    workspace, copies, wanted.name, wanted.tcp_close, wanted.network, wanted.labels[:copies] or None, request_id=request_id
                )
                measured(result["ms"])
                made = [branch for branch in result["branches"] if branch.get("error") is None]
                told["branches"] = [branch.get("id") for branch in made]
                for branch in made:
                    await self._settle(str(branch.get("id")), workspace, wanted)
            results = [await self._outcome(branch) for branch in result["branches"]] + [_refusal(error) for error in refused]
        return {**result, "results": results}

    def _reserve(self, reserved: contextlib.ExitStack, principal: Principal, workspace: str, wanted: Wanted, source: dict[str, Any]) -> list[OverQuota]:
        """Room for the children, and the refusals of those for which there is none. Raises OverQuota."""
        owner, unlimited = self._owners.of(workspace), principal.role is Role.ADMIN
        each = Limits.of(source)
        if not wanted.partial:
            reserved.enter_context(self._quotas.reserve(owner, wanted.count, each, unlimited, principal.user))
            return []
        refused = []
        for _ in range(wanted.count):
            try:
                reserved.enter_context(self._quotas.reserve(owner, 1, each, unlimited, principal.user))
            except OverQuota as error:
                refused.append(error)
        if len(refused) == wanted.count:
            raise refused[0]
        return refused

    async def _settle(self, child: str, parent: str, wanted: Wanted) -> None:
        """Its owner and its time, before anybody is told of it: whoever asked may use it at once."""
        owner = self._owners.of(parent)
        if owner is not None:
            await self._owners.claim(child, owner)
            self._feed.show(child)
        if wanted.persistent or wanted.timeout is not None:
            await self._lifetimes.rule(child, Rules(None, wanted.timeout))

    async def _outcome(self, branch: dict[str, Any]) -> dict[str, Any]:
        if branch.get("error") is not None:
            return {"error": {"code": "failed", "message": str(branch["error"])[:2000]}}
        try:
            return {"workspace": await self._node.workspace(str(branch["id"]))}
        except (PortalError, EngineError) as error:
            return {"error": {"code": error.code, "message": error.message}}


def _check_labels(principal: Principal, labels: list[str]) -> None:
    """A user's workspace must not be taken for a machine of the host's `tclone vmrun`. Raises Malformed."""
    for label in labels:
        if principal.role is not Role.ADMIN and is_reserved(label):
            raise Malformed(f"the label {label!r} is one of `tclone vmrun`'s; choose another", field="labels")


def _refusal(error: OverQuota) -> dict[str, Any]:
    return {"error": {"code": error.code, "message": error.message, **error.more}}
