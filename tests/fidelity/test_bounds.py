"""What livefork itself needs for a workspace that works against it: a bounded amount of memory, however many mappings, descriptors, threads and signals."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from engine.bundle import rlimits
from tests.engine import guest
from tests.fidelity.apart import run_apart
from tests.fidelity.harness import Harness, own_mount_namespace
from tests.fidelity.livefork import Container

pytestmark = [pytest.mark.root]

# Measured alone: 1.6 MiB for next to nothing, 19 for 60 000 mappings, 12 for 9000 descriptors, 14 for 1000 threads, 6 for 8192 signals.
_MOST = 128 << 20
_MAPPINGS, _DESCRIPTORS, _THREADS, _SIGNALS = 60_000, 30_000, 1000, 8192
_READY_SECONDS = 30.0


def _descriptors() -> int:
    """As many as a fork can hold where the host's limit is lower: each is there twice, under its number and in a slot of its own."""
    return min(_DESCRIPTORS, (rlimits()[0]["hard"] - 1000) // 2)


def _look(peaks: list[int]):
    """Note the peak of the child that works, and let it go on."""

    def look(first: int, _branches: list[Container]) -> None:
        worker = Path(f"/proc/{first}/task/{first}/children").read_text().split()[0]
        peaks.append(int(Path(f"/proc/{worker}/status").read_text().partition("VmHWM:")[2].split()[0]) << 10)
        os.kill(first, signal.SIGCONT)

    return look


async def _beat(container: Container, after: str = "") -> str:
    """What the program says of itself once more: the number of the beat, and whether all that it had is there."""
    deadline = time.monotonic() + _READY_SECONDS
    while (text := container.read("/tmp/beat") or "") in ("", after):
        assert time.monotonic() < deadline, f"{container.id} says nothing: {container.read('/var/log/tclone/console.log')}"
        await asyncio.sleep(0.05)
    return text


async def _fork(directory: Path) -> None:
    peaks: list[int] = []
    programs = directory / "programs"
    programs.mkdir(parents=True)
    async with Harness(directory) as harness:
        image = harness.import_root(None, [guest.build("heavy", programs)])
        wanted = [f"maps={_MAPPINGS}", f"descriptors={_descriptors()}", f"threads={_THREADS}", f"signals={_SIGNALS}"]
        source = await harness.launch(image, ["/fidelity/heavy", *wanted])
        await _beat(source)
        branch = (await harness.fork(source, stop_at="rebuilt", when_stopped=_look(peaks))).branches[0]
        for container in (source, branch):
            text = await _beat(container, await _beat(container))
            assert text.endswith(" 1\n"), (container.id, text)
    print(f"peak: {peaks[0] / (1 << 20):.1f} MiB", file=sys.stderr)
    assert 1 << 20 < peaks[0] < _MOST, f"{peaks[0]} bytes"


@pytest.mark.timeout(120)
def test_memory_for_a_process_that_has_much_of_everything_is_bounded(tmp_path: Path) -> None:
    run_apart("tests.fidelity.test_bounds", tmp_path / "harness", seconds=110)


if __name__ == "__main__":
    own_mount_namespace()
    asyncio.run(_fork(Path(sys.argv[1])))
