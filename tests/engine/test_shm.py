"""The size of /dev/shm: limited, chosen at launch, the same in branches."""

from __future__ import annotations

import pytest

from engine.client import EngineClient
from engine.errors import BadRequest
from tests.engine.support import IMAGE

MIB = 1 << 20


async def size_of(client: EngineClient, ref: str) -> int:
    """Bytes that /dev/shm may hold."""
    status, out, err = await client.run(ref, ["stat", "-f", "-c", "%b %S", "/dev/shm"])
    assert status == 0, err
    blocks, block = out.split()
    return int(blocks) * int(block)


@pytest.mark.parametrize(
    ("memory", "shm", "expected"), [(4096 * MIB, None, 1024 * MIB), (256 * MIB, None, 128 * MIB), (256 * MIB, 40 * MIB, 40 * MIB), (None, 2048 * MIB, 2048 * MIB)]
)
async def test_size_is_limited_and_kept_in_branches(
    client: EngineClient, memory: int | None, shm: int | None, expected: int
) -> None:
    source = (await client.launch(IMAGE, memory=memory, shm=shm, wait=True))["id"]
    assert await size_of(client, source) == expected
    branch = (await client.fork(source))["branches"][0]["id"]
    assert await size_of(client, branch) == expected
    deep = (await client.fork(branch))["branches"][0]["id"]
    assert await size_of(client, deep) == expected


async def test_a_full_one_is_forked_and_stays_full(client: EngineClient) -> None:
    source = (await client.launch(IMAGE, shm=8 * MIB, wait=True))["id"]
    fill = "dd if=/dev/zero of=/dev/shm/file bs=1048576 count=20; stat -c %s /dev/shm/file"
    assert (await client.run(source, ["sh", "-c", fill]))[1] == b"8388608\n"
    branch = (await client.fork(source))["branches"][0]["id"]
    for ref in (source, branch):
        status, out, err = await client.run(ref, ["sh", "-c", "stat -c %s /dev/shm/file; echo more > /dev/shm/other"])
        assert out == b"8388608\n" and status != 0, err


async def test_nonsense_is_refused(client: EngineClient) -> None:
    with pytest.raises(BadRequest, match="shm"):
        await client.launch(IMAGE, shm=1000)
