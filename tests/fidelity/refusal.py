"""Programs of tests/fidelity/refused: a workspace that runs one cannot be forked. Run as a program it prints why.

    python -m tests.fidelity.refusal PROGRAM MODE DIRECTORY [late]

With "late" the program comes into its state only when livefork has looked at the running workspace, just before it freezes it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.fidelity import programs
from tests.fidelity.apart import run_apart
from tests.fidelity.harness import Harness, own_mount_namespace
from tests.fidelity.livefork import Container, ForkError

_SOURCES = Path(__file__).resolve().parent / "refused"
_SECONDS = 10.0
# A busy machine may take its time to start a program, as none does that a fork waits for.
_READY_SECONDS = 60.0
_REFUSED = 3


class NotRefusedError(Exception):
    """The fork went on, or ended otherwise than by a refusal in time."""


def _bring_about(source: Container, program: str) -> Callable[[int, list[Container]], None]:
    """Let the program go on while livefork is stopped, until it says that it is in its state."""

    def when_stopped(livefork: int, _: list[Container]) -> None:
        source.write("/tmp/fidelity/late", "late")
        deadline = time.monotonic() + _READY_SECONDS
        while source.read(f"/tmp/fidelity/{program}.late") is None and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(livefork, signal.SIGCONT)

    return when_stopped


async def _refuse(program: str, mode: str, directory: Path, late: bool) -> str:
    async with Harness(directory) as harness:
        image = harness.import_root(None, [programs.compiled(_SOURCES / f"{program}.c")])
        source = await harness.launch(image, [f"/fidelity/{program}", mode, *(["late"] if late else [])])
        deadline = time.monotonic() + _READY_SECONDS
        while source.read(f"/tmp/fidelity/{program}.ready") is None:
            if time.monotonic() > deadline:
                raise NotRefusedError(f"{program} is not ready: {source.read(f'/tmp/fidelity/{program}.result')}")
            await asyncio.sleep(0.02)
        started = time.monotonic()
        try:
            if late:
                await harness.fork(source, stop_at="preflight", when_stopped=_bring_about(source, program))
            else:
                await harness.fork(source)
        except ForkError as error:
            if error.status != _REFUSED or time.monotonic() - started > _SECONDS or not source.alive:
                raise NotRefusedError(f"after {time.monotonic() - started:.1f} s, source alive: {source.alive}: {error}") from error
            return error.message
        finally:
            source.write("/tmp/fidelity/go", "source")
            await asyncio.sleep(0.2)
        made = " (made)" if source.read(f"/tmp/fidelity/{program}.made") is not None else ""
        raise NotRefusedError(f"it was forked{made}")


def refusal(program: str, mode: str, directory: Path, late: bool = False) -> str:
    """Why livefork refuses. Raises NotRefusedError."""
    try:
        return run_apart("tests.fidelity.refusal", program, mode, directory, *(["late"] if late else []), seconds=2 * _READY_SECONDS)
    except AssertionError as error:
        raise NotRefusedError(str(error)) from None


if __name__ == "__main__":
    own_mount_namespace()
    print(asyncio.run(_refuse(sys.argv[1], sys.argv[2], Path(sys.argv[3]), "late" in sys.argv[4:])))
