"""Why a branch did not come to life is told as it was: by its restorer's own word, by the memory that it had, or that somebody killed it."""

from __future__ import annotations

import mmap
import resource
from pathlib import Path

import pytest

from engine.cgroups import INSIDE, Cgroups, Limits, parent_of
from engine.client import EngineClient
from engine.errors import Internal, LimitReached
from tests.engine.support import IMAGE, Engine, eventually

pytestmark = [pytest.mark.root]

_LIMIT = 64 << 20
_HELD = 160 << 20


def _restorers(engine: Engine) -> list[int]:
    """Host pids of the restorers which wait for a fork."""
    groups = Cgroups(parent_of(engine.run))
    found = {pid for name in groups.names() for pid in groups.processes(name)}
    return sorted(pid for pid in found if Path(f"/proc/{pid}/comm").read_text() == "restore\n")


async def test_a_restorer_that_gives_up_before_its_arena_is_there_says_why(engine: Engine, client: EngineClient) -> None:
    await client.launch(IMAGE, name="src", wait=True)
    await eventually(lambda: len(_restorers(engine)) >= 2)
    for pid in _restorers(engine):
        # Room for itself, and not for what the fork is written down in.
        room = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * mmap.PAGESIZE
        resource.prlimit(pid, resource.RLIMIT_AS, (room, room))
    with pytest.raises(Internal, match="its restorer gave up: cannot map the arena: Cannot allocate memory") as told:
        await client.fork("src", copies=2)
    assert "memory limit" not in told.value.message
    assert (await client.get("src"))["state"] == "ready"


async def test_a_branch_that_its_memory_limit_kills_is_told_of_as_such(engine: Engine, client: EngineClient) -> None:
    hold = f"BEGIN {{ held = sprintf(\"%{_HELD}s\", \"x\"); while (1) system(\"sleep 100\") }}"
    command = ["sh", "-c", f"while [ ! -e /root/go ]; do sleep 0.1; done; exec busybox awk '{hold}'"]
    source = await client.launch(IMAGE, name="src", memory=_LIMIT, command=command, wait=True)
    groups = Cgroups(parent_of(engine.run))
    # The source alone gets more, behind the engine's back: a branch has what the workspace was launched with.
    groups.set_limits(source["id"], Limits(4 * _HELD, None))
    await client.run("src", ["sh", "-c", "echo > /root/go"])
    await eventually(lambda: groups.memory_bytes(source["id"]) > _HELD)
    with pytest.raises(LimitReached, match=f"its memory limit of 64 MiB is too low: end something in {source['id']}, or launch it with more") as told:
        await client.fork("src")
    assert "killed" in told.value.message
    assert (await client.get("src"))["state"] == "ready"


def test_what_memory_killed_is_counted_where_the_kernel_counts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both layouts, the one that this host does not have, too."""
    monkeypatch.setattr("engine.cgroups.ROOT", tmp_path)
    groups = Cgroups("parent")
    group = groups._controller("memory", "ws-1")
    (group / INSIDE).mkdir(parents=True)
    assert groups.memory_kills("ws-1") == 0
    for v2, name, directory in ((False, "memory.oom_control", group / INSIDE), (True, "memory.events", group)):
        groups.v2 = v2
        place = groups._controller("memory", "ws-1")
        (place / INSIDE).mkdir(parents=True, exist_ok=True)
        (place / directory.relative_to(group) / name).write_text("oom 9\noom_kill_disable 0\noom_kill 3\n")
        assert groups.memory_kills("ws-1") == 3
