"""The nft rules inside a workspace's namespace: what leaves it, and to which listener of the gate.

Rules match destination addresses, not interfaces: after a redirect in the output hook the later hooks still see the
interface of the original route.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.network.policy import Level
from engine.network.settings import ADDRESS

# What one workspace may ask of the gate; beyond it packets are dropped in the kernel, where that costs the engine nothing, and
# clients repeat theirs after a second. A page full of pictures opens about 100 connections.
_CONNECTIONS = "500/second burst 1000 packets"
_QUERIES = "1000/second burst 1000 packets"

_LOCAL = f"{{ 127.0.0.0/8, {ADDRESS} }}"


@dataclass(frozen=True)
class GatePorts:
    """Ports of the gate's listeners on 127.0.0.1 of the namespace."""

    tcp: int
    dns_udp: int
    dns_tcp: int


def ruleset(level: Level, ports: GatePorts | None) -> str:
    """Rules for an egress level, as one nft transaction. Without `ports` (no gate) everything outgoing is refused.

    TCP is refused with a reset; anything else with ICMP, which a sender on the same host sees as EPERM.
    """
    redirects: list[str] = []
    limits: list[str] = []
    if ports is not None:
        redirects += [
            f"meta nfproto ipv4 udp dport 53 redirect to :{ports.dns_udp}",
            f"meta nfproto ipv4 tcp dport 53 redirect to :{ports.dns_tcp}",
        ]
        limits += [
            f"ip daddr 127.0.0.1 tcp dport {{ {ports.tcp}, {ports.dns_tcp} }} tcp flags & (syn | ack) == syn "
            f"limit rate over {_CONNECTIONS} drop",
            f"ip daddr 127.0.0.1 udp dport {ports.dns_udp} limit rate over {_QUERIES} drop",
        ]
        if level is not Level.NONE:
            redirects.append(f"meta nfproto ipv4 meta l4proto tcp redirect to :{ports.tcp}")
    return f"""
table inet tclone
delete table inet tclone
table inet tclone {{
  chain redirects {{
    type nat hook output priority -100; policy accept;
    ip daddr {_LOCAL} accept
    {_block(redirects)}
  }}
  chain departures {{
    type filter hook output priority 0; policy drop;
    {_block(limits)}
    ip daddr {_LOCAL} accept
    ip6 daddr ::1 accept
    meta l4proto tcp reject with tcp reset
    reject with icmpx admin-prohibited
  }}
  chain arrivals {{
    type filter hook input priority 0; policy drop;
    iifname "lo" accept
  }}
}}
"""


def _block(rules: list[str]) -> str:
    return "\n    ".join(rules)
