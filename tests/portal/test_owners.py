"""Whose a workspace is, and who is told of it. No engine and no sockets are needed for that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from portal.database import Database
from portal.live import View
from portal.owners import Owners
from portal.principal import Principal, Role, Scope, closure

ADMIN = Principal("admin", Role.ADMIN, frozenset(Scope))
ANNA = Principal("anna", Role.USER, closure([Scope.FORK]))
BEN = Principal("ben", Role.USER, closure([Scope.FORK]))


def workspace(identity: str, parent: str | None = None) -> dict[str, Any]:
    return {"id": identity, "name": identity, "parent": parent}


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    made = Database(tmp_path / "portal.db")
    await made.open()
    yield made
    await made.close()


async def opened(database: Database) -> Owners:
    owners = Owners(database)
    await owners.open()
    return owners


async def test_branches_belong_to_the_owner_of_their_parent_also_after_a_restart(database: Database) -> None:
    owners = await opened(database)
    await owners.claim("ws-1", "anna")
    await owners.appeared(workspace("ws-2", "ws-1"))
    await owners.gone("ws-1")
    await owners.appeared(workspace("ws-3", "ws-2"))
    again = await opened(database)
    assert [again.of(one) for one in ("ws-1", "ws-2", "ws-3")] == [None, "anna", "anna"]


async def test_workspaces_of_nobody_are_the_admins_alone(database: Database) -> None:
    owners = await opened(database)
    await owners.appeared(workspace("ws-1"))
    assert owners.sees(ADMIN, "ws-1") and not owners.sees(ANNA, "ws-1")


async def test_what_went_while_nobody_looked_is_forgotten(database: Database) -> None:
    owners = await opened(database)
    await owners.claim("ws-1", "anna")
    await owners.claim("ws-2", "ben")
    await owners.present({"ws-2"})
    assert (owners.of("ws-1"), owners.of("ws-2")) == (None, "ben")


async def test_a_view_of_the_feed_holds_only_what_its_user_sees(database: Database) -> None:
    owners = await opened(database)
    await owners.claim("ws-1", "anna")
    await owners.claim("ws-2", "ben")
    view = View(owners, ANNA)
    snapshot = {
        "type": "snapshot",
        "workspaces": [workspace("ws-1"), workspace("ws-2")],
        "operations": {"ws-1": {}, "ws-2": {}},
        "facts": {"life": {"ws-1": 1, "ws-2": 2}},
    }
    seen = view.of(snapshot)
    assert seen is not None and [item["id"] for item in seen["workspaces"]] == ["ws-1"] and list(seen["operations"]) == ["ws-1"]
    assert seen["facts"] == {"life": {"ws-1": 1}}
    assert view.of({"type": "progress", "workspace": "ws-2", "data": {}}) is None
    assert view.of({"type": "gone", "workspace": "ws-2", "data": {}}) is None
    assert view.of({"type": "engine", "state": "up"}) is not None
    # A branch is shown before its owner is written down, and its end when that is forgotten already.
    assert view.of({"type": "workspace", "workspace": "ws-3", "data": workspace("ws-3", "ws-1")}) is not None
    assert view.of({"type": "gone", "workspace": "ws-3", "data": {}}) is not None
    assert View(owners, BEN).of({"type": "gone", "workspace": "ws-3", "data": {}}) is None


def test_scopes_include_others() -> None:
    assert closure([Scope.ADMIN]) == frozenset(Scope)
    assert closure([Scope.CONTROL]) == {Scope.CONTROL, Scope.READ}
    assert closure([]) == frozenset()
