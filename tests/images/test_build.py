"""Real builds of the headless image, from the host's mirror: interrupted, concurrent, repeated."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engine.config import REPO, Config
from engine.errors import BadRequest, Internal
from engine.image_build import build
from engine.images import ImageStore
from tests.images.conftest import leftovers

pytestmark = pytest.mark.timeout(1500)

_BUILDER = """
import asyncio, sys
from engine.config import Config
from engine.image_build import build
asyncio.run(build("workspace", Config.from_environment(), lambda phase, detail, ms: print(phase, detail, flush=True)))
"""


async def start_builder(config: Config) -> asyncio.subprocess.Process:
    env = {**os.environ, "TCLONE_DATA": str(config.data), "TCLONE_RUN": str(config.run), "PYTHONPATH": str(REPO)}
    env.pop("TCLONE_CACHE", None)
    return await asyncio.create_subprocess_exec(sys.executable, "-c", _BUILDER, env=env, stdout=subprocess.PIPE)


async def until_phase(process: asyncio.subprocess.Process, phase: str) -> None:
    while line := await process.stdout.readline():
        if line.split()[0] == phase.encode():
            return
    raise AssertionError(f"the builder ended before the phase {phase}")


async def gone(pids: list[int]) -> bool:
    """Whether all these processes end within twenty seconds, on a busy machine (killed ones that nobody has reaped count as ended)."""

    def alive(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    for _ in range(1000):
        if not any(alive(pid) for pid in pids):
            return True
        await asyncio.sleep(0.02)
    return False


async def test_killed_builds_leave_nothing_and_the_next_one_works(config, progress, leaks) -> None:
    store = ImageStore(config)
    for phase in ("fetch", "unpack", "configure"):
        process = await start_builder(config)
        try:
            await until_phase(process, phase)
            # unshare, mmdebstrap and what it started.
            children: list[int] = []
            while len(children) < 3:
                await asyncio.sleep(0.05)
                children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        finally:
            process.kill()
            await process.wait()
            process._transport.close()
        assert await gone(children), f"processes survived a kill in the phase {phase}"
        assert str(config.data) not in Path("/proc/self/mounts").read_text()
        assert store.list() == []
        await store.clean_all()
        assert leftovers(config) == []
    image = await build("workspace", config, progress)
    assert store.get("workspace") == image
    root = store.rootfs(image.digest)
    for program in ("bash", "tmux", "python3", "git", "ps", "ip"):
        assert os.path.lexists(root / "usr/bin" / program), program
    # Nothing of the host's set-up, and no device, is in it.
    assert not (root / "etc/apt/apt.conf.d/99mmdebstrap").exists()
    assert not list((root / "var/cache/apt").glob("**/*.deb"))
    assert (root / "etc/machine-id").read_text() == ""
    assert image.size < 300 << 20
    assert [phase for phase in progress.phases if phase != "wait"] == ["fetch", "unpack", "configure", "wheels", "pack", "import"]
    assert leftovers(config) == []

    # Built once: the second call answers from the pool, and a lost pool comes back from the cache.
    progress.clear()
    assert await build("workspace", config, progress) == image and progress == []
    await asyncio.to_thread(subprocess.run, ["rm", "-rf", str(config.pool)], check=True)
    assert await build("workspace", config, progress) == image
    assert progress.phases == ["import"]


@pytest.fixture
def tiny(config, tmp_path: Path) -> Config:
    """A recipe with nothing but the base system."""
    folder = tmp_path / "images/tiny"
    folder.mkdir(parents=True)
    (folder / "configure.sh").write_text("test ! -e /proc/net/route || test \"$(wc -l </proc/net/route)\" -le 1\ntouch /made\n")
    (folder / "recipe.toml").write_text(
        'name = "tiny"\nsuite = "trixie"\n[packages]\nexclude_paths = ["/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*"]\n'
        '[build]\nconfigure = "configure.sh"\n[image]\nentrypoint = ["/bin/true"]\n'
    )
    return dataclasses.replace(config, images=tmp_path / "images")


async def test_concurrent_builds_of_one_image_make_it_once(tiny, progress) -> None:
    first, second = await asyncio.gather(build("tiny", tiny, progress), build("tiny", tiny, progress))
    assert first == second
    assert (ImageStore(tiny).rootfs(first.digest) / "made").exists()
    assert [detail for phase, detail, _ in progress if phase == "fetch"].count("package lists") == 1
    assert "wait" in progress.phases
    assert json.loads((tiny.pool / "images" / first.digest / "image.json").read_text())["digest"] == first.digest


async def test_failing_and_cancelled_builds_leave_nothing(tiny, progress) -> None:
    (tiny.images / "tiny/configure.sh").write_text("echo the cause of it >&2; exit 3\n")
    with pytest.raises(Internal, match="the cause of it"):
        await build("tiny", tiny, progress)
    assert leftovers(tiny) == []
    progress.clear()
    task = asyncio.create_task(build("tiny", tiny, progress))
    while "unpack" not in progress.phases:
        await asyncio.sleep(0.05)
    children = [child.pid for child in psutil.Process().children(recursive=True)]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await gone(children)
    assert leftovers(tiny) == [] and ImageStore(tiny).list() == []


async def test_recipe_for_another_machine_is_refused(tiny, progress) -> None:
    path = tiny.images / "tiny/recipe.toml"
    path.write_text('architectures = ["s390x"]\n' + path.read_text())
    with pytest.raises(BadRequest, match="s390x"):
        await build("tiny", tiny, progress)
