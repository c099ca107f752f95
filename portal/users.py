"""The users as requests see them: who may come in, and in what role."""

from __future__ import annotations

from portal import accounts
from portal.accounts import Account
from portal.database import Database
from portal.owners import Owners
from portal.principal import Role


class Users:
    """A copy in memory of the accounts. `reload` after each change."""

    def __init__(self, database: Database, owners: Owners) -> None:
        self._database = database
        self._owners = owners
        self._accounts: dict[str, Account] = {}

    async def reload(self) -> set[str]:
        """Read the accounts; workspaces of those that were removed lose their owner. Who is no admin any more."""
        listed = await self._database.run(accounts.every)
        before, self._accounts = self._accounts, {account.user: account for account in listed}
        for user in before.keys() - self._accounts.keys():
            self._owners.release(user)
        return {user for user, account in self._accounts.items() if account.role is not Role.ADMIN and user in before and before[user].role is Role.ADMIN}

    def enabled(self, user: str) -> Account | None:
        """The account of a user that may come in."""
        account = self.find(user)
        return account if account is not None and not account.disabled else None

    def find(self, user: str) -> Account | None:
        """The account of a user, of a disabled one too."""
        return self._accounts.get(user)

    def every(self) -> list[Account]:
        """All accounts by name."""
        return list(self._accounts.values())
