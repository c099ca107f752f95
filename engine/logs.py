"""The console log of a workspace, read from its writable layer: it is there while the workspace runs and after it stopped."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from engine import syscalls

CONSOLE = "/var/log/tclone/console.log"
_POLL_SECONDS = 0.25
_CHUNK = 64 << 10
_TAIL_LIMIT = 8 << 20


async def read(upper: Path, tail: int, follow: bool, exists: Callable[[], bool]) -> AsyncIterator[bytes]:
    """The last `tail` lines (at most 8 MiB), then with `follow` what is added while `exists()`.

    The workspace owns the file: it may be missing, replaced by a link or a FIFO, or grow for ever; none of it is followed
    or waited for.
    """
    position = 0
    first, position = await asyncio.to_thread(_tail, upper, tail)
    if first:
        yield first
    while follow and exists():
        chunk, position = await asyncio.to_thread(_more, upper, position)
        if chunk:
            yield chunk
        else:
            await asyncio.sleep(_POLL_SECONDS)


def _open(upper: Path) -> int | None:
    try:
        root = os.open(upper, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return syscalls.open_regular_inside(root, CONSOLE)
    except OSError:
        return None
    finally:
        os.close(root)


def _tail(upper: Path, lines: int) -> tuple[bytes, int]:
    fd = _open(upper)
    if fd is None:
        return b"", 0
    try:
        size = os.fstat(fd).st_size
        start = max(0, size - _TAIL_LIMIT)
        text = os.pread(fd, size - start, start)
    finally:
        os.close(fd)
    if lines == 0:
        return b"", size
    wanted = text.splitlines(keepends=True)[-lines:]
    return b"".join(wanted), start + len(text)


def _more(upper: Path, position: int) -> tuple[bytes, int]:
    fd = _open(upper)
    if fd is None:
        return b"", 0
    try:
        if os.fstat(fd).st_size < position:
            position = 0  # it was truncated: begin again
        chunk = os.pread(fd, _CHUNK, position)
        return chunk, position + len(chunk)
    finally:
        os.close(fd)
