"""A workspace's namespace: what is in it, what is not, and that it outlives the engine."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.config import Config
from engine.errors import BadRequest, Conflict, NotFound
from engine.network import Network, PortRequest
from tests.leaks import LeakCounter
from tests.network.conftest import Inside

REPO = Path(__file__).resolve().parents[2]


async def test_every_workspace_has_the_same_addresses(network: Network, inside: Callable[[str], Inside]) -> None:
    for workspace in ("ws-1", "ws-2"):
        await network.create(workspace)
        _, addresses = await inside(workspace).run("ip", "-o", "address")
        _, link = await inside(workspace).run("ip", "link", "show", "eth0")
        _, routes = await inside(workspace).run("ip", "route")
        assert "inet 127.0.0.1/8" in addresses and "inet6 ::1/128" in addresses
        assert "inet 10.77.0.2/24" in addresses
        assert "inet6 fe80" not in addresses
        assert link.startswith("2: eth0") and "state UP" in link and "02:0a:4d:00:00:02" in link
        assert routes.startswith("default via 10.77.0.1 dev eth0")
        _, links = await inside(workspace).run("ip", "-o", "link")
        assert len(links.splitlines()) == 2


async def test_any_user_may_bind_port_80_and_ping(network: Network, inside: Callable[[str], Inside]) -> None:
    await network.create("ws-1")
    printed = await inside("ws-1").python(
        "import os, socket\n"
        "os.setgid(1000); os.setuid(1000)\n"
        "socket.socket().bind(('0.0.0.0', 80))\n"
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)\n"
        "print('bound')"
    )
    assert printed == "bound"


async def test_loopback_works_inside_in_both_families(network: Network, inside: Callable[[str], Inside]) -> None:
    await network.create("ws-1", "none")
    for family, address in (("AF_INET", "127.0.0.1"), ("AF_INET", "10.77.0.2"), ("AF_INET6", "::1")):
        printed = await inside("ws-1").python(
            "import socket\n"
            f"s = socket.socket(socket.{family}); s.bind(('{address}', 8000)); s.listen()\n"
            f"c = socket.create_connection(('{address}', 8000)); a, _ = s.accept()\n"
            "c.sendall(b'hello'); print(a.recv(5).decode())"
        )
        assert printed == "hello"


async def test_frames_of_one_workspace_arrive_at_no_other(network: Network, inside: Callable[[str], Inside]) -> None:
    """Frames of a workspace's own making pass no output hook: the namespace where the links end must keep them."""
    await network.create("ws-1")
    await network.create("ws-2")
    every_protocol = 0x0003
    with (
        inside("ws-1").socket(socket.AF_PACKET, socket.SOCK_RAW) as sender,
        inside("ws-2").socket(socket.AF_PACKET, socket.SOCK_RAW) as listener,
        inside("ws-1").socket(socket.AF_PACKET, socket.SOCK_RAW) as control,
    ):
        for sniffer in (listener, control):
            sniffer.bind(("eth0", every_protocol))
        sender.bind(("eth0", 0))
        ours = b"\x02\x0a\x4d\0\0\2"
        who_has = b"\x08\x06\0\1\x08\0\6\4\0\1" + ours + bytes([10, 77, 0, 9]) + bytes(6) + bytes([10, 77, 0, 2])
        datagram = b"\x08\0\x45\0\0\x1c\0\0\0\0\x40\x11\0\0" + bytes([10, 77, 0, 9, 10, 77, 0, 2]) + bytes(8)
        for packet in (who_has, datagram):
            for target in (b"\xff" * 6, ours):
                sender.send(target + ours + packet.ljust(46, b"\0"))
        # On a busy machine frames are delivered a moment later; all four have been when the sender's own namespace has seen them.
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(30):
            for _ in range(4):
                assert await loop.sock_recv(control, 2000), "the sniffer itself sees nothing"
        await asyncio.sleep(0.3)
        with pytest.raises(BlockingIOError):
            listener.recv(2000)


