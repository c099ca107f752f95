"""Forks one desktop again and again, several copies at once, on a busy machine: nothing may fail and nothing may be left.

    python bench/soak.py [--forks N] [--copies N] [--stress N] [--cache DIRECTORY]

A command stays open in the source by `exec` all the time, and `--stress` processes keep the CPUs busy. Every branch must show the windows
and the picture that the source shows; it is removed then. Needs root. Exit status: 0 nothing failed and nothing is left, 1 otherwise, 2 bad usage.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from PIL import Image, ImageChops

REPO = Path(__file__).resolve().parent.parent
# Run as a program, the first entry is bench/ itself, whose modules are not top-level ones.
if __name__ == "__main__":
    sys.path[0] = str(REPO)

from bench import launch  # noqa: E402
from bench.own_engine import OwnEngine, remove_quietly  # noqa: E402
from bench.workload import DESKTOP  # noqa: E402
from engine.client import EngineClient, ExecSession  # noqa: E402
from engine.errors import EngineError  # noqa: E402
from tests.leaks import LeakCounter, become_subreaper  # noqa: E402

_ANSWER_SECONDS = 60.0
# A clock goes on and a cursor blinks; a desktop without its wallpaper, or a window that was not drawn, differs in a tenth of the screen and more.
_OTHER_PICTURE = 0.04
_SMALL = (160, 100)
_OTHER_LEVEL = 24


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/soak.py", description="Fork one desktop many times on a busy machine.")
    parser.add_argument("--forks", type=int, default=500, help="branches in all (default %(default)s)")
    parser.add_argument("--copies", type=int, default=8, help="branches of one fork (default %(default)s)")
    parser.add_argument("--stress", type=int, default=os.cpu_count() or 1, help="processes that only compute (default: one a CPU)")
    parser.add_argument("--cache", type=Path, default=Path(os.environ.get("TCLONE_CACHE", "/var/cache/tclone")), help="image archives")
    options = parser.parse_args(argv)
    if not 1 <= options.copies <= 8 or options.forks < 1 or options.stress < 0:
        parser.error("--copies is from 1 to 8, --forks at least 1, --stress not negative")
    return options


def _compute() -> None:
    while True:
        sum(range(100_000))


@contextlib.contextmanager
def _stress(count: int) -> Iterator[None]:
    workers = [multiprocessing.Process(target=_compute, daemon=True) for _ in range(count)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        for worker in workers:
            worker.kill()
            worker.join()


class _Echo:
    """An `exec` of cat that stays open: what is written comes back."""

    def __init__(self, session: ExecSession) -> None:
        self._session = session
        self._output = session.output()
        self._count = 0

    async def check(self) -> None:
        """One line there and back. Raises AssertionError, EngineError or TimeoutError."""
        self._count += 1
        wanted = f"line {self._count}\n".encode()
        await self._session.write(wanted)
        got = b""
        while len(got) < len(wanted):
            _, data = await asyncio.wait_for(anext(self._output), _ANSWER_SECONDS)
            got += data
        assert got == wanted, f"the open command answered {got!r}, not {wanted!r}"


@contextlib.asynccontextmanager
async def _open_command(client: EngineClient, source: str) -> AsyncIterator[_Echo]:
    async with client.exec(source, ["cat"]) as session:
        yield _Echo(session)
        await session.close_stdin()


async def _picture(client: EngineClient, workspace: str) -> Image.Image:
    taken = await client.screenshot(workspace)
    assert taken is not None, "only one that is the same as before is no picture"
    return Image.open(io.BytesIO(taken.content)).convert("L").resize(_SMALL)


def _difference(one: Image.Image, other: Image.Image) -> float:
    """The part of two pictures that differs, from 0 to 1."""
    counts = ImageChops.difference(one, other).histogram()
    return sum(counts[_OTHER_LEVEL:]) / sum(counts)


class Soak:
    """The rounds, and what went wrong in them."""

    def __init__(self, client: EngineClient, source: str, windows: int) -> None:
        self._client = client
        self._source = source
        self._windows = windows
        self._shown: Image.Image
        self.branches = 0
        self.failures: list[str] = []
        self._said = 0
        self.pauses: list[float] = []

    async def round(self, copies: int) -> None:
        """One fork, every branch looked at and removed."""
        self.branches += copies
        self._shown = await _picture(self._client, self._source)
        try:
            result = await self._client.fork(self._source, copies=copies)
        except EngineError as error:
            self.failures.append(f"fork: {error.message}")
            return
        self.pauses.append(result["ms"]["pause"])
        await asyncio.gather(*(self._look(branch) for branch in result["branches"]))
        self.failures += await remove_quietly(self._client, [branch["id"] for branch in result["branches"] if branch.get("id")])

    def say_failures(self) -> None:
        """Print those that were not printed yet."""
        for failure in self.failures[self._said :]:
            print(f"  failed: {failure}", flush=True)
        self._said = len(self.failures)

    async def look_at_source(self) -> None:
        """The source shows what it showed before."""
        windows = await launch.windows(self._client, self._source)
        if windows != self._windows:
            self.failures.append(f"the source shows {windows} windows, {self._windows} before")

    def state(self) -> str:
        """A line for people."""
        pause = f"pause {self.pauses[-1]:.0f} ms" if self.pauses else "no fork yet"
        return f"{self.branches} branches, {len(self.failures)} failures, {pause}"

    async def _look(self, branch: dict) -> None:
        if branch.get("error"):
            self.failures.append(f"{branch['id']}: {branch['error']}")
            return
        try:
            windows = await launch.windows(self._client, branch["id"])
            different = _difference(self._shown, await _picture(self._client, branch["id"]))
        except EngineError as error:
            self.failures.append(f"{branch['id']}: {error.message}")
            return
        if windows != self._windows:
            self.failures.append(f"{branch['id']} shows {windows} windows, the source {self._windows}")
        if different > _OTHER_PICTURE:
            self.failures.append(f"{branch['id']} shows another picture than the source: {different:.0%} of it differs")


async def _run(options: argparse.Namespace, directory: Path, leaks: LeakCounter) -> list[str]:
    async with OwnEngine(directory, options.cache) as engine:
        leaks.own_engine(engine.data, engine.run)
        await engine.have_image(DESKTOP.image, print)
        source = await launch.launch(engine.client, DESKTOP, Path())
        soak = Soak(engine.client, source.id, await launch.windows(engine.client, source.id))
        began = time.monotonic()
        with _stress(options.stress):
            async with _open_command(engine.client, source.id) as echo:
                while soak.branches < options.forks:
                    await soak.round(min(options.copies, options.forks - soak.branches))
                    await echo.check()
                    print(f"{time.monotonic() - began:.0f} s: {soak.state()}", flush=True)
                    soak.say_failures()
        await soak.look_at_source()
        soak.say_failures()
        return soak.failures


def main(argv: list[str] | None = None) -> int:
    """Run it; the exit status."""
    options = _arguments(argv)
    become_subreaper()
    leaks = LeakCounter()
    leaks.start()
    with tempfile.TemporaryDirectory(prefix="tclone-soak-", dir="/tmp") as directory:
        failures = asyncio.run(_run(options, Path(directory), leaks))
    try:
        leaks.check(within=20.0)
    except AssertionError as error:
        print(error)
        return 1
    print(f"{options.forks} branches: {len(failures)} failures, nothing left behind")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
