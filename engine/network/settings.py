"""Limits and choices of the network part; the defaults suit one machine."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

# Addresses inside every workspace. They are the same everywhere so that a fork keeps its address, resolver and sockets.
ADDRESS = "10.77.0.2"
PREFIX_LENGTH = 24
GATEWAY = "10.77.0.1"
RESOLVER = "10.77.0.1"
INTERFACE = "eth0"
# One hardware address for all: an interface never meets another on a link.
HARDWARE_ADDRESS = "02:0a:4d:00:00:02"


@dataclass(frozen=True)
class NetworkSettings:
    """Settings of one engine's network. Times are seconds, sizes bytes."""

    # Namespaces made ahead; with the containers that the engine keeps ready, enough for a fork of eight.
    spares: int = 6
    # Below the usual ephemeral range (32768-60999), so that outgoing connections of the host never hold one of these.
    port_first: int = 20000
    port_last: int = 32767
    port_quarantine: float = 60.0
    publish_address: str = "::"
    # None: the nameservers of the host's resolv.conf. Each is (address, port).
    resolvers: tuple[tuple[str, int], ...] | None = None
    # Exemptions from the list of destinations that are never reachable (policy.py), for deliberate exceptions.
    exempt: tuple[IPv4Network | IPv6Network, ...] = ()
    # Where the gate's connections and queries start: a network namespace (one with a VPN, say); None is the engine's own.
    egress_namespace: Path | None = None
    connections_per_workspace: int = 512
    connections_total: int = 4096
    egress_connect_timeout: float = 15.0
    dns_queries_per_workspace: int = 128
    dns_timeout: float = 5.0
    connect_timeout: float = 3.0
