"""A FUSE server inside that never answers: the fork is refused by name and in time, and nothing waits for the server."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fidelity.harness import Harness, own_mount_namespace
from tests.fidelity.livefork import ForkError

pytestmark = [pytest.mark.root]

_SOURCE = Path(__file__).resolve().parent / "refused" / "fuse_silent.c"
_SECONDS = 10.0
_REFUSED = 3


def _build(directory: Path) -> Path:
    binary = directory / _SOURCE.stem
    directory.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Werror", "-static", "-o", str(binary), str(_SOURCE)], check=True)
    return binary


async def _refuse(mode: str, directory: Path) -> str:
    async with Harness(directory) as harness:
        image = harness.import_root(None, [_build(directory / "programs")])
        source = await harness.launch(image, ["/fidelity/fuse_silent", mode])
        deadline = time.monotonic() + _SECONDS
        while source.read("/tmp/fidelity/fuse_silent.ready") is None:
            assert time.monotonic() < deadline, source.read("/tmp/fidelity/fuse_silent.result")
            await asyncio.sleep(0.02)
        started = time.monotonic()
        with pytest.raises(ForkError) as failure:
            await harness.fork(source)
        assert time.monotonic() - started < _SECONDS
        assert failure.value.status == _REFUSED
        assert source.alive
        return failure.value.message


def _in_own_process(mode: str, directory: Path) -> str:
    """The harness takes a private mount namespace, which a process of its own can throw away."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fidelity.test_fuse", mode, str(directory)],
        cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, timeout=60, check=False, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_mounted_server_is_refused_with_place_and_remedy(tmp_path: Path) -> None:
    message = _in_own_process("mounted", tmp_path / "harness")
    assert "(fuse_silent) sees the FUSE file system silent at /tmp/fuse-mount; unmount it" in message
    assert "(fuse_silent) serves a FUSE file system (fd 3)" in message


def test_a_detached_mount_is_found_by_the_open_file(tmp_path: Path) -> None:
    message = _in_own_process("detached", tmp_path / "harness")
    assert "which a FUSE server serves; close it" in message


if __name__ == "__main__":
    own_mount_namespace()
    print(asyncio.run(_refuse(sys.argv[1], Path(sys.argv[2]))))
