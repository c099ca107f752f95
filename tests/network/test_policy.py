"""The decision itself, without a network."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from engine.errors import BadRequest
from engine.network.policy import Destination, HostAddresses, Level, Policy, read_local_routes


def _policy(exempt: tuple = (), own: tuple[str, ...] = ("203.0.113.5/32",)) -> Policy:
    policy = Policy(HostAddresses(lambda: [ip_network(text) for text in own]), exempt)
    policy.set("ws-1", Level.OPEN)
    return policy


@pytest.mark.parametrize("address", ["93.184.215.14", "10.1.2.3", "192.168.1.1", "172.16.0.1", "2606:2800::1"])
async def test_the_outside_is_open(address: str) -> None:
    assert (await _policy().decide("ws-1", Destination("tcp", address, 443))).allow


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.1.2.3", "0.0.0.0", "0.1.2.3", "169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192",
        "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "203.0.113.5", "10.77.0.1", "::", "::1", "fe80::1", "fd00:ec2::254",
        "ff02::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:203.0.113.5", "64:ff9b::7f00:1", "2002:7f00:1::",
        "not-an-address", "", "127.1",
    ],
)  # fmt: skip
async def test_the_host_and_control_addresses_are_denied(address: str) -> None:
    decision = await _policy().decide("ws-1", Destination("tcp", address, 443))
    assert not decision.allow and decision.reason


async def test_an_exemption_opens_only_itself() -> None:
    policy = _policy(exempt=(ip_network("169.254.7.0/24"),))
    assert (await policy.decide("ws-1", Destination("tcp", "169.254.7.9", 80))).allow
    assert not (await policy.decide("ws-1", Destination("tcp", "169.254.169.254", 80))).allow


async def test_none_and_unknown_workspaces_reach_nothing() -> None:
    policy = _policy()
    policy.set("ws-2", Level.NONE)
    for workspace in ("ws-2", "ws-3"):
        assert not (await policy.decide(workspace, Destination("tcp", "93.184.215.14", 443))).allow
        assert not (await policy.decide(workspace, Destination("dns", "example.org", 53))).allow
    policy.forget("ws-1")
    assert not (await policy.decide("ws-1", Destination("tcp", "93.184.215.14", 443))).allow


async def test_unknown_host_addresses_close_everything() -> None:
    def broken() -> list:
        raise OSError("no netlink")

    policy = Policy(HostAddresses(broken))
    policy.set("ws-1", Level.OPEN)
    assert not (await policy.decide("ws-1", Destination("tcp", "93.184.215.14", 443))).allow


async def test_the_hosts_addresses_are_read_again() -> None:
    now: list[str] = ["203.0.113.5/32"]
    host = HostAddresses(lambda: [ip_network(text) for text in now])
    host.max_age = 0.0
    policy = Policy(host)
    policy.set("ws-1", Level.OPEN)
    assert (await policy.decide("ws-1", Destination("tcp", "203.0.113.6", 80))).allow
    now.append("203.0.113.6/32")
    assert not (await policy.decide("ws-1", Destination("tcp", "203.0.113.6", 80))).allow


def test_the_kernels_local_table_has_the_loopback() -> None:
    assert ip_network("127.0.0.0/8") in read_local_routes()


def test_levels_are_named_in_the_error() -> None:
    with pytest.raises(BadRequest, match="open, none"):
        Level.parse("everything")
