"""The servers of a workspace: which port, which program, and the host port at which it is published."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

from engine.cgroups import Cgroups
from engine.network.listening import TcpListener
from engine.text import printable
from engine.workspace import Workspace

# A workspace may hold millions of descriptors: whoever cannot be found within this time stays without a name.
_SEARCH_SECONDS = 0.5
_NAME_LIMIT = 64


def describe(workspace: Workspace, listeners: Iterable[TcpListener], cgroups: Cgroups) -> list[dict[str, Any]]:
    """The listener objects of the API, one for each port and address. Blocks at most half a second or so."""
    found = list(listeners)
    holders = _holders({item.inode for item in found}, cgroups.processes(workspace.id)) if found else {}
    return [
        {
            "port": item.port, "address": item.address,
            **(_process(holders[item.inode]) if item.inode in holders else {"pid": None, "command": None}),
            "host": workspace.ports.get(str(item.port)), "desktop": item.port == workspace.stream_port,
        }
        for item in found
    ]  # fmt: skip


def _holders(inodes: set[int], pids: list[int]) -> dict[int, int]:
    """Inode of a socket to the host pid of the first process that holds it."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[int, int] = {}
    deadline = time.monotonic() + _SEARCH_SECONDS
    for pid in sorted(pids):
        try:
            with os.scandir(f"/proc/{pid}/fd") as descriptors:
                for descriptor in descriptors:
                    if time.monotonic() > deadline:
                        return found
                    try:
                        inode = wanted.pop(os.readlink(descriptor.path), None)
                    except OSError:
                        continue
                    if inode is not None:
                        found[inode] = pid
                        if not wanted:
                            return found
        except OSError:
            continue
    return found


def _process(pid: int) -> dict[str, Any]:
    """Pid as inside the workspace and name of a process. Its arguments lie in its own memory, which it can keep us waiting for: they
    are not read."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            # Bytes: a name may hold carriage returns, which text mode would take for the end of a line.
            numbers = next(line for line in status if line.startswith(b"NSpid:")).split()[1:]
        with open(f"/proc/{pid}/comm", "rb") as comm:
            command = printable(comm.read(256).decode(errors="replace").rstrip("\n"), _NAME_LIMIT)
        # The workspace's own namespace is the second; programs with namespaces of their own have more.
        return {"pid": int(numbers[1]), "command": command}
    except (OSError, ValueError, IndexError, StopIteration):
        return {"pid": None, "command": None}  # it has ended
