"""A limit on what a workspace writes: it is felt inside, and by nobody else."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import quota
from engine.client import EngineClient
from engine.errors import BadRequest, NoSpace, Unsupported
from engine.storage import Storage
from tests.engine.support import IMAGE, Engine, eventually

_LIMIT = 64 << 20


async def _write(client: EngineClient, ref: str, mib: int) -> bytes:
    """What a program in the workspace says that writes so much; empty when it could."""
    status, _, err = await client.run(ref, ["sh", "-c", f"dd if=/dev/zero of=/big bs=1M count={mib} conv=fsync"])
    return b"" if status == 0 else err


async def test_a_full_workspace_is_told_so_and_others_go_on(serving: Engine, client: EngineClient) -> None:
    await client.launch(IMAGE, name="small", disk=_LIMIT, wait=True)
    await client.launch(IMAGE, name="free", wait=True)
    assert b"uota exceeded" in await _write(client, "small", 100)
    assert await _write(client, "free", 100) == b""
    # Whose room it is that is used up: other workspaces need not go.
    with pytest.raises(NoSpace, match=r"^/more of ws-\d+: the workspace's own disk limit is reached; .*--disk"):
        await client.write_file("small", "/more", b"x" * (8 << 20))
    used = await client.stats("small")
    assert used["disk_limit"] == _LIMIT and used["disk_counted"] <= _LIMIT
    assert (await client.stats("free"))["disk_limit"] is None and (await client.stats("free"))["disk_counted"] is None
    # It runs on, can be forked when full, and has room again once it has removed something that nobody else has.
    made = await client.fork("small", copies=1, name="copy")
    assert made["branches"][0]["error"] is None
    # What quotas add up is told of each workspace.
    assert [(await client.get(ref))["disk_limit"] for ref in ("small", "copy", "free")] == [_LIMIT, _LIMIT, None]
    branch = await client.stats("copy")
    assert branch["disk_limit"] == _LIMIT and branch["disk_counted"] < 8 << 20, "what it shares with its source counts for the source"
    status, _, _ = await client.run("copy", ["sh", "-c", "dd if=/dev/zero of=/own bs=1M count=40 conv=fsync"])
    assert status == 0
    status, _, err = await client.run("copy", ["sh", "-c", "dd if=/dev/zero of=/more bs=1M count=40 conv=fsync"])
    assert status != 0 and b"uota exceeded" in err
    await client.remove("copy")
    status, _, err = await client.run("small", ["rm", "/big"])
    assert status == 0, err
    # What was removed is free when the kernel has cleared the fork's snapshot away, too, which it does every 30 s; here it is asked to.
    async with asyncio.timeout(90):
        while b"uota exceeded" in await _write(client, "small", 20):
            await asyncio.to_thread(subprocess.run, ["btrfs", "filesystem", "sync", str(serving.config.pool)], check=True)
            await asyncio.sleep(0.1)


async def test_a_limit_too_small_to_start_with_is_refused(client: EngineClient) -> None:
    for wrong in (1 << 20, -1, "10g"):
        with pytest.raises(BadRequest):
            await client.launch(IMAGE, disk=wrong)  # type: ignore[arg-type]


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Path]:
    """A btrfs that is not the engine's own, without quotas."""
    image, place = tmp_path / "image", tmp_path / "data"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(1 << 30)
    subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True, capture_output=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


async def test_quotas_of_the_host_are_never_turned_on(foreign: Path) -> None:
    storage = Storage(foreign)
    storage.open()
    storage.create_layer("ws-1")
    with pytest.raises(Unsupported, match="btrfs quota enable --simple"):
        storage.limit_layer("ws-1", _LIMIT)
    layer = os.open(storage.layer("ws-1"), os.O_RDONLY)
    try:
        assert quota.use(layer) is None
    finally:
        os.close(layer)
    # Once its owner has done so, they serve.
    host = os.open(foreign, os.O_RDONLY)
    try:
        quota._turn_on(host, may=True)
    finally:
        os.close(host)
    storage.create_layer("ws-2")
    storage.limit_layer("ws-2", _LIMIT)
    await eventually(lambda: storage.counted("ws-2") is not None, what="the count")
    storage.remove_layer("ws-1")
    storage.remove_layer("ws-2")
