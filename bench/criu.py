"""CRIU as a rival: dump the same load with its source left running, restore it next to it, from and to memory.

It gets every help there is: images on tmpfs, a tmpfs /run for its cache of kernel probes, no cgroups, no network lock, and a
root without an overlay file system, which the engine has to snapshot and CRIU here does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import struct
import tempfile
import time
from pathlib import Path

from bench.workload import Workload
from engine.errors import Internal, Unavailable

_READY_SECONDS = 120.0
_COMMAND_SECONDS = 120.0
_FINISH_SECONDS = 20.0
_POLL_SECONDS = 0.05
_ERROR_LINES = 3
_TMPFS = Path("/dev/shm")
_COMMON = ("--manage-cgroups=ignore", "-v1")
_LOAD, _READY = "/load", "/tmp/load.ready"

# criu/include/magic.h, and images/stats.proto: the entry `dump` of the file, microseconds `frozen_time` of the entry.
_STATS_MAGIC = (0x55105940, 0x57093306)
_STATS_DUMP, _FROZEN_TIME = 1, 2


def find() -> Path | None:
    """The criu on PATH."""
    found = shutil.which("criu")
    return Path(found) if found else None


class Criu:
    """`async with Criu(programs, workload) as rival:` starts the load; leaving the block ends it and all that was restored.

    Needs this process to be a child subreaper: a restored tree belongs to whoever outlives the criu that made it.
    """

    name = "criu"

    def __init__(self, criu: Path, contain: Path, load: Path, workload: Workload) -> None:
        self._criu = criu
        self._contain = contain
        self._load = load
        self._workload = workload
        self._directory = Path()
        self._stack = contextlib.AsyncExitStack()
        self._source = 0

    async def __aenter__(self) -> "Criu":
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="tclone-bench-", dir=_TMPFS if os.path.ismount(_TMPFS) else None))
        self._stack.callback(shutil.rmtree, self._directory, ignore_errors=True)
        root = self._directory / "root"
        for path in (root / "proc", root / "dev", root / "tmp", self._directory / "run"):
            path.mkdir(parents=True)
        os.mknod(root / "dev/null", 0o666 | 0o020000, os.makedev(1, 3))
        shutil.copy(self._load, root / _LOAD[1:])
        arguments = [_LOAD, "run", str(self._workload.processes), str(self._workload.dirty), _READY]
        self._source = int(await _output([str(self._contain), "run", str(root), *arguments]))
        self._stack.callback(_end, self._source)
        await self._ready(root / _READY[1:])

    async def _ready(self, report: Path) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not (report.exists() and report.read_bytes().endswith(b"\n")):
            if not _alive(self._source) or time.monotonic() > deadline:
                raise Unavailable("the load for criu did not become ready")
            await asyncio.sleep(_POLL_SECONDS)

    async def measure(self, copies: int) -> dict[str, float]:
        """One dump, and as many restores at once. Raises Internal with the end of criu's log."""
        images = self._directory / "images"
        images.mkdir()
        restored: list[int] = []
        try:
            began = time.monotonic()
            dump = ["dump", "--tree", str(self._source), "--leave-running", "--network-lock", "skip"]
            await self._run(images, "dump.log", dump)
            dumped = time.monotonic()
            outcomes = await asyncio.gather(
                *(self._restore(images, index, restored) for index in range(copies)), return_exceptions=True
            )
            ended = time.monotonic()
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
            self._check(restored)
            return {
                "pause": frozen_ms((images / "stats-dump").read_bytes()),
                "dump": round((dumped - began) * 1000, 2),
                "restore": round((ended - dumped) * 1000, 2),
                "usable": round((ended - began) * 1000, 2),
            }
        finally:
            for pid in restored:
                _end(pid)
            shutil.rmtree(images)

    async def _restore(self, images: Path, index: int, restored: list[int]) -> None:
        """One copy. Its pid goes into `restored` as soon as it is known, also when criu fails after it made the process."""
        pidfile = images / f"restored-{index}.pid"
        arguments = ["restore", "--restore-detached", "--root", str(self._directory / "root"), "--pidfile", str(pidfile)]
        try:
            await self._run(images, f"restore-{index}.log", arguments)
        finally:
            with contextlib.suppress(OSError, ValueError):
                restored.append(int(pidfile.read_text()))

    def _check(self, restored: list[int]) -> None:
        expected = _count_in_namespace(self._source)
        if expected != self._workload.processes:
            raise Internal(f"criu left {expected} of the source's {self._workload.processes} processes")
        for pid in restored:
            if _count_in_namespace(pid) != expected:
                raise Internal(f"criu restored {_count_in_namespace(pid)} processes instead of {expected}")

    async def _run(self, images: Path, log: str, arguments: list[str]) -> None:
        # In a mount namespace with a tmpfs /run, and with the root as a mount point, which a restore asks for.
        argv = [str(self._contain), "mounts", str(self._directory / "run"), str(self._directory / "root"), str(self._criu)]
        argv += [arguments[0], "--images-dir", str(images), "--work-dir", str(images)]
        argv += ["--log-file", log, *_COMMON, *arguments[1:]]
        # What fails before it has opened its log goes to stderr.
        early = images / f"{log}.stderr"
        with open(early, "wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=errors
            )
        ended = asyncio.ensure_future(process.wait())
        try:
            status = await asyncio.wait_for(asyncio.shield(ended), _COMMAND_SECONDS)
        except TimeoutError:
            await _end_child(process)
            raise Internal(f"criu {arguments[0]} did not end within {_COMMAND_SECONDS:g} s") from None
        except BaseException:
            # Let it finish when interrupted: ended halfway, it leaves half a tree whose pid nobody knows.
            await asyncio.wait({ended}, timeout=_FINISH_SECONDS)
            await _end_child(process)
            await ended
            raise
        if status != 0:
            raise Internal(f"criu {arguments[0]} failed with status {status}: {_errors(images / log, early)}")


