"""Published ports: whatever the engine says is published is reachable, and nothing else stays open."""

from __future__ import annotations

import asyncio
import socket

from engine.errors import Unavailable
from tests.stream.test_upgrade import echo
from tests.stream.world import PATIENCE, World


async def _publish(world: World, workspace: str = "ws-1", container: int = 3000) -> int:
    """Publish a port; the host's port once it is accepted on."""
    before = world.descriptors.listened
    world.engine.add(workspace, ports={str(container): 40000 + container})
    await world.until(lambda: world.descriptors.listened > before)
    return world.descriptors.host_ports[(workspace, container)]


async def _talk(port: int, data: bytes = b"hello") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        writer.write_eof()
        return await asyncio.wait_for(reader.read(-1), PATIENCE)
    except OSError:
        return b""
    finally:
        writer.close()


async def test_bytes_reach_the_server_inside_and_half_closing_works(world: World) -> None:
    await world.raw_server(echo, port=3000)
    port = await _publish(world)
    assert await _talk(port, b"x" * 3_000_000) == b"x" * 3_000_000


async def test_a_server_that_starts_later_is_found(world: World) -> None:
    port = await _publish(world)
    assert await _talk(port) == b"", "without a server the client is closed at once"
    await world.raw_server(echo, port=3000)
    assert await _talk(port) == b"hello"


async def test_a_port_of_a_workspace_that_is_gone_is_closed_with_its_connections(world: World) -> None:
    await world.raw_server(echo, port=3000)
    port = await _publish(world)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"a")
    assert await reader.readexactly(1) == b"a"
    world.engine.remove("ws-1")
    await world.until(lambda: not world.server.health()["ports"])
    try:
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
    except ConnectionResetError:
        pass
    writer.close()
    assert _refused(port)


def _refused(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0


async def test_connections_outlive_the_engines_restart_and_its_listeners_are_fetched_again(world: World) -> None:
    await world.raw_server(echo, port=3000)
    port = await _publish(world)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"a")
    assert await reader.readexactly(1) == b"a"
    listened = world.descriptors.listened
    world.descriptors.error = Unavailable("the engine is down")
    world.on_engine_lost()
    # The old listener is given back at once: a new engine could not bind its port otherwise.
    await world.until(lambda: _refused(port))
    world.descriptors.error = None
    await world.until(lambda: world.descriptors.listened > listened)
    assert await _talk(port) == b"hello"
    writer.write(b"b")
    assert await reader.readexactly(1) == b"b"
    writer.close()


async def test_a_listener_that_cannot_be_had_yet_is_tried_again(world: World) -> None:
    world.descriptors.error = Unavailable("not yet")
    world.engine.add("ws-1", ports={"3000": 43000})
    await world.until(lambda: world.server.health()["ports_wanted"] == 1)
    assert world.server.health()["ports"] == 0
    world.descriptors.error = None
    await world.until(lambda: world.server.health()["ports"] == 1)


async def test_every_workspace_has_its_own_port(world: World) -> None:
    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"one")

    async def two(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"two")

    await world.raw_server(one, port=3000)
    await world.raw_server(two, "ws-2", 3000)
    first, second = await _publish(world), await _publish(world, "ws-2")
    assert (await _talk(first), await _talk(second)) == (b"one", b"two")


async def test_an_application_that_compares_host_and_origin_is_content(world: World) -> None:
    """As frameworks guard forms: the page's origin must be the host that is asked, and the form's secret the cookie's. Nothing here rewrites one
    of them and leaves the other."""
    seen: list[bytes] = []

    async def application(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
        secret = await reader.readexactly(int(fields[b"Content-Length"]))
        seen.append(head)
        right = fields[b"Origin"] == b"http://" + fields[b"Host"] and fields[b"Cookie"] == b"csrftoken=" + secret
        writer.write(b"HTTP/1.1 %d x\r\nContent-Length: 0\r\n\r\n" % (200 if right else 403))

    await world.raw_server(application, port=3000)
    port = await _publish(world)
    request = (
        f"POST /form HTTP/1.1\r\nHost: localhost:{port}\r\nOrigin: http://localhost:{port}\r\nCookie: csrftoken=abc\r\nContent-Length: 3\r\n\r\n"
    ).encode()
    assert (await _talk(port, request + b"abc")).startswith(b"HTTP/1.1 200 ")
    assert (await _talk(port, request + b"xyz")).startswith(b"HTTP/1.1 403 "), "it does look"
    assert seen[0] == request, "no header was changed or added"
