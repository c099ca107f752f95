"""What the fork program finds out about the running kernel: asked once, given to each fork.

Finding it out takes 3 ms of CPU time, more than the half of a small workspace's whole fork. It holds as long as this kernel runs, and only for
the very program that found it out: one that was built anew meanwhile does not believe it and looks for itself.
"""

from __future__ import annotations

import array
import json
import logging
import os
import socket
import subprocess
from pathlib import Path

log = logging.getLogger(__name__)

_SECONDS = 10.0
_PACKET = 4096


class Learnt:
    """`arguments` and `fds` go to each run of the program; both are empty where there is nothing to know."""

    def __init__(self) -> None:
        self.arguments: list[str] = []
        self.fds: list[int] = []

    def learn(self, program: Path) -> None:
        """Ask the program. Blocks. No failure is an error: each fork then finds out for itself, and says what is wrong."""
        self.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            try:
                subprocess.run(
                    [str(program), "learn", "--control", str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_SECONDS, check=True,
                )  # fmt: skip
                facts, fds = _receive(ours)
            except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
                log.info("%s told nothing about the kernel: %s", program, error)
                return
        self.fds = fds
        if fds and facts:
            self.arguments = ["--learnt", f"{fds[0]}:{facts}"]

    def close(self) -> None:
        """Forget it all."""
        for fd in self.fds:
            os.close(fd)
        self.arguments, self.fds = [], []


def _receive(control: socket.socket) -> tuple[str, list[int]]:
    """The program has ended: its packet is there, or none comes."""
    packet, ancillary, _, _ = control.recvmsg(_PACKET, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
    fds = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data)
    try:
        return str(json.loads(packet)["facts"]), list(fds)
    except (ValueError, KeyError, TypeError):
        for fd in fds:
            os.close(fd)
        raise