async def probe(criu: Path, contain: Path, load: Path) -> str | None:
    """Really dump and restore one process. None when that works, else why not, in one line.

    Versions before 4.1 fail on kernels from 6.13 on; 3.17.1 does not know `--network-lock skip` either.
    """
    try:
        async with Criu(criu, contain, load, Workload("probe")) as rival:
            await rival.measure(1)
    except (Internal, Unavailable, OSError) as error:
        return " ".join(str(error).split())[:300] or type(error).__name__
    return None


async def version(criu: Path) -> str:
    """`4.1.1`; `unknown` when it does not say."""
    with contextlib.suppress(Internal):
        for line in (await _output([str(criu), "--version"])).splitlines():
            if line.startswith("Version:"):
                return line.partition(":")[2].strip()
    return "unknown"


def frozen_ms(stats: bytes) -> float:
    """How long the tasks stood still, from a `stats-dump` image (two magic numbers, a size, a protobuf message). Raises Internal."""
    try:
        first, second, size = struct.unpack_from("<III", stats)
        if (first, second) != _STATS_MAGIC:
            raise ValueError("unknown magic number")
        dump = _field(stats[12 : 12 + size], _STATS_DUMP)
        frozen = _field(dump, _FROZEN_TIME) if isinstance(dump, bytes) else None
        if not isinstance(frozen, int):
            raise ValueError("no frozen_time")
    except (struct.error, ValueError, IndexError) as error:
        raise Internal(f"cannot read criu's stats-dump: {error}") from error
    return round(frozen / 1000, 3)


def _field(message: bytes, wanted: int) -> int | bytes | None:
    """One field of a protobuf message: varints as int, length-delimited ones as bytes; None when absent."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        value: int | bytes
        if kind == 0:
            value, position = _varint(message, position)
        elif kind == 2:
            length, position = _varint(message, position)
            value, position = message[position : position + length], position + length
        else:
            raise ValueError(f"unexpected wire type {kind}")
        if number == wanted:
            return value
    return None


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, position


async def _output(argv: list[str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    if process.returncode != 0:
        raise Internal(f"{Path(argv[0]).name} failed: {err.decode(errors='replace').strip() or process.returncode}")
    return out.decode()


async def _end_child(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), 5)
    except TimeoutError:
        process.kill()
        await process.wait()


def _end(pid: int) -> None:
    """Kill a pid namespace by its first process and wait until it is gone.

    It is our child, this process being the subreaper; a pid that is not (criu ended it, another process may have it now) is left alone.
    """
    if not _alive(pid):
        return
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _alive(pid: int) -> bool:
    """Whether it is a child of ours that has not ended; one that has is reaped."""
    try:
        return os.waitpid(pid, os.WNOHANG) == (0, 0)
    except ChildProcessError:
        return False


def _count_in_namespace(pid: int) -> int:
    """Processes of a load: its first one and that one's children."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return 1 + len(children)


def _errors(*logs: Path) -> str:
    """The last error lines of criu's log, or of what it said before it had one."""
    lines: list[str] = []
    for log in logs:
        with contextlib.suppress(OSError):
            lines += [line for line in log.read_text(errors="replace").splitlines() if "Error" in line]
    return "; ".join(lines[-_ERROR_LINES:]) or "it told no reason"
