"""Servers inside a workspace: found with their program, published and unpublished while they run, and kept by a restart of the engine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from engine.client import EngineClient
from engine.errors import BadRequest, Conflict, NotFound
from tests.engine import guest
from tests.engine.support import IMAGE, Engine, eventually

@pytest.fixture
async def workspace(client: EngineClient) -> str:
    return (await client.launch(IMAGE, wait=True))["id"]


@pytest.fixture
def serve(client: EngineClient, workspace: str, tmp_path: Path) -> Callable[..., Awaitable[str]]:
    """Start a program that calls itself `name` and listens."""
    program = guest.build("listen", tmp_path)
    return lambda name, address, *ports: guest.start(client, workspace, program, name, address, *ports)


async def heard(client: EngineClient, ref: str) -> dict[int, dict]:
    return {item["port"]: item for item in await client.listeners(ref)}


def answers(host: int) -> bool:
    """Whether something accepts at a port of this host."""
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex(("127.0.0.1", host)) == 0


async def test_listeners_are_found_with_their_program_and_host_port(client: EngineClient, workspace: str, serve) -> None:
    assert await client.listeners(workspace) == []  # the engine's own gate is not the workspace's
    for address, port in (("0.0.0.0", "3000"), ("127.0.0.1", "4000"), ("::1", "5000"), ("::", "6000")):
        await serve("server", address, port)
    found = await heard(client, workspace)
    assert {port: item["address"] for port, item in found.items()} == {3000: "0.0.0.0", 4000: "127.0.0.1", 5000: "::1", 6000: "::"}
    status, pids, _ = await client.run(workspace, ["pidof", "listen"])
    assert status == 0 and {item["pid"] for item in found.values()} == {int(pid) for pid in pids.split()}
    assert all(item["command"] == "server" and not item["desktop"] for item in found.values())
    assert found[3000]["host"] == (await client.get(workspace))["ports"]["3000"] and found[4000]["host"] is None


@pytest.mark.parametrize("name", ["n\x1b[2J", "a\rNSpid:\t1 1", "two\nlines", "a) S 1 ("])
async def test_names_of_programs_are_made_harmless(client: EngineClient, workspace: str, serve, name: str) -> None:
    await serve(name, "127.0.0.1", "4000")
    (found,) = await client.listeners(workspace)
    _, pid, _ = await client.run(workspace, ["pidof", "listen"])
    assert found["command"].isprintable() and found["pid"] == int(pid)


async def test_a_port_is_published_and_unpublished_while_it_runs(engine: Engine, client: EngineClient, workspace: str) -> None:
    made = await client.publish(workspace, 4000)
    assert made["container"] == 4000 and (await client.get(workspace))["ports"]["4000"] == made["host"]
    assert answers(made["host"])
    assert await client.publish(workspace, 4000) == made
    with pytest.raises(Conflict, match="unpublish it first"):
        await client.publish(workspace, 4000, made["host"] + 1)
    branch = (await client.fork(workspace))["branches"][0]
    assert branch["ports"]["4000"] not in (made["host"], None)
    await engine.stop()
    await engine.start()
    async with engine.client() as again:
        assert (await again.get(workspace))["ports"]["4000"] == made["host"]
        await again.unpublish(workspace, 4000)
        assert not answers(made["host"]) and "4000" not in (await again.get(workspace))["ports"]
        with pytest.raises(NotFound, match="does not publish"):
            await again.unpublish(workspace, 4000)
        assert (await again.publish(workspace, 4001))["host"] != made["host"]


async def test_ports_that_cannot_be_published(client: EngineClient, workspace: str) -> None:
    taken = (await client.get(workspace))["ports"]["3000"]
    with pytest.raises(Conflict, match=str(taken)):
        await client.publish(workspace, 4000, taken)
    for port in (0, 65536):
        with pytest.raises(BadRequest):
            await client.publish(workspace, port)
    assert list((await client.get(workspace))["ports"]) == ["3000"]


async def test_many_at_once_end_as_they_are_recorded(client: EngineClient, workspace: str) -> None:
    made = await asyncio.gather(*(client.publish(workspace, port) for port in range(4000, 4020)))
    await asyncio.gather(*(client.unpublish(workspace, item["container"]) for item in made[::2]))
    ports = (await client.get(workspace))["ports"]
    assert {int(port): host for port, host in ports.items() if port != "3000"} == {item["container"]: item["host"] for item in made[1::2]}
    assert [answers(item["host"]) for item in made] == [False, True] * 10


async def test_thousands_of_listeners_take_bounded_time(client: EngineClient, workspace: str, serve) -> None:
    await serve("many", "127.0.0.1", "10000", "6000")
    await serve("many", "::1", "10000", "6000")
    async with asyncio.timeout(30):
        found = await client.listeners(workspace)
    assert 100 < len(found) <= 2048 and len({(item["port"], item["address"]) for item in found}) == len(found)


async def test_memory_is_told_as_unique_and_shared(client: EngineClient, workspace: str) -> None:
    await client.run(workspace, ["sh", "-c", "dd if=/dev/zero of=/dev/null bs=40M count=1000000 > /dev/null 2>&1 < /dev/null &"])

    async def grown() -> dict | None:
        found = await client.stats(workspace)
        return found if found["unique_bytes"] > 40 << 20 else None

    found = await eventually(grown, seconds=15)
    assert found["pss_bytes"] == found["unique_bytes"] + found["shared_bytes"] and found["shared_bytes"] > 0 and not found["partial"]
    # Asked a hundred times, it is measured once in a while.
    one, *others = await asyncio.gather(*(client.stats(workspace) for _ in range(100)))
    assert {other["unique_bytes"] for other in others} <= {one["unique_bytes"], found["unique_bytes"]}
