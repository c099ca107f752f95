"""Addresses and ports of the host's loopback for clients that can show no token; each leads to one workspace."""

from __future__ import annotations

import errno
import ipaddress
import random
import socket
import time
from collections.abc import Callable, Iterator

from portal.errors import Conflicting, Malformed

# The client's own, which it cannot be told to change.
PORT = 8000
LOCAL = "127.0.0.1"
# Ours to choose from: systems use the lower ones for themselves (127.0.0.53, 127.0.1.1).
_CHOSEN = ipaddress.IPv4Network("127.77.0.0/16")
_TRIES = 64
# As for published ports: who comes late to a workspace that is gone meets no other one.
_QUARANTINE_SECONDS = 60.0


def checked(text: str) -> str:
    """An address of the loopback. Raises Malformed."""
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        raise Malformed("address must be one of 127.0.0.0/8", field="address") from None
    if not address.is_loopback:
        raise Malformed("address must be one of 127.0.0.0/8: who comes there shows no token", field="address")
    return str(address)


class Addresses:
    """Binds what is asked for, or what is free. What was given back is not chosen again for a minute; who names it knows it.

    A portal that starts anew remembers nothing, but begins at another place.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = random.randrange(_CHOSEN.num_addresses)
        self._given_back: dict[tuple[str, int], float] = {}

    def bound(self, address: str | None, port: int | None) -> socket.socket:
        """A listener. `address` None: a free one, or 127.0.0.1 for a `port`; `port` None: the client's own, 0: a free one. Raises Conflicting."""
        self._forget_old()
        if address is None and port is None:
            return self._any(((one, PORT) for one in self._addresses()), f"port {PORT} is in use at every address of {_CHOSEN}; give a port, or stop what listens there")
        address = address or LOCAL
        if port == 0:
            return self._any(((address, 0) for _ in range(_TRIES)), f"no port of {address} is free")
        try:
            return socket.create_server((address, port or PORT))
        except OSError as error:
            raise Conflicting(f"{address}:{port or PORT} cannot be had: {error.strerror or error}; give another address or port, or leave both out") from None

    def give_back(self, address: str, port: int) -> None:
        """It listens no more."""
        self._given_back[address, port] = self._clock()

    def _any(self, places: Iterator[tuple[str, int]], none: str) -> socket.socket:
        for place in places:
            if place in self._given_back:
                continue
            try:
                server = socket.create_server(place)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise Conflicting(f"{place[0]}:{place[1]} cannot be had: {error.strerror or error}") from None
                continue
            if server.getsockname() not in self._given_back:
                return server
            server.close()
        raise Conflicting(none)

    def _addresses(self) -> Iterator[str]:
        for _ in range(_TRIES):
            self._next = (self._next + 1) % _CHOSEN.num_addresses
            if self._next % 256 not in (0, 255):
                yield str(_CHOSEN[self._next])

    def _forget_old(self) -> None:
        oldest = self._clock() - _QUARANTINE_SECONDS
        self._given_back = {place: at for place, at in self._given_back.items() if at > oldest}
