"""Published host ports: fresh, named in conflicts, not reused too soon, bound again after a restart."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.config import Config
from engine.errors import BadRequest, Conflict, LimitReached, NotFound, Unavailable
from engine.network import Network, NetworkSettings, PortRequest
from engine.network import ports as ports_module
from engine.network.ports import FACE, PortTable, bind_listener
from tests.leaks import LeakCounter
from tests.ports import free_port


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "released.json"


@pytest.fixture
def table(leaks: LeakCounter, record: Path) -> Iterator[PortTable]:
    made = PortTable(NetworkSettings(), record)
    yield made
    made.close()


def test_each_workspace_has_its_own_port_for_the_same_container_port(table: PortTable) -> None:
    first = table.allocate("ws-1", [PortRequest(3000), PortRequest(8080)])
    second = table.allocate("ws-2", [PortRequest(3000)])
    numbers = [*first.values(), *second.values()]
    assert len(set(numbers)) == 3
    assert all(20000 <= number <= 32767 for number in numbers)


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_both_families_reach_the_listener(table: PortTable, family: int, address: str) -> None:
    host = table.allocate("ws-1", [PortRequest(3000)])[3000]
    with socket.socket(family) as client:
        client.settimeout(2)
        client.connect((address, host))
        accepted, _ = table.listener("ws-1", 3000).accept()
        accepted.close()


def test_a_local_port_is_on_the_loopback_alone(table: PortTable, record: Path) -> None:
    ports = table.allocate("ws-1", [PortRequest(FACE, local=True), PortRequest(9222, local=True), PortRequest(3000)])
    again = PortTable(NetworkSettings(), record)
    for made in (table, again):
        if made is again:
            table.close()
            assert again.restore("ws-1", FACE, ports[FACE], local=True) and again.restore("ws-1", 9222, ports[9222], local=True)
        assert [made.listener("ws-1", port).getsockname() for port in (FACE, 9222)] == [("127.0.0.1", ports[FACE]), ("127.0.0.1", ports[9222])]
    again.close()
    for wrong in (PortRequest(FACE), PortRequest(True, local=True), PortRequest(-1, local=True)):
        with pytest.raises(BadRequest):
            table.allocate("ws-2", [wrong])
    with pytest.raises(BadRequest):
        table.restore("ws-2", FACE, ports[FACE])


def test_a_host_without_ipv6_binds_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ports_module._bind

    def without_ipv6(family: int, address: str, port: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "no IPv6")
        return real(family, address, port)

    monkeypatch.setattr(ports_module, "_bind", without_ipv6)
    with bind_listener("::", 0) as made:
        assert made.family == socket.AF_INET


def test_a_requested_port_and_who_has_it(table: PortTable) -> None:
    wanted = free_port()
    assert table.allocate("ws-1", [PortRequest(3000, wanted)]) == {3000: wanted}
    with pytest.raises(Conflict, match=f"host port {wanted} is port 3000 of ws-1"):
        table.allocate("ws-2", [PortRequest(4000), PortRequest(3000, wanted)])
    assert table.ports("ws-2") == {}
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(Conflict, match=f"host port {taken} is in use by another program"):
            table.allocate("ws-2", [PortRequest(3000, taken)])


def test_bad_requests_are_named(table: PortTable) -> None:
    for request in (
        PortRequest(0),
        PortRequest(65536),
        PortRequest(-1),
        PortRequest(80, 0),
        PortRequest(80, 70000),
        PortRequest(True),
    ):
        with pytest.raises(BadRequest, match="from 1 to 65535"):
            table.allocate("ws-1", [request])
    with pytest.raises(BadRequest, match="named twice"):
        table.allocate("ws-1", [PortRequest(80), PortRequest(80)])
    with pytest.raises(LimitReached, match="at most 64"):
        table.allocate("ws-1", [PortRequest(number) for number in range(1, 66)])
    with pytest.raises(NotFound, match="ws-1 does not publish port 80"):
        table.listener("ws-1", 80)


def test_a_released_port_is_refused_at_once_and_not_chosen_again_for_a_minute(
    leaks: LeakCounter, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = NetworkSettings(port_first=28800, port_last=28803)
    table = PortTable(settings, record)
    released = table.allocate("ws-1", [PortRequest(3000)])[3000]
    table.release("ws-1")
    with socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect(("127.0.0.1", released))
    # Also after a restart of the engine.
    table.close()
    table = PortTable(settings, record)
    table.load()
    others = table.allocate("ws-2", [PortRequest(number) for number in (1, 2, 3)])
    assert released not in others.values()
    with pytest.raises(LimitReached, match="no free host port from 28800 to 28803"):
        table.allocate("ws-3", [PortRequest(3000)])
    later = time.time() + 61
    monkeypatch.setattr(ports_module.time, "time", lambda: later)
    assert table.allocate("ws-3", [PortRequest(3000)]) == {3000: released}
    table.close()


def test_a_port_closes_although_a_copy_of_its_descriptor_lives(table: PortTable) -> None:
    """The stream process holds copies; a removed workspace's port must be dead at once all the same."""
    host = table.allocate("ws-1", [PortRequest(3000)])[3000]
    with table.listener("ws-1", 3000).dup() as copy:
        table.release("ws-1")
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect(("127.0.0.1", host))
        with pytest.raises(OSError) as caught:
            copy.accept()
        assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("content", ["", "[]", "nonsense", '{"x": 1}', '{"1": "y"}', '{"20000": null}'])
def test_a_spoilt_record_is_no_obstacle(leaks: LeakCounter, record: Path, content: str) -> None:
    record.write_text(content)
    table = PortTable(NetworkSettings(), record)
    table.load()
    assert table.allocate("ws-1", [PortRequest(3000)])
    table.release("ws-1")
    assert len(json.loads(record.read_text())) == 1


async def test_after_a_restart_a_held_port_is_taken_as_soon_as_it_is_free(network: Network, config: Config) -> None:
    handle = await network.create("ws-1", ports=[PortRequest(3000)])
    host = handle.ports[3000]
    # What the stream process holds.
    copy = network.listener("ws-1", 3000).dup()
    await network.close()
    with copy:
        await network.open()
        assert (await network.adopt("ws-1", "open", handle.ports)).ports == {3000: host}
        with pytest.raises(Unavailable, match=f"host port {host} of ws-1 is held"):
            network.listener("ws-1", 3000)
    deadline = time.monotonic() + 30
    while True:
        try:
            assert network.listener("ws-1", 3000).getsockname()[1] == host
            break
        except Unavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def test_ports_are_published_later_for_a_workspace_prepared_without(network: Network) -> None:
    assert (await network.create("ws-1")).ports == {}
    with pytest.raises(BadRequest):
        await network.publish("ws-1", [PortRequest(0)])
    published = await network.publish("ws-1", [PortRequest(3000)])
    assert network.ports("ws-1") == published
    with pytest.raises(Conflict, match="ws-1 has its published ports already"):
        await network.publish("ws-1", [PortRequest(4000)])
    with pytest.raises(NotFound, match="ws-9"):
        await network.publish("ws-9", [PortRequest(3000)])
