"""Where a request really comes from, when a front proxy stands before us."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from multidict import CIMultiDictProxy

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class FrontProxies:
    """Addresses whose `X-Forwarded-For` is believed. Nobody's is by default."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        """Raises ValueError for what is no address or network."""
        self._networks: list[Network] = [ipaddress.ip_network(text) for text in allowed]

    def address(self, peer: str, headers: CIMultiDictProxy[str]) -> str:
        """The client's address: the peer's own, or what a front proxy wrote last.

        Only the last entry is the proxy's; those before it are what the client claimed.
        """
        if not self._trusts(peer):
            return peer
        last = ",".join(headers.getall("X-Forwarded-For", ())).rpartition(",")[2].strip()
        try:
            return str(ipaddress.ip_address(last))
        except ValueError:
            return peer

    def _trusts(self, peer: str) -> bool:
        if not self._networks:
            return False
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        return any(address in network for network in self._networks)
