"""Each desktop has a token of its own: a fork's branches get new ones, and the source keeps its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from engine.client import EngineClient
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


async def test_a_fork_rotates_the_token_of_its_branches(engine: Engine, client: EngineClient, tmp_path: Path) -> None:
    publish_desktop(engine, guest.build("desktop", tmp_path))

    async def tables(ref: str) -> list[list[str]]:
        _, out, _ = await client.run(ref, ["cat", "/tmp/tables"])
        return [list(json.loads(line)) for line in out.splitlines()]

    source = (await client.launch("desk", wait=True))["id"]
    first = (await client.stream_token(source))["token"]
    result = await client.fork(source, copies=2)
    assert result["ms"]["first_frame"] >= result["ms"]["usable"]
    branches = [branch["id"] for branch in result["branches"]]
    tokens = [(await client.stream_token(branch))["token"] for branch in branches]
    assert len({first, *tokens}) == 3 and min(len(token) for token in tokens) >= 40
    assert (await client.stream_token(source))["token"] == first
    # What the stream server itself was told: in a branch its own token replaced the source's.
    assert await tables(source) == [[first]]
    for branch, token in zip(branches, tokens, strict=True):
        assert await tables(branch) == [[first], [token]]
