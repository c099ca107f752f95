"""Ports of this host for servers that are started a while after their port was chosen."""

from __future__ import annotations

import random
import socket

# Outside of what kernels give to whoever asks for any port (from 32768), and of what engines publish (from 20000): no connection and no workspace of
# a test beside this one gets it in the meantime.
_FIRST, _LAST = 10_000, 19_999
_TRIES = 100


def free_port() -> int:
    """A TCP port that nothing listens on now. Raises OSError when none is found."""
    for _ in range(_TRIES):
        port = random.randint(_FIRST, _LAST)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise OSError(f"no free port from {_FIRST} to {_LAST} in {_TRIES} tries")
