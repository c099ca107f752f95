"""How many workspaces, and how much memory, a user and all users together may have."""

from __future__ import annotations

from typing import Any

from portal.errors import OverQuota
from portal.feed import Feed
from portal.owners import Owners
from portal.settings import SettingsStore
from portal.users import Users

_MIB = 1 << 20


class Quotas:
    """Compares what there is with the settings. Memory is counted by the workspaces' limits: what they may come to use."""

    def __init__(self, feed: Feed, owners: Owners, settings: SettingsStore, users: Users) -> None:
        self._feed = feed
        self._owners = owners
        self._settings = settings
        self._users = users
        # Requests under way: their workspaces do not exist yet.
        self._promised: list[tuple[str | None, int, int]] = []

    def use(self, user: str | None) -> dict[str, int]:
        """What a user has (None: all users together): `workspaces` and `memory` in bytes."""
        owned = [item for item in self._feed.workspaces() if user is None or self._owners.of(item["id"]) == user]
        promised = [one for one in self._promised if user is None or one[0] == user]
        return {
            "workspaces": len(owned) + sum(count for _, count, _ in promised),
            "memory": sum(item["memory_limit"] or 0 for item in owned) + sum(memory for _, _, memory in promised),
        }

    def limits(self, user: str | None, unlimited: bool = False) -> dict[str, int | None]:
        """The limits of a user, or of all together. `unlimited`: the user is an admin."""
        now = self._settings.now
        if user is None:
            return {"workspaces": now.all_workspaces, "memory": now.all_memory}
        if unlimited:
            return {"workspaces": None, "memory": None}
        account = self._users.find(user)
        own = {"workspaces": account.most_workspaces, "memory": account.most_memory} if account is not None else {}
        everyones = {"workspaces": now.user_workspaces, "memory": now.user_memory}
        return {name: everyones[name] if own.get(name) is None else own[name] for name in everyones}

    def reserve(self, owner: str | None, count: int, memory: int | None, unlimited: bool) -> Reservation:
        """Room for `count` more workspaces of `memory` bytes each, kept while inside the reservation. Raises OverQuota (429)."""
        wanted = {"workspaces": count, "memory": count * (memory or 0)}
        if owner is not None:
            self._check(owner, wanted, self.limits(owner, unlimited))
        self._check(None, wanted, self.limits(None))
        return Reservation(self._promised, (owner, count, wanted["memory"]))

    def _check(self, user: str | None, wanted: dict[str, int], limits: dict[str, int | None]) -> None:
        use = self.use(user)
        for name, limit in limits.items():
            if limit is None or use[name] + wanted[name] <= limit:
                continue
            whose = f"{user} has" if user is not None else "all users together have"
            figures: dict[str, Any] = {"quota": name, "limit": limit, "use": use[name], "wanted": wanted[name], "user": user}
            raise OverQuota(
                f"{whose} {_amount(name, use[name])} of {_amount(name, limit)}, so {_amount(name, wanted[name])} more cannot be had; discard some first",
                **figures,
            )


class Reservation:
    """Counts as used while inside."""

    def __init__(self, promised: list[tuple[str | None, int, int]], promise: tuple[str | None, int, int]) -> None:
        self._promised = promised
        self._promise = promise

    def __enter__(self) -> None:
        self._promised.append(self._promise)

    def __exit__(self, *exception: object) -> None:
        self._promised.remove(self._promise)


def _amount(name: str, value: int) -> str:
    return f"{value // _MIB} MiB of memory" if name == "memory" else f"{value} workspace{'' if value == 1 else 's'}"
