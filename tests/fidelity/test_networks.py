"""What the host added to a workspace's own network namespace, where programs may add nothing: a branch has its own of it, or the fork is refused by name."""

from __future__ import annotations

import asyncio
import difflib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fidelity.apart import run_apart
from tests.fidelity.harness import Harness, own_mount_namespace
from tests.fidelity.livefork import Container, ForkError

pytestmark = [pytest.mark.root]

_REFUSED = 3
_ADDED = (
    "link add bridge0 type bridge",
    "link add left type veth peer name right",
    "link set left master bridge0",
    "link set bridge0 up",
    "link set left up",
    "link set right up mtu 1400",
    "addr add 10.1.0.1/24 dev bridge0",
    "addr add 10.9.9.9/32 dev lo",
    "route add 10.7.0.0/16 via 10.1.0.7",
    "neigh add 10.1.0.99 lladdr 02:03:04:05:06:07 dev bridge0 nud permanent",
    "rule add from 10.9.9.9 lookup 100 priority 777",
)
_LISTS = ("link", "addr", "route", "rule", "neigh")
# Counters, what is learnt, and what the kernel gives when it likes.
_IGNORED = {"stats", "stats64", "valid_life_time", "preferred_life_time", "link_index", "flags", "operstate"}

_MANY = (
    "{ echo add table ip fence; echo 'add set ip fence many { type mark; }'; "
    "seq -f 'add element ip fence many { %.0f }' 20000; } | nft -f -"
)
_REFUSALS = {
    ("ip", "link", "add", "wire", "type", "veth", "peer", "name", "there", "netns", "OTHER"): ("interface wire, whose other end is outside", "ip link delete"),
    ("ip", "link", "add", "wire", "type", "vxlan", "id", "7", "dstport", "4789"): ("with the interface wire of the kind vxlan", "ip link delete"),
    ("sh", "-c", _MANY): ("the packet filter table ip fence (nftables, iptables) and more than 150 KiB of rules", "nft delete table ip fence"),
    ("tc", "qdisc", "add", "dev", "lo", "root", "pfifo"): ("the queueing discipline pfifo on the interface lo", "tc qdisc delete dev lo root"),
}

_RULES = Path(__file__).resolve().parent / "rules.nft"
_EXPIRY = re.compile(r" expires \w+")


def _inside(container: Container, *argv: str) -> str:
    return subprocess.run(["nsenter", "-t", str(container.pid), "-n", "--", *argv], check=True, capture_output=True, text=True).stdout


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items() if key not in _IGNORED and not key.endswith("_timer")}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _described(container: Container) -> dict[str, list[Any]]:
    """Every list of `ip`, without what changes by itself; link-local addresses are given some time after."""
    lists = {name: _plain(json.loads(_inside(container, "ip", "-4", "-j", "-d", name) or "[]")) for name in _LISTS}
    return {name: sorted(entries, key=json.dumps) for name, entries in lists.items()}


async def _fork(directory: Path) -> None:
    async with Harness(directory) as harness:
        source = await harness.launch(harness.import_root(None, []), ["/bin/busybox", "sleep", "1000"])
        for line in _ADDED:
            _inside(source, "ip", *line.split())
        await asyncio.sleep(0.5)  # until the bridge has found out about its port
        before = _described(source)
        assert {entry["ifname"] for entry in before["link"]} >= {"lo", "bridge0", "left", "right"}
        assert any(entry.get("dst") == "10.7.0.0/16" for entry in before["route"])
        branch = (await harness.fork(source)).branches[0]
        after = _described(branch)
        for name, entries in before.items():
            differences = [(one, other) for one, other in zip(after[name], entries, strict=True) if one != other]
            assert not differences, f"{name}: {differences}"
        _inside(branch, "ip", "link", "delete", "left")
        assert _described(source) == before


async def _refuse(directory: Path) -> None:
    async with Harness(directory) as harness:
        other = await harness.launch(harness.import_root(None, []), ["/bin/busybox", "sleep", "1000"])
        for command, (what, remedy) in _REFUSALS.items():
            source = await harness.launch(harness.import_root(None, []), ["/bin/busybox", "sleep", "1000"])
            _inside(source, *(str(other.pid) if word == "OTHER" else word for word in command))
            with pytest.raises(ForkError) as failure:
                await harness.fork(source)
            message = failure.value.message
            assert failure.value.status == _REFUSED and source.alive, failure.value
            assert "the workspace lives in a network namespace" in message and what in message, message
            assert remedy in message.split(what, 1)[1], message
            await harness.remove(source)


def _rules(pid: int) -> str:
    listed = subprocess.run(["nsenter", "-t", str(pid), "-n", "--", "nft", "list", "ruleset"], check=True, capture_output=True, text=True).stdout
    return _EXPIRY.sub(" expires", listed)


def _load(pid: int) -> None:
    subprocess.run(["nsenter", "-t", str(pid), "-n", "--", "nft", "-f", str(_RULES)], check=True)


def _arrives(pid: int, port: int) -> bool:
    """A datagram to a socket of that port on the loopback interface of the namespace."""
    script = f"""
import socket
here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
here.bind(("127.0.0.1", {port}))
here.settimeout(0.3)
there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
there.sendto(b"x", ("127.0.0.1", {port}))
try:
    print(here.recv(8).decode())
except TimeoutError:
    print("dropped")
"""
    done = subprocess.run(["nsenter", "-t", str(pid), "-n", "--", sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return done.stdout.strip() == "x"


def _program(container: Container) -> int:
    """The process that the workspace runs, by its id on the host."""
    return int(Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text().split()[0])


async def _filters(directory: Path) -> None:
    """In the workspace's own namespace, and in one made inside."""
    async with Harness(directory) as harness:
        for command in (["sleep", "1000"], ["unshare", "-U", "-r", "-n", "sh", "-c", "ip link set lo up; exec sleep 1000"]):
            source = await harness.launch(harness.import_root(None, []), ["/bin/busybox", *command])
            await asyncio.sleep(1.0)
            _load(_program(source))
            before = _rules(_program(source))
            assert "packets 7 bytes 777" in before and "table netdev early" in before
            fork = await harness.fork(source, 2)
            for branch in fork.branches:
                after = _rules(_program(branch))
                assert after == before, "\n".join(difflib.unified_diff(before.splitlines(), after.splitlines()))
                ports = {port: _arrives(_program(branch), port) for port in (18390, 18391, 18392)}
                assert ports == {18390: True, 18391: False, 18392: False}, ports
            assert _rules(_program(source)) == before, "what is counted in a branch is counted in the source"
            again = (await harness.fork(fork.branches[0])).branches[0]
            assert "udp dport 18391 counter packets 1" in _rules(_program(again))


async def _engines_own(directory: Path) -> None:
    """The table of the engine's own rules is there in every branch anyway."""
    async with Harness(directory) as harness:
        source = await harness.launch(harness.import_root(None, []), ["/bin/busybox", "sleep", "1000"])
        _inside(source, "nft", "add", "table", "inet", "tclone")
        assert (await harness.fork(source)).branches[0].alive


_TESTS = {"fork": _fork, "filters": _filters, "refuse": _refuse, "own": _engines_own}


@pytest.mark.parametrize("what", _TESTS)
def test_workspaces_own_network(what: str, tmp_path: Path) -> None:
    run_apart("tests.fidelity.test_networks", what, tmp_path / "harness")


if __name__ == "__main__":
    own_mount_namespace()
    asyncio.run(_TESTS[sys.argv[1]](Path(sys.argv[2])))
