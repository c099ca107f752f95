"""How many workspaces, and how much memory, disk and processors, a user and all users together may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from portal.errors import OverQuota
from portal.feed import Feed
from portal.owners import Owners
from portal.settings import SettingsStore
from portal.users import Users

# What a launch without such a limit gets where a quota for it holds, and what a workspace without one counts for: launched before the quota
# was set, or without the portal.
DEFAULT_DISK = 10 << 30
DEFAULT_CPUS = 2.0
_MIB, _GIB = 1 << 20, 1 << 30
# By the name of a quota: the workspace's limit that it adds up, and what one without that limit counts for.
_SUMS: dict[str, tuple[str, float]] = {"memory": ("memory_limit", 0), "disk": ("disk_limit", DEFAULT_DISK), "cpus": ("cpu_limit", DEFAULT_CPUS)}

Amounts = dict[str, float]


@dataclass(frozen=True)
class Limits:
    """Those of one workspace: `memory` and `disk` in bytes, `cpus` processors. None: without."""

    memory: int | None
    disk: int | None
    cpus: float | None

    @classmethod
    def of(cls, workspace: dict[str, Any]) -> Limits:
        return cls(workspace["memory_limit"], workspace["disk_limit"], workspace["cpu_limit"])

    def amounts(self, count: int) -> Amounts:
        """What so many workspaces with these limits count for."""
        return {"workspaces": count, **{name: count * _counted(name, getattr(self, name)) for name in _SUMS}}


class Quotas:
    """Compares what there is with the settings. Memory, disk and processors are counted by the workspaces' limits: what they may come to use."""

    def __init__(self, feed: Feed, owners: Owners, settings: SettingsStore, users: Users) -> None:
        self._feed = feed
        self._owners = owners
        self._settings = settings
        self._users = users
        # Requests under way: their workspaces do not exist yet.
        self._promised: list[tuple[str | None, Amounts]] = []

    def use(self, user: str | None) -> Amounts:
        """What a user has (None: all users together): `workspaces`, `memory` and `disk` in bytes, `cpus`.

        Without what is promised: a workspace is known while the request for it is still under way, and would be told twice to whoever asks just then.
        """
        return _sum(self._parts(user))

    def _taken(self, user: str | None) -> Amounts:
        """What a user has and was promised: rather too much for a moment than more than there may be."""
        return _sum(self._parts(user) + [amounts for whose, amounts in self._promised if user is None or whose == user])

    def _parts(self, user: str | None) -> list[Amounts]:
        owned = [item for item in self._feed.workspaces() if user is None or self._owners.of(item["id"]) == user]
        return [Limits.of(item).amounts(1) for item in owned]

    def limits(self, user: str | None, unlimited: bool = False) -> dict[str, float | None]:
        """The limits of a user, or of all together. `unlimited`: the user is an admin."""
        now = self._settings.now
        if user is None:
            return {"workspaces": now.all_workspaces, "memory": now.all_memory, "disk": now.all_disk, "cpus": now.all_cpus}
        everyones = {"workspaces": now.user_workspaces, "memory": now.user_memory, "disk": now.user_disk, "cpus": now.user_cpus}
        if unlimited:
            return dict.fromkeys(everyones)
        account = self._users.find(user)
        own = {} if account is None else account.quota()
        return {name: everyones[name] if own.get(name) is None else own[name] for name in everyones}

    def granted(self, owner: str, wanted: Limits, unlimited: bool) -> Limits:
        """The limits of a workspace to launch: the wanted ones; where a quota for disk or processors holds and none is wanted, the default."""
        held = [self.limits(owner, unlimited), self.limits(None)]

        def holds(name: str) -> bool:
            return any(limits[name] is not None for limits in held)

        disk = DEFAULT_DISK if wanted.disk is None and holds("disk") else wanted.disk
        cpus = DEFAULT_CPUS if wanted.cpus is None and holds("cpus") else wanted.cpus
        return Limits(wanted.memory, disk, cpus)

    def reserve(self, owner: str | None, count: int, each: Limits, unlimited: bool, asks: str | None = None) -> Reservation:
        """Room for `count` more workspaces with the limits `each`, kept while inside the reservation.

        `asks`: the user whom a refusal is told. Raises OverQuota (429).
        """
        wanted = each.amounts(count)
        if owner is not None:
            self._check(owner, wanted, self.limits(owner, unlimited), asks)
        self._check(None, wanted, self.limits(None), asks)
        return Reservation(self._promised, (owner, wanted))

    def _check(self, user: str | None, wanted: Amounts, limits: dict[str, float | None], asks: str | None) -> None:
        use = self._taken(user)
        for name, limit in limits.items():
            if limit is None or use[name] + wanted[name] <= limit:
                continue
            whose = "all users together have" if user is None else "you have" if user == asks else f"the user {user} has"
            remedy = "discard some first" if use[name] else "ask for less, or an admin for a higher quota"
            figures: dict[str, Any] = {"quota": name, "limit": limit, "use": use[name], "wanted": wanted[name], "user": user}
            raise OverQuota(
                f"{whose} {_figure(name, use[name])} of {_amount(name, limit)}, so {_figure(name, wanted[name])} more cannot be had; {remedy}",
                **figures,
            )


class Reservation:
    """Counts as used while inside."""

    def __init__(self, promised: list[tuple[str | None, Amounts]], promise: tuple[str | None, Amounts]) -> None:
        self._promised = promised
        self._promise = promise

    def __enter__(self) -> None:
        self._promised.append(self._promise)

    def __exit__(self, *exception: object) -> None:
        self._promised.remove(self._promise)


def _sum(parts: list[Amounts]) -> Amounts:
    return {name: round(sum(part[name] for part in parts), 2) for name in ("workspaces", *_SUMS)}


def _counted(name: str, limit: float | None) -> float:
    """What a workspace with this limit counts for. A wrong one, which the engine refuses, takes nothing away from the sum meanwhile."""
    return _SUMS[name][1] if limit is None else max(0, limit)


def _figure(name: str, value: float) -> str:
    if name in ("memory", "disk"):
        whole = int(value)
        return f"{whole // _GIB} GiB" if whole and whole % _GIB == 0 else f"{whole // _MIB} MiB"
    return f"{value:g}"


def _amount(name: str, value: float) -> str:
    """A figure and what it is of."""
    of = {"memory": " of memory", "disk": " of disk", "cpus": f" processor{'' if value == 1 else 's'}", "workspaces": f" workspace{'' if value == 1 else 's'}"}
    return _figure(name, value) + of[name]
