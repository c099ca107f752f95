"""A share link's viewer watches: its requests are refused here, before a workspace sees them, and its token is the one for watching."""

from __future__ import annotations

import asyncio
import base64

import pytest
from aiohttp import web

from portal.stream import viewer_api
from portal.stream.frames import POLICY
from portal.stream.viewer_api import Role
from tests.stream.world import TOKEN, World


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/api/upload"), ("GET", "/api/files/"), ("GET", "/api/files/a.txt"), ("HEAD", "/api/files"), ("GET", "/api/print/doc-1"), ("GET", "/api/apps/metadata.yml")],
)  # fmt: skip
def test_a_viewer_gets_neither_files_nor_uploads(method: str, path: str) -> None:
    assert viewer_api.allows(method, path, Role.CONTROLLER)
    assert not viewer_api.allows(method, path, Role.VIEWER)


@pytest.mark.parametrize("path", ["/", "/src/a.js", "/api/status", "/api/websockets"])
def test_a_viewer_gets_what_shows_the_desktop(path: str) -> None:
    assert viewer_api.allows("GET", path, Role.VIEWER)


def watched(world: World) -> World:
    """`ws-1` is opened by a share link."""
    world.control.live.add("shr-1")
    world.control.viewers.add("shr-1")
    world.control.desks["desk-of-ws-1"] = ("shr-1", "ws-1")
    return world


async def test_the_desktop_is_asked_with_the_token_for_watching(world: World) -> None:
    watched(world)
    heads = await world.raw_websocket(echo)
    await world.websocket()
    assert world.engine.roles == ["viewer"] and _offered(heads[0]) == f"viewer-{TOKEN}"
    world.engine.roles.clear()
    await world.raw_websocket(echo, workspace="ws-2")
    await world.websocket("ws-2")
    assert world.engine.roles == ["controller"]


async def test_a_viewers_upload_never_reaches_the_workspace(world: World) -> None:
    watched(world)
    reached: list[str] = []

    async def take(request: web.Request) -> web.Response:
        reached.append(request.path)
        return web.Response(text="taken")

    await world.desktop_app(web.route("*", "/{tail:.*}", take))
    origin = f"Origin: {world.origin()}"
    assert (await world.ask("POST", "/api/upload", "ws-1", origin, body=b"x")).status == 404
    assert (await world.ask("GET", "/api/files/a.txt")).status == 404
    assert reached == []
    assert (await world.ask("GET", "/")).status == 200 and reached == ["/"]


async def test_control_is_told_how_many_look_on_and_again_when_it_comes_back(world: World) -> None:
    watched(world)
    await world.raw_websocket(echo)
    await world.raw_websocket(echo, workspace="ws-2")
    first, second, _ = await world.websocket(), await world.websocket(), await world.websocket("ws-2")
    await world.until(lambda: world.control.opened == [["alice", "ws-2", 1], ["shr-1", "ws-1", 2]])
    await first.close()
    await world.until(lambda: world.control.opened == [["alice", "ws-2", 1], ["shr-1", "ws-1", 1]])
    await world.control.stop()
    world.control.opened = []
    await world.control.start()
    await world.until(lambda: world.control.opened == [["alice", "ws-2", 1], ["shr-1", "ws-1", 1]])
    assert not await second.ended(0.1)


async def test_a_revoked_link_closes_its_streams_within_a_second(world: World) -> None:
    watched(world)
    await world.raw_websocket(echo)
    await world.raw_websocket(echo, workspace="ws-2")
    viewer, owner = await world.websocket(), await world.websocket("ws-2")
    await world.control.end_session("shr-1")
    opcode, payload = await asyncio.wait_for(viewer.frame(), 1.0)
    assert opcode == 8 and payload[:2] == POLICY.to_bytes(2)
    assert not await owner.ended(0.1)
    assert (await world.ask("GET", "/")).status == 401


async def test_an_answer_without_a_role_is_a_viewers(world: World) -> None:
    world.control._role = lambda session: {}
    await world.raw_websocket(echo)
    await world.websocket()
    assert world.engine.roles == ["viewer"]


def _offered(head: bytes) -> str:
    line = next(line for line in head.decode().split("\r\n") if line.lower().startswith("sec-websocket-protocol:"))
    encoded = line.rpartition("selkies.token.")[2]
    return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
