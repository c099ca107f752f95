"""Namespaces made ahead are as good as new ones, and none is left over."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable

import pytest

from engine.config import Config
from engine.errors import Internal, LimitReached
from engine.network import Network, NetworkSettings, pool
from engine.network.namespace import NetworkNamespace
from tests.leaks import LeakCounter
from tests.network.conftest import Inside


async def _filled(network: Network, count: int) -> None:
    async with asyncio.timeout(10):
        while len(network._pool) < count:
            await asyncio.sleep(0.01)


@pytest.fixture
async def pooled(leaks: LeakCounter, config: Config, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Network]:
    monkeypatch.setattr(pool, "_CALM", 0.05)
    made = Network(config, NetworkSettings(spares=2))
    await made.open()
    await _filled(made, 2)
    yield made
    for workspace in list(made._entries):
        await made.destroy(workspace)
    await made.close()


async def test_a_spare_becomes_a_workspace_without_making_anything(
    pooled: Network, inside: Callable[[str], Inside], monkeypatch: pytest.MonkeyPatch
) -> None:
    spare = pooled._pool._spares[-1]

    def not_now(*arguments: object) -> None:
        raise AssertionError("made or changed although a spare was ready")

    with monkeypatch.context() as patch:
        patch.setattr("engine.network.facade.make_spare", not_now)
        patch.setattr(NetworkNamespace, "apply", not_now)
        await pooled.create("ws-1")
    assert pooled._entries["ws-1"].namespace is spare.namespace
    await _filled(pooled, 2)
    await pooled.create("ws-2")
    for workspace in ("ws-1", "ws-2"):
        _, addresses = await inside(workspace).run("ip", "-o", "address")
        assert "inet 10.77.0.2/24" in addresses
        _, rules = await inside(workspace).run("nft", "list", "ruleset")
        assert "redirect to :61001" in rules


async def test_a_closed_workspace_from_a_spare_is_closed(pooled: Network, inside: Callable[[str], Inside]) -> None:
    await pooled.create("ws-1", "none")
    assert len(pooled._pool) == 1
    status, _ = await inside("ws-1").run("curl", "-sS", "-m", "3", "http://198.18.0.9/")
    assert status == 7
    _, rules = await inside("ws-1").run("nft", "list", "ruleset")
    assert "redirect to :61001" not in rules


async def test_more_than_there_are_spares(pooled: Network) -> None:
    await asyncio.gather(*(pooled.create(f"ws-{number}") for number in range(6)))
    references = [os.stat(entry.namespace.reference).st_ino for entry in pooled._entries.values()]
    assert len(set(references)) == 6


async def test_failures_to_make_spares_do_no_harm(leaks: LeakCounter, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def fails(holder: int) -> pool.Spare:
        nonlocal calls
        calls += 1
        raise LimitReached("no more namespaces")

    monkeypatch.setattr("engine.network.facade.make_spare", fails)
    network = Network(config, NetworkSettings(spares=2))
    await network.open()
    await asyncio.sleep(0.1)
    assert calls == 1
    with pytest.raises(LimitReached):
        await network.create("ws-1")
    assert network.ports("ws-1") == {}
    await network.close()


async def test_a_name_that_cannot_be_kept_leaves_nothing(pooled: Network, config: Config) -> None:
    blocker = config.run / "netns" / "ws-1"
    blocker.mkdir()
    with pytest.raises(Internal, match="ws-1"):
        await pooled.create("ws-1")
    assert "ws-1" not in pooled._entries
    blocker.rmdir()
    await pooled.create("ws-1")