async def test_a_process_without_privileges_of_the_host_cannot_change_the_rules(
    network: Network, inside: Callable[[str], Inside]
) -> None:
    await network.create("ws-1")
    status, output = await inside("ws-1").run(
        "setpriv", "--bounding-set=-net_admin,-sys_admin", "--inh-caps=-all", "nft", "flush", "ruleset"
    )
    assert status != 0 and "not permitted" in output


@pytest.mark.alone
async def test_creation_is_quick(network: Network) -> None:
    taken = []
    for number in range(10):
        started = time.perf_counter()
        await network.create(f"ws-{number}")
        taken.append(time.perf_counter() - started)
        await network.destroy(f"ws-{number}")
    taken.sort()
    # About 20 ms on a quiet machine, half of it the start of nft; the bound leaves room for a busy one.
    assert taken[len(taken) // 2] < 0.25, taken


async def test_bad_and_double_ids_are_refused_by_name(network: Network) -> None:
    for bad in ("", ".", "..", "../x", "a/b", ".holder", "x" * 65, "a b"):
        with pytest.raises(BadRequest, match="no workspace id"):
            await network.create(bad)
    await network.create("ws-1")
    with pytest.raises(Conflict, match="ws-1 has a network already"):
        await network.create("ws-1")
    with pytest.raises(BadRequest, match="open, none"):
        await network.create("ws-2", "half")
    with pytest.raises(NotFound, match="ws-9"):
        await network.adopt("ws-9", "open", {})
    await network.destroy("ws-9")


async def test_a_failed_creation_leaves_nothing(network: Network, config: Config) -> None:
    first = await network.create("ws-1", ports=[PortRequest(3000)])
    with pytest.raises(Conflict):
        await network.create("ws-2", ports=[PortRequest(3000), PortRequest(3001, first.ports[3000])])
    assert [entry.name for entry in (config.run / "netns").iterdir() if not entry.name.startswith(".")] == ["ws-1"]
    await network.create("ws-2", ports=[PortRequest(3000)])


async def test_many_creations_and_removals_leak_nothing(network: Network) -> None:
    before = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    for _ in range(25):
        await network.create("ws-1", ports=[PortRequest(3000)])
        await network.destroy("ws-1")
    after = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    assert after[0] <= before[0] and after[1] <= before[1] + 8


_ENGINE = """
import asyncio, dataclasses, sys
from pathlib import Path
from engine.config import Config
from engine.network import Network, PortRequest

async def main():
    config = dataclasses.replace(Config.from_environment(), run=Path(sys.argv[1]))
    network = Network(config)
    await network.open()
    handle = await network.create("ws-1", "open", [PortRequest(3000)])
    await network.create("ws-2")
    print(handle.ports[3000], flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_namespaces_survive_a_killed_engine(leaks: LeakCounter, config: Config, inside: Callable[[str], Inside]) -> None:
    engine = subprocess.Popen([sys.executable, "-c", _ENGINE, str(config.run)], cwd=REPO, stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    host_port = int(engine.stdout.readline())
    squatter = inside("ws-1").socket()
    engine.send_signal(signal.SIGKILL)
    engine.wait()
    engine.stdout.close()
    # Without an engine nothing gets out.
    status, output = await inside("ws-1").run("curl", "-sS", "-m", "3", "http://198.18.0.9/")
    assert status == 7, output
    # A process of the workspace takes the gate's port meanwhile: it must not hinder the next engine.
    squatter.bind(("127.0.0.1", 61001))
    squatter.listen()
    network = Network(config)
    await network.open()
    try:
        handle = await network.adopt("ws-1", "open", {3000: host_port})
        assert handle.ports == {3000: host_port}
        assert network.listener("ws-1", 3000).getsockname()[1] == host_port
        assert os.stat(handle.path).st_ino == os.stat(config.run / "netns" / "ws-1").st_ino
        assert await network.adopt("ws-1", "open", {3000: host_port}) == handle
        assert network._entries["ws-1"].gate._listeners.ports().tcp not in (0, 61001)
        assert await network.prune(keep=["ws-1"]) == ["ws-2"]
    finally:
        squatter.close()
        await network.destroy("ws-1")
        await network.close()
    assert not (config.run / "netns").exists() or not list((config.run / "netns").iterdir())
