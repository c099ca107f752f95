"""What the host holds besides a workspace costs its forks nothing, and a hundred forks leave nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engine.cgroups import ROOT, layout
from engine.client import EngineClient
from engine.cgroups import parent_of
from engine.stage import _KEPT_READY
from tests.engine.support import IMAGE, Engine, eventually
from tests.leaks import LeakCounter

_SIBLINGS = 20_000
_ROUNDS = 15
_FORKS = 100


@contextlib.contextmanager
def sibling_groups(engine: Engine, count: int) -> Iterator[None]:
    """Empty groups beside the workspaces' own: in the v2 tree, else in the hierarchies of v1 that need no memory for each."""
    parent = parent_of(engine.run)
    roots = [ROOT] if layout() == "v2" else [ROOT / name for name in ("pids", "freezer") if (ROOT / name).is_dir()]
    made: list[Path] = []
    try:
        for root in roots:
            for number in range(count):
                path = root / parent / f"empty-{number}"
                path.mkdir()
                made.append(path)
        yield
    finally:
        for path in made:
            path.rmdir()


async def quickest_fork(client: EngineClient, ref: str) -> float:
    """ms until usable. The quickest of several is what a fork costs; the others tell what the machine did besides."""
    times = []
    for _ in range(_ROUNDS):
        result = await client.fork(ref)
        assert result["branches"][0]["error"] is None
        times.append(result["ms"]["usable"])
        await client.remove(result["branches"][0]["id"])
    return min(times)


@pytest.mark.alone
@pytest.mark.slow
async def test_empty_sibling_groups_do_not_slow_forks_down(engine: Engine, client: EngineClient) -> None:
    workspace = (await client.launch(IMAGE, wait=True))["id"]
    await quickest_fork(client, workspace)
    # Before, with, after: what the machine does meanwhile shows in the difference of the first and the last.
    before = await quickest_fork(client, workspace)
    with sibling_groups(engine, _SIBLINGS):
        crowded = await quickest_fork(client, workspace)
    after = await quickest_fork(client, workspace)
    clean, noise = (before + after) / 2, abs(before - after)
    print(f"usable after {before:.1f}, {crowded:.1f} (crowded), {after:.1f} ms")
    assert crowded < clean * 1.2 + noise, f"{before:.1f} ms, {crowded:.1f} ms with {_SIBLINGS} siblings, {after:.1f} ms"


@pytest.mark.slow
async def test_a_hundred_forks_leave_nothing(engine: Engine, client: EngineClient, data: Path, leaks: LeakCounter) -> None:
    workspace = (await client.launch(IMAGE, wait=True))["id"]
    assert engine.process is not None
    process = psutil.Process(engine.process.pid)

    async def forks(count: int) -> None:
        for _ in range(count // 4):
            for branch in (await client.fork(workspace, copies=4))["branches"]:
                assert branch["error"] is None
                await client.remove(branch["id"])

    async def settled() -> None:
        """Prepared branches are made again in the background: until there are as many as are kept, and all of them wait."""
        ready = 1 + _KEPT_READY
        await eventually(lambda: len(prepared()) == ready, what="the prepared branches", seconds=20)
        await eventually(lambda: all((path / "bundle/pid").exists() for path in prepared()), what="their containers", seconds=20)

    def prepared() -> list[Path]:
        return list((engine.run / "workspaces").iterdir())

    await forks(8)
    await settled()
    counted = LeakCounter()
    counted.own_engine(data, engine.run)
    counted.start()
    files, memory = process.num_fds(), process.memory_info().rss
    await forks(_FORKS)
    await settled()
    for kind, growth in by_kind(counted).items():
        assert growth <= 0, (kind, counted.growth())
    assert process.num_fds() <= files + 2
    assert process.memory_info().rss - memory < 32 << 20
    assert os.listdir(engine.config.pool / "workspaces") == [workspace] and os.listdir(engine.run / "exec") == []


def by_kind(counted: LeakCounter) -> dict[str, int]:
    """Growth in number, by kind: a prepared branch that replaced another one is none."""
    before = counted.before
    assert before is not None
    now = type(before).take()
    kinds = {
        "control groups": (before.cgroups, now.cgroups), "mounts": (before.mounts.values(), now.mounts.values()),
        "loop devices": (before.loops.values(), now.loops.values()), "interfaces": (before.links, now.links),
    }  # fmt: skip

    def ours(names) -> int:
        return sum(1 for name in names if any(marker in name for marker in counted.markers))

    return {kind: ours(after) - ours(first) for kind, (first, after) in kinds.items()}
