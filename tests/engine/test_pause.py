"""Pausing: programs stand still with all they have, nothing is asked of them meanwhile, and they go on where they were."""

from __future__ import annotations

import asyncio
import signal

import pytest

from engine.cgroups import Cgroups, parent_of
from engine.client import EngineClient
from engine.errors import Conflict
from tests.engine.support import IMAGE, Engine, pids_of

COUNTER = "i=0; while :; do i=$((i+1)); echo $i >/tmp/count; sleep 0.02; done"


async def counted(client: EngineClient) -> int:
    async with client.read_file("one", "/tmp/count") as answer:
        return int((await answer.read()) or b"0")


async def test_a_paused_workspace_stands_still_and_goes_on(engine: Engine, client: EngineClient) -> None:
    made = await client.launch(IMAGE, name="one", command=["sh", "-c", COUNTER], wait=True)
    async with asyncio.timeout(20):
        while await counted(client) < 3:
            await asyncio.sleep(0.02)
    assert (await client.pause("one"))["paused"] is True and (await client.pause("one"))["paused"] is True
    first = await counted(client)
    # Long enough for many more, did it run.
    await asyncio.sleep(0.5)
    assert await counted(client) == first
    for refused in (client.run("one", ["true"]), client.fork("one")):
        with pytest.raises(Conflict, match="paused; `tclone resume"):
            await refused
    assert (await client.examine("one"))["ok"] is False
    # The engine may be restarted meanwhile: it knows, and what stands still goes on standing still.
    await engine.stop()
    await engine.start()
    assert (await client.get("one"))["paused"] is True and await counted(client) == first
    pids = set(pids_of(engine, made["id"]))
    assert (await client.resume("one"))["paused"] is False
    async with asyncio.timeout(20):
        while await counted(client) <= first:
            await asyncio.sleep(0.02)
    assert min(pids) in pids_of(engine, made["id"])
    assert (await client.run("one", ["true"]))[0] == 0
    result = await client.fork("one")
    assert result["branches"][0]["error"] is None


async def test_a_paused_workspace_can_be_removed(engine: Engine, client: EngineClient) -> None:
    made = await client.launch(IMAGE, name="two", wait=True)
    await client.pause("two")
    await client.remove("two")
    assert pids_of(engine, made["id"]) == []


async def test_what_was_stopped_by_an_engine_that_ended_in_its_midst_goes_on(engine: Engine, client: EngineClient) -> None:
    """Its record does not say that it stands still."""
    made = await client.launch(IMAGE, name="one", command=["sh", "-c", COUNTER], wait=True)

    async def stopped() -> int:
        groups = Cgroups(parent_of(engine.run))
        groups.open()
        try:
            groups.freeze(made["id"], True)
        finally:
            groups.close()
        before = await counted(client)
        await asyncio.sleep(0.2)
        assert await counted(client) == before
        return before

    async def goes_on(before: int) -> None:
        async with asyncio.timeout(20):
            while await counted(client) <= before:
                await asyncio.sleep(0.02)

    async with asyncio.timeout(20):
        while (await client.run("one", ["sh", "-c", "[ -s /tmp/count ]"]))[0] != 0:
            await asyncio.sleep(0.02)
    first = await stopped()
    assert (await client.resume("one"))["paused"] is False
    await goes_on(first)
    second = await stopped()
    await engine.stop(signal.SIGKILL)
    await engine.start()
    await goes_on(second)
