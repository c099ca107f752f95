"""Turns for the viewers of each workspace, a fixed time apart, over all workers of a stream process."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
import zlib

_SLOT = struct.Struct("=d")
# Two workspaces that share a slot only wait for each other's viewers, at most one turn.
_SLOTS = 4096


class Pace:
    """Made before the workers are forked, which then share it: memory of no file, and a lock that the kernel takes from a worker that dies."""

    def __init__(self, spacing: float) -> None:
        """`spacing`: seconds from one viewer's turn to the next one's."""
        self.spacing = spacing
        self._descriptor = os.memfd_create("tclone-pace", os.MFD_CLOEXEC)
        os.ftruncate(self._descriptor, _SLOTS * _SLOT.size)
        self._turns = mmap.mmap(self._descriptor, _SLOTS * _SLOT.size)

    def take(self, workspace: str) -> float:
        """Take the next turn of a workspace: the seconds until it comes."""
        at = zlib.crc32(workspace.encode()) % _SLOTS * _SLOT.size
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            now = time.monotonic()
            turn = max(now, *_SLOT.unpack_from(self._turns, at))
            _SLOT.pack_into(self._turns, at, turn + self.spacing)
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
        return turn - now

    def close(self) -> None:
        """Let go of this process's share."""
        self._turns.close()
        os.close(self._descriptor)
