"""An engine of the benchmark's own: own data, run directory and control groups; only the image cache is shared."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from engine.client import EngineClient
from engine.config import REPO, Config
from engine.errors import EngineError, Unavailable

_START_SECONDS = 60.0
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.05
_LOG_TAIL_BYTES = 4000
# No portal uses this engine: its socket shall stay root's.
_NO_PORTAL_USER = "nobody-of-tclone"


class OwnEngine:
    """`async with OwnEngine(directory, cache) as engine: await engine.client.launch(…)`.

    Leaving the block removes every workspace and ends the daemon. `directory` is an existing directory of the caller's.
    """

    def __init__(self, directory: Path, cache: Path) -> None:
        self.data = directory / "data"
        self.run = directory / "run"
        self.log = directory / "engine.log"
        environment = Config.from_environment()
        self.config = Config(
            data=self.data, run=self.run, libexec=environment.libexec, images=environment.images, portal_port=0,
            portal_user=_NO_PORTAL_USER, cache_directory=cache,
        )  # fmt: skip
        self.client = EngineClient(self.config.socket)
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> "OwnEngine":
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.remove_all()
        finally:
            await self.client.close()
            await self._stop()

    async def _start(self) -> None:
        for program in ("tclone-livefork", "tclone-restore", "tclone-init"):
            if not (self.config.libexec / program).exists():
                raise Unavailable(f"{self.config.libexec / program} is missing: run `make native`, or set TCLONE_LIBEXEC")
        variables = {
            "TCLONE_DATA": str(self.data), "TCLONE_RUN": str(self.run), "TCLONE_LIBEXEC": str(self.config.libexec),
            "TCLONE_CACHE": str(self.config.cache), "TCLONE_PORTAL_USER": _NO_PORTAL_USER,
        }  # fmt: skip
        with open(self.log, "ab") as log:
            # A session of its own: Ctrl-C shall reach this program alone, which then ends the engine in order.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "engine.daemon", cwd=REPO, env={**os.environ, **variables},
                stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + _START_SECONDS
        while not self.config.socket.exists():
            if self._process.returncode is not None or time.monotonic() > deadline:
                raise Unavailable(f"the engine did not start; its log ends with:\n{self._log_tail()}")
            await asyncio.sleep(_POLL_SECONDS)

    async def _stop(self) -> None:
        """SIGTERM, and SIGKILL when it does not end in time."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def remove_all(self) -> None:
        """Remove every workspace, as many as can be; the first failure is raised at the end."""
        outcomes = await asyncio.gather(
            *(self.client.remove(workspace["id"]) for workspace in await self.client.list()), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def have_image(self, name: str, say) -> None:
        """Make an image present: from the cache when its recipe has not changed, else built, which takes minutes. Raises EngineError."""
        phase = None
        async for line in self.client.build(name):
            if line.get("phase") not in (None, phase, "working"):
                phase = line["phase"]
                say(f"image {name}: {phase}")

    def _log_tail(self) -> str:
        try:
            return self.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError as error:
            return str(error)


async def remove_quietly(client: EngineClient, workspaces: list[str]) -> list[str]:
    """Remove workspaces at once; the messages of those that could not be."""
    outcomes = await asyncio.gather(*(client.remove(name) for name in workspaces), return_exceptions=True)
    messages = []
    for outcome in outcomes:
        if isinstance(outcome, EngineError):
            messages.append(outcome.message)
        elif isinstance(outcome, BaseException):
            raise outcome
    return messages
