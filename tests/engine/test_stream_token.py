"""Each desktop has a token of its own: a fork's branches get new ones, and the source keeps its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from pathlib import Path

import pytest

from engine.client import EngineClient
from engine.errors import BadRequest, Conflict
from engine.images import ImageStore
from tests.engine import guest
from tests.engine.support import IMAGE, Engine


def publish_desktop(engine: Engine, server: Path) -> None:
    """The tiny image again, with a program that plays the stream server."""
    store = ImageStore(engine.config)
    tiny = store.rootfs(store.get(IMAGE).digest)
    stage = store.new_stage("desk")
    shutil.copytree(tiny, stage / "rootfs", symlinks=True, dirs_exist_ok=True)
    shutil.copy(server, stage / "rootfs/bin/desktop")
    settings = {"entrypoint": ["/bin/desktop"], "env": {"PATH": "/bin"}, "workdir": "/", "desktop": {"port": 8080}, "ports": []}
    store.describe(stage, "desk", "desk-0000000000", settings)
    store.publish(stage, "desk-0000000000")
    store.discard(stage)


async def _tables(client: EngineClient, ref: str) -> list[list[str]]:
    """The tokens of each table that the stream server was told."""
    _, out, _ = await client.run(ref, ["cat", "/tmp/tables"])
    return [list(json.loads(line)) for line in out.splitlines()]


async def test_a_stream_server_that_started_again_is_told_its_token_before_a_viewer_comes(
    engine: Engine, client: EngineClient, tmp_path: Path
) -> None:
    publish_desktop(engine, guest.build("desktop", tmp_path))
    source = (await client.launch("desk", wait=True))["id"]
    token = (await client.stream_token(source))["token"]
    assert (await client.stream_token(source))["token"] == token
    told = [token, (await client.stream_token(source, "viewer"))["token"]]
    assert await _tables(client, source) == [told]
    assert (await client.run(source, ["busybox", "touch", "/tmp/restarted"]))[0] == 0
    # What was true a moment ago is believed for one second.
    await asyncio.sleep(1.2)
    assert (await client.stream_token(source))["token"] == token
    assert await _tables(client, source) == [told, told]


async def test_without_a_stream_server_there_is_no_token(engine: Engine, client: EngineClient, tmp_path: Path) -> None:
    """A viewer let through now would meet a server that has not been told yet."""
    publish_desktop(engine, guest.build("desktop", tmp_path))
    source = (await client.launch("desk", wait=True))["id"]
    await client.stream_token(source)
    assert (await client.run(source, ["busybox", "touch", "/tmp/deaf"]))[0] == 0
    await asyncio.sleep(1.2)
    with pytest.raises(Conflict, match="stream server of ws-[0-9]+ is starting again"):
        await client.stream_token(source)
    assert (await client.run(source, ["busybox", "rm", "/tmp/deaf"]))[0] == 0
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(Conflict):
                await client.stream_token(source)
                break
            await asyncio.sleep(0.1)


async def test_a_fork_rotates_the_token_of_its_branches(engine: Engine, client: EngineClient, tmp_path: Path) -> None:
    publish_desktop(engine, guest.build("desktop", tmp_path))

    source = (await client.launch("desk", wait=True))["id"]
    first = (await client.stream_token(source))["token"]
    result = await client.fork(source, copies=2)
    assert result["ms"]["first_frame"] >= result["ms"]["usable"]
    branches = [branch["id"] for branch in result["branches"]]
    tokens = [(await client.stream_token(branch))["token"] for branch in branches]
    assert len({first, *tokens}) == 3 and min(len(token) for token in tokens) >= 40
    assert (await client.stream_token(source))["token"] == first
    # What the stream server itself was told: in a branch its own token replaced the source's.
    watching = (await client.stream_token(source, "viewer"))["token"]
    assert len(watching) >= 40 and watching not in (first, *tokens)
    assert await _tables(client, source) == [[first, watching]]
    for branch, token in zip(branches, tokens, strict=True):
        branch_watching = (await client.stream_token(branch, "viewer"))["token"]
        assert branch_watching != watching
        assert await _tables(client, branch) == [[first, watching], [token, branch_watching]]
    with pytest.raises(BadRequest, match="role"):
        await client.stream_token(source, "root")
