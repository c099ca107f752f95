"""`tclone promote`: what it asks for, what it prints, how it ends."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Tclone
from tests.cli.fake_engine import FakeEngine


@pytest.fixture
def branch(engine: FakeEngine) -> FakeEngine:
    engine.add("branch", kind="branch", parent="ws-9")
    return engine


async def test_each_path_is_told(branch: FakeEngine, tclone: Tclone) -> None:
    done = await tclone("promote", "branch", "/home/user/a b", "/etc/hosts")
    assert (done.status, done.out, done.err) == (0, "~ /home/user/a b\n~ /etc/hosts\n", "")
    asked = [(path, body) for method, path, body in branch.requests if method == "POST"]
    assert asked == [("/v1/workspaces/branch/promote", {"into": "parent", "paths": ["/home/user/a%20b", "/etc/hosts"], "force": False, "dry_run": False})]
    planned = await tclone("promote", "--dry-run", "--to", "ws-7", "branch", "/a")
    assert planned.status == 0 and planned.err == "nothing was done; without --dry-run these become ws-7's\n"
    assert (await tclone("promote", "branch", "/same")).err == "parent has it all already\n"
    assert json.loads((await tclone("promote", "--json", "branch", "/a")).out)["paths"][0]["outcome"] == "done"


async def test_what_stands_against_it(branch: FakeEngine, tclone: Tclone) -> None:
    refused = await tclone("promote", "branch", "/taken")
    assert refused.status == 5 and "give --force to replace it all the same" in refused.err and refused.out == ""
    assert (await tclone("promote", "-f", "branch", "/taken")).status == 0
    failed = await tclone("promote", "branch", "/a", "/full")
    assert (failed.status, failed.out) == (1, "~ /a\n~ /full  failed: no space left\n")
    assert (await tclone("promote", "brunch", "/a")).status == 4
    assert (await tclone("promote", "branch")).status == 2
