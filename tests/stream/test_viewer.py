"""What is added to the viewer's page, and what is left alone."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from aiohttp import web

from portal.stream.viewer import LONGEST_PAGE, VIEWER_SCRIPT_PATH
from tests.stream.world import World

PAGE = "<!doctype html><html><head><title>Selkies</title></head><body>é</body></html>"
OURS = VIEWER_SCRIPT_PATH.encode()


async def _page(world: World, answer: web.Response, path: str = "/", *extra: str):
    seen: list[web.Request] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request)
        return answer

    await world.desktop_app(web.get("/{tail:.*}", handler))
    return await world.ask("GET", path, "ws-1", *extra), seen[0]


async def test_the_script_comes_first_and_knows_the_portals_origin(world: World) -> None:
    page = web.Response(text=PAGE, content_type="text/html", headers={"ETag": '"1"', "Last-Modified": "Sun, 29 Nov 2026 00:00:00 GMT"})
    answer, request = await _page(world, page, "/", "Accept-Encoding: gzip", 'If-None-Match: "1"', "Range: bytes=0-9")
    head, _, rest = answer.body.decode().partition("<title>")
    portal = f"https://{world.host().partition('.')[2]}"
    assert f'<script src="/__tclone/viewer.js" data-portal="{portal}"></script>' in head
    assert rest == PAGE.partition("<title>")[2], "the page itself changed"
    assert not {"Accept-Encoding", "If-None-Match", "Range"} & set(request.headers), "an answer to these could not be added to"
    assert answer.all("ETag") == answer.all("Last-Modified") == [] and answer.get("Cache-Control") == "no-store"


@pytest.mark.parametrize("path", ["/__tclone/viewer.js", "/__tclone/viewer.css"])
async def test_our_files_are_ours_whatever_the_workspace_has_there(world: World, path: str) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(text="from-inside")

    await world.desktop_app(web.get("/{tail:.*}", handler))
    answer = await world.ask("GET", path, "ws-1")
    assert answer.status == 200 and b"from-inside" not in answer.body


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("/", {"text": PAGE, "content_type": "text/plain"}),
        ("/", {"text": PAGE, "content_type": "text/html", "status": 404}),
        ("/", {"text": "<html>no head here</html>", "content_type": "text/html"}),
        ("/", {"body": gzip.compress(PAGE.encode()), "content_type": "text/html", "headers": {"Content-Encoding": "gzip"}}),
        ("/api/files/page.html", {"text": PAGE, "content_type": "text/html"}),
    ],
    ids=["not HTML", "an error", "no head", "compressed", "a file"],
)
async def test_other_answers_pass_as_they_are(world: World, path: str, options: dict[str, Any]) -> None:
    answer = web.Response(**options)
    body = answer.body
    reply, _ = await _page(world, answer, path)
    assert reply.body == body and reply.status == answer.status


async def test_a_page_without_end_is_not_held_in_memory(world: World) -> None:
    text = PAGE + "x" * (2 * LONGEST_PAGE)
    reply, _ = await _page(world, web.Response(text=text, content_type="text/html"))
    assert reply.body.decode() == text and OURS not in reply.body


async def test_a_page_that_breaks_off_is_an_error(world: World) -> None:
    async def half(_, writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 500\r\n\r\n<html><head>")
        await writer.drain()
        writer.close()

    await world.raw_server(half)
    assert (await world.ask("GET", "/", "ws-1")).status == 502
