"""How many workspaces, and how much memory and disk, a user and all users together may have."""

from __future__ import annotations

from typing import Any

from portal.errors import OverQuota
from portal.feed import Feed
from portal.owners import Owners
from portal.settings import SettingsStore
from portal.users import Users

# What a launch without a disk limit gets where a quota for disk holds, and what a workspace without one counts for: launched before the quota
# was set, or without the portal.
DEFAULT_DISK = 10 << 30
_MIB, _GIB = 1 << 20, 1 << 30
# By the name of a quota: the workspace's limit that it adds up, and what one without that limit counts for.
_SUMS = {"memory": ("memory_limit", 0), "disk": ("disk_limit", DEFAULT_DISK)}

Amounts = dict[str, int]


class Quotas:
    """Compares what there is with the settings. Memory and disk are counted by the workspaces' limits: what they may come to use."""

    def __init__(self, feed: Feed, owners: Owners, settings: SettingsStore, users: Users) -> None:
        self._feed = feed
        self._owners = owners
        self._settings = settings
        self._users = users
        # Requests under way: their workspaces do not exist yet.
        self._promised: list[tuple[str | None, Amounts]] = []

    def use(self, user: str | None) -> Amounts:
        """What a user has (None: all users together): `workspaces`, `memory` and `disk` in bytes."""
        owned = [item for item in self._feed.workspaces() if user is None or self._owners.of(item["id"]) == user]
        parts = [{"workspaces": 1, **{name: _counted(name, item[key]) for name, (key, _) in _SUMS.items()}} for item in owned]
        parts += [amounts for whose, amounts in self._promised if user is None or whose == user]
        return {name: sum(part[name] for part in parts) for name in ("workspaces", *_SUMS)}

    def limits(self, user: str | None, unlimited: bool = False) -> dict[str, int | None]:
        """The limits of a user, or of all together. `unlimited`: the user is an admin."""
        now = self._settings.now
        if user is None:
            return {"workspaces": now.all_workspaces, "memory": now.all_memory, "disk": now.all_disk}
        everyones = {"workspaces": now.user_workspaces, "memory": now.user_memory, "disk": now.user_disk}
        if unlimited:
            return dict.fromkeys(everyones)
        account = self._users.find(user)
        own = {} if account is None else {"workspaces": account.most_workspaces, "memory": account.most_memory, "disk": account.most_disk}
        return {name: everyones[name] if own.get(name) is None else own[name] for name in everyones}

    def disk_limit(self, owner: str, wanted: int | None, unlimited: bool) -> int | None:
        """The disk limit in bytes of a workspace to launch: the wanted one; without, DEFAULT_DISK where a quota for disk holds, else none."""
        if wanted is not None:
            return wanted
        held = self.limits(owner, unlimited)["disk"], self.limits(None)["disk"]
        return None if held == (None, None) else DEFAULT_DISK

    def reserve(
        self, owner: str | None, count: int, memory: int | None, disk: int | None, unlimited: bool, asks: str | None = None
    ) -> Reservation:
        """Room for `count` more workspaces whose limits are `memory` and `disk` bytes each, kept while inside the reservation.

        `asks`: the user whom a refusal is told. Raises OverQuota (429).
        """
        wanted = {"workspaces": count, "memory": count * _counted("memory", memory), "disk": count * _counted("disk", disk)}
        if owner is not None:
            self._check(owner, wanted, self.limits(owner, unlimited), asks)
        self._check(None, wanted, self.limits(None), asks)
        return Reservation(self._promised, (owner, wanted))

    def _check(self, user: str | None, wanted: Amounts, limits: dict[str, int | None], asks: str | None) -> None:
        use = self.use(user)
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


def _counted(name: str, limit: int | None) -> int:
    """What a workspace with this limit counts for. A wrong one, which the engine refuses, takes nothing away from the sum meanwhile."""
    return _SUMS[name][1] if limit is None else max(0, limit)


def _figure(name: str, value: int) -> str:
    if name in _SUMS:
        return f"{value // _GIB} GiB" if value and value % _GIB == 0 else f"{value // _MIB} MiB"
    return str(value)


def _amount(name: str, value: int) -> str:
    """A figure and what it is of."""
    return f"{_figure(name, value)} of {name}" if name in _SUMS else f"{value} workspace{'' if value == 1 else 's'}"
