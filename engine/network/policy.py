"""Where a workspace may connect: the one place that decides.

`Policy.decide` is asked for every outgoing connection and every DNS query. It runs on the host and knows the workspace by
the listener that accepted, so nothing inside a workspace can forge either.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Literal

from pyroute2 import IPRoute

from engine.errors import BadRequest
from engine.network.settings import ADDRESS, PREFIX_LENGTH

log = logging.getLogger(__name__)

Network = IPv4Network | IPv6Network

# Never reachable from a workspace, whatever its level: the host itself and what trusts the host by its place in the network.
ALWAYS_DENIED: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(text, strict=False), why)
    for text, why in (
        ("0.0.0.0/8", "unspecified address"),
        ("127.0.0.0/8", "the host's loopback"),
        ("169.254.0.0/16", "link-local (cloud metadata)"),
        (f"{ADDRESS}/{PREFIX_LENGTH}", "the workspaces' own network"),
        ("100.100.100.200/32", "cloud metadata"),
        ("168.63.129.16/32", "cloud control service"),
        ("192.0.0.192/32", "cloud metadata"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved or broadcast"),
        ("::/128", "unspecified address"),
        ("::1/128", "the host's loopback"),
        ("fe80::/10", "link-local"),
        ("fd00:ec2::254/128", "cloud metadata"),
        ("ff00::/8", "multicast"),
    )
)
# Addresses that lead to an IPv4 address: judged by it as well.
_NAT64 = IPv6Network("64:ff9b::/96")

_LOCAL_TABLE = 255
# The kinds of route that end at this host: local, broadcast, anycast (linux/rtnetlink.h).
_LOCAL_TYPES = frozenset({2, 3, 4})
_AF_INET, _AF_INET6 = 2, 10


class Level(StrEnum):
    """How much of the outside a workspace reaches."""

    OPEN = "open"
    NONE = "none"

    @classmethod
    def parse(cls, text: str) -> Level:
        """Raises BadRequest naming the levels there are."""
        try:
            return cls(text)
        except ValueError:
            raise BadRequest(f"no network level {text!r}; choose one of {', '.join(cls)}") from None


@dataclass(frozen=True)
class Destination:
    """`host` is an address for tcp, a name for dns (as asked, dots between labels)."""

    kind: Literal["tcp", "dns"]
    host: str
    port: int


@dataclass(frozen=True)
class Decision:
    allow: bool
    reason: str


class HostAddresses:
    """The addresses that end at this host, as the kernel's local routing table has them (any-IP routes too).

    Read again when older than `max_age`, since interfaces come and go.
    """

    max_age = 1.0

    def __init__(self, read: Callable[[], list[Network]] | None = None) -> None:
        self._read = read or read_local_routes
        self._networks: list[Network] = []
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def networks(self) -> list[Network]:
        """Raises OSError when the kernel does not say."""
        async with self._lock:
            if time.monotonic() - self._read_at > self.max_age:
                self._networks = await asyncio.to_thread(self._read)
                self._read_at = time.monotonic()
            return self._networks


def read_local_routes() -> list[Network]:
    """Networks of the local routing table of the calling thread's namespace (about 2 ms)."""
    found: list[Network] = []
    with IPRoute() as route:
        for family, bits in ((_AF_INET, 32), (_AF_INET6, 128)):
            for entry in route.get_routes(family=family, table=_LOCAL_TABLE):
                if entry["type"] not in _LOCAL_TYPES:
                    continue
                target = entry.get_attr("RTA_DST")
                if target is not None and entry["dst_len"] <= bits:
                    found.append(ip_network(f"{target}/{entry['dst_len']}", strict=False))
    return found


class Policy:
    """The levels of all workspaces and the decision about each destination."""

    def __init__(self, host: HostAddresses, exempt: tuple[Network, ...] = ()) -> None:
        self._host = host
        self._exempt = exempt
        self._levels: dict[str, Level] = {}

    def set(self, workspace: str, level: Level) -> None:
        self._levels[workspace] = level

    def forget(self, workspace: str) -> None:
        self._levels.pop(workspace, None)

    def level(self, workspace: str) -> Level:
        """A workspace that is not known reaches nothing."""
        return self._levels.get(workspace, Level.NONE)

    async def decide(self, workspace: str, destination: Destination) -> Decision:
        """Whether `workspace` may reach `destination`; never raises."""
        if self.level(workspace) is Level.NONE:
            return Decision(False, f"the network of {workspace} is closed")
        if destination.kind == "dns":
            return Decision(True, "names are open")
        try:
            address = ip_address(destination.host)
        except ValueError:
            return Decision(False, f"{destination.host!r} is no address")
        try:
            host_networks = await self._host.networks()
        except Exception as error:  # whatever went wrong, an unknown host address must not become reachable
            log.error("egress is closed: cannot read the host's addresses: %s", error)
            return Decision(False, "the host's own addresses are not known")
        for candidate in _meanings(address):
            reason = self._denied(candidate, host_networks)
            if reason is not None:
                return Decision(False, reason)
        return Decision(True, "open")

    def _denied(self, address: IPv4Address | IPv6Address, host_networks: list[Network]) -> str | None:
        if _within(address, self._exempt):
            return None
        for network, why in ALWAYS_DENIED:
            if network.version == address.version and address in network:
                return f"{address} is never reachable: {why}"
        if _within(address, host_networks):
            return f"{address} is an address of the host itself"
        return None


def _within(address: IPv4Address | IPv6Address, networks: tuple[Network, ...] | list[Network]) -> bool:
    return any(network.version == address.version and address in network for network in networks)


def _meanings(address: IPv4Address | IPv6Address) -> list[IPv4Address | IPv6Address]:
    """The address, and the IPv4 address that it embeds, if any."""
    found: list[IPv4Address | IPv6Address] = [address]
    if isinstance(address, IPv6Address):
        embedded = address.ipv4_mapped or address.sixtofour
        if embedded is not None:
            found.append(embedded)
        if address in _NAT64:
            found.append(IPv4Address(int(address) & 0xFFFFFFFF))
    return found
