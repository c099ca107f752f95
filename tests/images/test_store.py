"""The store: names, locks, leftovers, removal, and refilling a lost pool from the cache."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import syscalls
from engine.errors import Conflict, Internal, NotFound
from engine.image_build import _pack
from engine.image_import import import_image
from engine.images import ImageStore, ProgressClock
from tests.images.conftest import entry, leftovers

SHELL = entry("bin/sh", b"#!\n", mode=0o755)


async def test_names_and_digests_find_images(config, progress, archive) -> None:
    store = ImageStore(config)
    old = await import_image(archive(SHELL), "mine", config, progress)
    new = await import_image(archive(SHELL, entry("etc/version", b"2")), "mine", config, progress)
    assert store.get("mine") == new and store.list() == [new, old]
    assert store.get(old.digest) == old and store.get(old.digest[:12]) == old
    for missing in ("other", old.digest[:5], "../mine", ""):
        with pytest.raises(NotFound):
            store.get(missing)


async def test_image_in_use_stays(config, progress, archive) -> None:
    store = ImageStore(config)
    image = await import_image(archive(SHELL), "mine", config, progress)
    with pytest.raises(Conflict, match="in use"):
        await store.remove("mine", {image.digest})
    assert store.has(image.digest)
    assert await store.remove("mine") == [image]
    assert os.listdir(config.pool / "images") == [] and not list(config.cache.glob("*.tar.zst"))
    with pytest.raises(NotFound):
        await store.remove("mine")


async def test_lost_pool_is_refilled_from_the_cache(config, progress, archive) -> None:
    store = ImageStore(config)
    image = await import_image(archive(SHELL, entry("bin/su", b"x", mode=0o4755)), "mine", config, progress)
    await _pack(store.rootfs(image.digest), store, image)
    shutil.rmtree(config.pool)
    assert store.list() == []
    assert await store.restore(image.digest, ProgressClock(progress)) == image
    assert (store.rootfs(image.digest) / "bin/su").stat().st_mode & 0o7777 == 0o4755
    assert leftovers(config) == []


async def test_damaged_archive_leaves_no_image(config, progress, archive) -> None:
    store = ImageStore(config)
    image = await import_image(archive(SHELL, entry("data", os.urandom(1 << 20))), "mine", config, progress)
    await _pack(store.rootfs(image.digest), store, image)
    shutil.rmtree(config.pool)
    packed = config.cache / f"{image.digest}.tar.zst"
    packed.write_bytes(packed.read_bytes()[:-5000])
    with pytest.raises(Internal):
        await store.restore(image.digest, ProgressClock(progress))
    assert store.list() == [] and leftovers(config) == []


async def test_one_name_is_made_by_one_at_a_time(config, progress) -> None:
    store = ImageStore(config)
    order = []

    async def hold(label: str) -> None:
        async with store.lock("mine", ProgressClock(progress)):
            order.append(f"{label} in")
            await asyncio.sleep(0.1)
            order.append(f"{label} out")

    await asyncio.gather(hold("a"), hold("b"))
    assert [step.split()[1] for step in order] == ["in", "out", "in", "out"]
    assert progress.phases == ["wait"]


async def test_lock_of_a_dead_holder_is_free(config) -> None:
    (config.cache / "locks").mkdir(parents=True)
    path = config.cache / "locks/mine.lock"
    holder = subprocess.Popen(["flock", "--no-fork", str(path), "sleep", "60"])
    store = ImageStore(config)
    try:
        async with asyncio.timeout(30):
            while subprocess.run(["flock", "-n", str(path), "true"]).returncode == 0:
                await asyncio.sleep(0.02)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5), store.lock("mine"):
                pass
    finally:
        holder.kill()
        holder.wait()
    async with asyncio.timeout(30), store.lock("mine"):
        pass


async def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(config) -> None:
    store = ImageStore(config)
    dead, living, dashed = [store.new_stage(name) for name in ("dead", "living", "dead-not")]
    (dead / "rootfs/file").touch()
    store.partial_artefact("dead").touch()
    (config.pool / "images/.trash-0123456789ab/rootfs").mkdir(parents=True)
    async with store.lock("living"), store.lock("dead-not"):
        await store.clean_all()
        assert not dead.exists() and living.exists() and dashed.exists()
        assert list(config.cache.glob(".*")) == [] and list((config.pool / "images").glob(".trash*")) == []
    await store.clean_all()
    assert leftovers(config) == []


@pytest.fixture
def btrfs_pool(config, tmp_path: Path, leaks) -> Iterator[Path]:
    image = tmp_path / "pool.img"
    with image.open("wb") as file:
        file.truncate(512 << 20)
    subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True, capture_output=True)
    config.pool.mkdir(parents=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(config.pool)], check=True)
    yield config.pool
    subprocess.run(["umount", str(config.pool)], check=True)


async def test_on_btrfs_an_image_is_a_read_only_subvolume(config, progress, archive, btrfs_pool: Path) -> None:
    store = ImageStore(config)
    image = await import_image(archive(SHELL), "mine", config, progress)
    root = store.rootfs(image.digest)
    assert syscalls.is_subvolume(root)
    with pytest.raises(OSError, match="Read-only"):
        (root / "new").touch()
    await store.remove("mine")
    assert os.listdir(btrfs_pool / "images") == []


async def test_killed_build_on_btrfs_is_cleaned(config, btrfs_pool: Path) -> None:
    store = ImageStore(config)
    stage = store.new_stage("mine")
    (stage / "rootfs/file").touch()
    await store.clean_all()
    assert os.listdir(btrfs_pool / "images") == []
