"""An engine that is killed at any point: workspaces run on, the next engine finds them and leaves nothing half made."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

import pytest

from engine.client import EngineClient
from engine.errors import EngineError
from tests.engine.support import IMAGE, Engine, eventually, pids_of


async def test_workspaces_survive_kill_9_and_are_found_again(engine: Engine, client: EngineClient) -> None:
    made = await client.launch(IMAGE, name="keep", wait=True)
    pids = pids_of(engine, made["id"])
    await engine.stop(signal.SIGKILL)
    await engine.start()
    found = await client.get("keep")
    assert (found["state"], found["ports"]) == ("ready", made["ports"])
    assert pids_of(engine, made["id"]) == pids
    assert (await client.run("keep", ["echo", "on"]))[1] == b"on\n"
    # Its end is still noticed.
    os.kill(min(pids), signal.SIGKILL)

    async def stopped() -> bool:
        return (await client.get("keep"))["state"] == "stopped"

    await eventually(stopped)


async def test_an_end_while_the_engine_was_away(engine: Engine, client: EngineClient) -> None:
    made = await client.launch(IMAGE, name="dies", wait=True)
    first = min(pids_of(engine, made["id"]))
    await engine.stop(signal.SIGKILL)
    os.kill(first, signal.SIGKILL)
    await engine.start()
    assert (await client.get("dies"))["state"] == "stopped"


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1, 0.2])
async def test_kill_9_during_a_launch(engine: Engine, client: EngineClient, delay: float) -> None:
    launch = asyncio.ensure_future(client.launch(IMAGE, name="half"))
    await asyncio.sleep(delay)
    await engine.stop(signal.SIGKILL)
    with contextlib.suppress(EngineError):
        await launch
    await engine.start()
    listed = await client.list()
    # Whole or not at all.
    assert set(os.listdir(engine.config.pool / "workspaces")) == {item["id"] for item in listed}
    for item in listed:
        assert item["state"] in ("ready", "starting")
        assert (await client.run(item["id"], ["true"]))[0] == 0
    with contextlib.suppress(FileNotFoundError):
        assert set(os.listdir(engine.run / "workspaces")) == {item["id"] for item in listed}


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.03])
async def test_kill_9_during_a_removal(engine: Engine, client: EngineClient, delay: float) -> None:
    await client.launch(IMAGE, name="half", wait=True)
    removal = asyncio.ensure_future(client.remove("half"))
    await asyncio.sleep(delay)
    await engine.stop(signal.SIGKILL)
    with contextlib.suppress(EngineError):
        await removal
    await engine.start()
    for item in await client.list():
        assert item["state"] == "ready"  # the removal had not begun
    assert set(os.listdir(engine.config.pool / "workspaces")) == {item["id"] for item in await client.list()}


async def test_what_belongs_to_nobody_is_removed(engine: Engine, client: EngineClient) -> None:
    await engine.stop()
    from engine.storage import Storage

    storage = Storage(engine.config.data)
    storage.open()
    storage.create_layer("ws-987654")
    storage.close()
    await engine.start()
    assert os.listdir(engine.config.pool / "workspaces") == []


async def test_events_go_on_after_a_restart(engine: Engine, client: EngineClient) -> None:
    events = client.events()
    assert (await anext(events))["type"] == "snapshot"
    made = await client.launch(IMAGE)
    event = await anext(events)
    assert (event["type"], event["workspace"]) == ("workspace", made["id"])
    await engine.stop(signal.SIGKILL)
    seen = []
    async with asyncio.timeout(60):
        restarted = False
        async for event in events:
            seen.append(event["type"])
            if event["type"] == "disconnected" and not restarted:
                restarted = True
                await engine.start()
            if restarted and event["type"] == "snapshot":
                assert [item["id"] for item in event["workspaces"]] == [made["id"]]
                break
    assert "disconnected" in seen
    await events.aclose()
