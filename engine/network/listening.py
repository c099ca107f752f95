"""What listens inside a workspace, read from its network namespace's own tables."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import struct
from dataclasses import dataclass

from engine.network.namespace import NetworkNamespace

# The kernel lists listening sockets first: nothing behind them is read. A workspace may open tens of thousands of them.
_MOST = 1024
_TABLE_LIMIT = 1 << 20
_LISTEN = "0A"


@dataclass(frozen=True)
class TcpListener:
    """One listening socket. `inode` names it in the descriptors of the processes that hold it."""

    address: str
    port: int
    inode: int


def listening(namespace: NetworkNamespace) -> list[TcpListener]:
    """The first 1024 listening TCP sockets of each family, by port. Blocks shortly. Raises NotFound, OSError."""
    found: list[TcpListener] = []
    for table in ("tcp", "tcp6"):
        # A host without IPv6 has no such table.
        with contextlib.suppress(FileNotFoundError):
            found += _read(namespace.open_table(table))
    return sorted(found, key=lambda item: (item.port, item.address))


def _read(fd: int) -> list[TcpListener]:
    found: list[TcpListener] = []
    with os.fdopen(fd, "r", encoding="ascii", errors="replace") as table:
        next(table, None)
        read = 0
        for line in table:
            read += len(line)
            fields = line.split()
            if len(fields) < 10 or fields[3] != _LISTEN or len(found) == _MOST or read > _TABLE_LIMIT:
                break
            address, _, port = fields[1].partition(":")
            found.append(TcpListener(_address(address), int(port, 16), int(fields[9])))
    return found


def _address(text: str) -> str:
    """The kernel prints addresses as words of 32 bits in the machine's own order."""
    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    return str(ipaddress.ip_address(struct.pack(f"={len(words)}I", *words)))
