"""Launch, use, stop and remove: what a caller sees, and that nothing is left on the host."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest

from engine.client import EngineClient
from engine.errors import Conflict, Internal, NotFound
from tests.engine.support import IMAGE, Engine, eventually, exists, leftovers, pids_of


async def test_a_launched_workspace_runs_its_image_under_its_limits(engine: Engine, client: EngineClient) -> None:
    made = await client.launch(IMAGE, name="one", memory=64 << 20, pids=50, wait=True)
    assert (made["state"], made["kind"], made["name"], made["generation"]) == ("ready", "source", "one", 0)
    assert made["memory_limit"] == 64 << 20
    assert list(made["ports"]) == ["3000"]
    status, out, _ = await client.run("one", ["cat", "/etc/hostname", "/etc/resolv.conf", "/run/tclone/branch.json"])
    assert status == 0
    hostname, resolver, record = out.decode().split("\n", 2)
    assert (hostname, resolver) == ("one", "nameserver 10.77.0.1")
    assert json.loads(record)["id"] == made["id"]
    # Past the pids limit fork fails inside; the engine and the workspace go on.
    status, _, err = await client.run("one", ["sh", "-c", "i=0; while [ $i -lt 60 ]; do sleep 3 & i=$((i+1)); done"])
    assert b"fork" in err
    assert (await client.get("one"))["state"] == "ready"


async def test_pid_1_holds_nothing_of_the_host_and_runs_from_inside_its_root(engine: Engine, client: EngineClient) -> None:
    made = await client.launch(IMAGE, wait=True)
    first = min(pids_of(engine, made["id"]))
    assert os.readlink(f"/proc/{first}/exe") == "/usr/libexec/tclone/init"
    root = os.stat(f"/proc/{first}/root").st_dev
    for number in os.listdir(f"/proc/{first}/fd"):
        path = f"/proc/{first}/fd/{number}"
        target = os.readlink(path)
        assert target == "/dev/null" or os.stat(path).st_dev == root, target


@pytest.mark.alone
async def test_everything_is_gone_within_two_seconds_of_a_removal(engine: Engine, client: EngineClient) -> None:
    made = await client.launch(IMAGE, name="gone", wait=True)
    pids = pids_of(engine, made["id"])
    assert len(pids) >= 2 and leftovers(engine, made["id"])
    started = time.monotonic()
    await client.remove("gone")
    assert time.monotonic() - started < 2
    assert not leftovers(engine, made["id"])
    assert not [pid for pid in pids if exists(pid)]
    with pytest.raises(NotFound):
        await client.get("gone")


async def test_a_removal_that_failed_can_be_asked_for_again(engine: Engine, client: EngineClient) -> None:
    made = await client.launch(IMAGE, name="stuck", wait=True)
    # A subvolume below keeps btrfs from deleting the layer.
    obstacle = engine.config.data / "pool" / "workspaces" / made["id"] / "obstacle"
    subprocess.run(["btrfs", "subvolume", "create", str(obstacle)], check=True, capture_output=True)
    with pytest.raises(Internal, match=rf"{made['id']} is not removed completely: layer: ") as failure:
        await client.remove("stuck")
    shown = await client.get("stuck")
    assert (shown["state"], shown["error"]) == ("removing", failure.value.message)
    subprocess.run(["btrfs", "subvolume", "delete", str(obstacle)], check=True, capture_output=True)
    await client.remove("stuck")
    assert not leftovers(engine, made["id"])
    with pytest.raises(NotFound):
        await client.get("stuck")


async def test_the_end_of_pid_1_is_noticed_and_the_log_stays(engine: Engine, client: EngineClient) -> None:
    made = await client.launch(IMAGE, command=["sh", "-c", "echo last words; exec sleep 1000"], wait=True)
    os.kill(min(pids_of(engine, made["id"])), signal.SIGKILL)

    async def stopped() -> bool:
        return (await client.get(made["id"]))["state"] == "stopped"

    await eventually(stopped)
    assert b"last words" in b"".join([chunk async for chunk in client.logs(made["id"])])
    with pytest.raises(Conflict, match="stopped"):
        await client.run(made["id"], ["true"])
    with pytest.raises(Conflict, match="stopped"):
        await client.fork(made["id"])


async def test_a_program_that_ends_at_once_is_reported_and_leaves_a_removable_workspace(client: EngineClient) -> None:
    made = await client.launch(IMAGE, command=["true"])

    async def ended() -> bool:
        return (await client.get(made["id"]))["state"] in ("stopped", "failed")

    await eventually(ended)
    assert (await client.get(made["id"]))["error"]


async def test_stats_and_logs(client: EngineClient) -> None:
    made = await client.launch(IMAGE, wait=True)
    await client.run(made["id"], ["dd", "if=/dev/zero", "of=/tmp/big", "bs=1M", "count=5"])
    stats = await client.stats(made["id"])
    assert stats["processes"] == 2 and stats["threads"] == 2
    assert stats["pss_bytes"] > 0 and stats["memory_bytes"] > 0
    assert b"".join([chunk async for chunk in client.logs(made["id"], tail=1)]) == b"started\n"


@pytest.mark.parametrize("trick", ["ln -s /etc/shadow", "mkfifo", "mkdir"])
async def test_a_workspace_cannot_make_the_engine_read_through_its_log(client: EngineClient, trick: str) -> None:
    made = await client.launch(IMAGE, wait=True)
    await client.run(made["id"], ["sh", "-c", f"rm /var/log/tclone/console.log && {trick} /var/log/tclone/console.log"])
    assert [chunk async for chunk in client.logs(made["id"])] == []


async def test_an_image_in_use_cannot_be_removed(client: EngineClient) -> None:
    await client.launch(IMAGE)
    with pytest.raises(Conflict, match="in use"):
        await client.remove_image(IMAGE)
