"""Real builds from the host's mirror, of a base system: interrupted, concurrent, repeated, failing. And what the headless image is made of."""

from __future__ import annotations

import asyncio
import contextlib
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
from engine.image_process import run_confined
from engine.images import ImageStore
from tests.images.conftest import leftovers

pytestmark = pytest.mark.timeout(1500)

_BUILDER = """
import asyncio, sys
from engine.config import Config
from engine.image_build import build
asyncio.run(build("tiny", Config.from_environment(), lambda phase, detail, ms: print(phase, detail, flush=True)))
"""


async def start_builder(config: Config) -> asyncio.subprocess.Process:
    env = {
        **os.environ, "TCLONE_DATA": str(config.data), "TCLONE_RUN": str(config.run), "TCLONE_IMAGES": str(config.images), "PYTHONPATH": str(REPO),
    }  # fmt: skip
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


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages that this file's builds have fetched; those of the test machine's own cache to begin with."""
    folder = tmp_path_factory.mktemp("packages") / "debs"
    folder.mkdir()
    known = Path(os.environ["TCLONE_CACHE"]) / "debs" if "TCLONE_CACHE" in os.environ else folder
    for path in known.glob("*.deb"):
        with contextlib.suppress(OSError):  # just removed, or on another file system
            os.link(path, folder / path.name)
    return folder


@pytest.fixture
def tiny(config: Config, tmp_path: Path, packages: Path) -> Config:
    """A recipe with nothing but the base system."""
    folder = tmp_path / "images/tiny"
    folder.mkdir(parents=True)
    (folder / "configure.sh").write_text("test ! -e /proc/net/route || test \"$(wc -l </proc/net/route)\" -le 1\ntouch /made\n")
    (folder / "recipe.toml").write_text(
        'name = "tiny"\nsuite = "trixie"\n[packages]\nexclude_paths = ["/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*"]\n'
        '[build]\nconfigure = "configure.sh"\n[image]\nentrypoint = ["/bin/true"]\n'
    )
    config.cache.mkdir(parents=True)
    (config.cache / "debs").symlink_to(packages)
    return dataclasses.replace(config, images=tmp_path / "images")


async def test_killed_builds_leave_nothing_and_the_next_ones_make_it_once(tiny: Config, progress, leaks) -> None:
    store = ImageStore(tiny)
    for phase in ("fetch", "unpack", "configure"):
        process = await start_builder(tiny)
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
        assert str(tiny.data) not in Path("/proc/self/mounts").read_text()
        assert store.list() == []
        await store.clean_all()
        assert leftovers(tiny) == []

    image, second = await asyncio.gather(build("tiny", tiny, progress), build("tiny", tiny, progress))
    assert store.get("tiny") == image == second
    assert [detail for phase, detail, _ in progress if phase == "fetch"].count("package lists") == 1
    assert [phase for phase in progress.phases if phase != "wait"] == ["fetch", "unpack", "configure", "wheels", "pack", "import"]
    assert "wait" in progress.phases
    assert json.loads((tiny.pool / "images" / image.digest / "image.json").read_text())["digest"] == image.digest
    assert (store.rootfs(image.digest) / "made").exists()
    assert leftovers(tiny) == []

    # Built once: the next call answers from the pool, and a lost pool comes back from the cache.
    progress.clear()
    assert await build("tiny", tiny, progress) == image and progress == []
    await asyncio.to_thread(subprocess.run, ["rm", "-rf", str(tiny.pool)], check=True)
    assert await build("tiny", tiny, progress) == image
    assert progress.phases == ["import"]


async def test_what_the_headless_image_is_made_of(config: Config, progress) -> None:
    """Built here, unless the test machine has it in its cache already."""
    shared = dataclasses.replace(config, cache_directory=Config.from_environment().cache_directory)
    image = await build("workspace", shared, progress)
    root = ImageStore(shared).rootfs(image.digest)
    for program in ("bash", "tmux", "python3", "git", "ps", "ip"):
        assert os.path.lexists(root / "usr/bin" / program), program
    # Nothing of the host's set-up, and no device, is in it.
    assert not (root / "etc/apt/apt.conf.d/99mmdebstrap").exists()
    assert not list((root / "var/cache/apt").glob("**/*.deb"))
    assert (root / "etc/machine-id").read_text() == ""
    assert image.size < 300 << 20


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


async def test_debians_programs_are_taken_whatever_comes_before_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("python3", "only-here"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 3\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    lines: list[str] = []
    await run_confined(["sh", "-c", "command -v python3; command -v only-here"], "looking for programs", lines.append)
    assert lines == ["/usr/bin/python3", str(tmp_path / "only-here")]


async def test_recipe_for_another_machine_is_refused(tiny, progress) -> None:
    path = tiny.images / "tiny/recipe.toml"
    path.write_text('architectures = ["s390x"]\n' + path.read_text())
    with pytest.raises(BadRequest, match="s390x"):
        await build("tiny", tiny, progress)
