"""The HTTP half of the checklist for reverse proxies: what a desktop's server and a browser must find unchanged, and what must stop here."""

from __future__ import annotations

import asyncio
import gzip

import pytest
from aiohttp import web

from tests.stream.world import PATIENCE, World


async def _seen(world: World, *extra: str, path: str = "/api/status") -> web.Request:
    """The request as the desktop got it."""
    seen: list[web.Request] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request)
        return web.Response(text="ok")

    await world.desktop_app(web.get("/{tail:.*}", handler))
    assert (await world.ask("GET", path, "ws-1", *extra)).status == 200
    return seen[0]


async def test_the_desktop_gets_its_token_and_none_of_our_credentials(world: World) -> None:
    request = await _seen(world, "Authorization: Basic browser", "Cookie: app=1; __Host-tclone-desk-x=2")
    assert request.headers.getall("Authorization") == ["Bearer token-of-the-desktop+/="]
    assert request.headers.getall("Cookie") == ["app=1"]
    assert request.headers["X-Forwarded-For"] == "127.0.0.1"
    assert request.headers["Host"] == world.host()


async def test_nothing_is_added_to_the_request(world: World) -> None:
    request = await _seen(world)
    assert not {"User-Agent", "Accept", "Accept-Encoding", "Content-Type"} & set(request.headers)


@pytest.mark.parametrize("path", ["/api/files/a%20b", "/api/files/%40@%25", "/api/files/a%2Fb", "/api/files/x;y=1?q=%2f&&a==b", "/api/files/?a=http://x/../y"])
async def test_the_raw_path_passes_byte_for_byte(world: World, path: str) -> None:
    assert (await _seen(world, path=path)).raw_path == path


async def test_a_compressed_body_passes_as_it_is(world: World) -> None:
    packed = gzip.compress(b"text" * 1000)

    async def handler(request: web.Request) -> web.Response:
        assert request.headers["Accept-Encoding"] == "gzip, br"
        return web.Response(body=packed, headers={"Content-Encoding": "gzip"})

    await world.desktop_app(web.get("/api/status", handler))
    answer = await world.ask("GET", "/api/status", "ws-1", "Accept-Encoding: gzip, br")
    assert answer.body == packed and answer.get("Content-Encoding") == "gzip" and answer.get("Content-Length") == str(len(packed))


@pytest.mark.parametrize(
    ("method", "raw", "status", "body"),
    [
        ("GET", b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-1/9\r\nContent-Length: 2\r\n\r\nab", 206, b"ab"),
        ("GET", b'HTTP/1.1 304 Not Modified\r\nETag: "x"\r\n\r\n', 304, b""),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n", 200, b""),
        ("GET", b"HTTP/1.0 200 OK\r\n\r\nuntil the end", 200, b"until the end"),
    ],
)
async def test_answers_without_or_with_partial_bodies(world: World, method: str, raw: bytes, status: int, body: bytes) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        await writer.drain()

    await world.raw_server(handler)
    answer = await world.ask(method, "/api/status")
    assert (answer.status, answer.body) == (status, body)
    assert answer.get("Content-Length") == ("1234" if method == "HEAD" else "2" if status == 206 else "")
    if status == 206:
        assert answer.get("Content-Range") == "bytes 0-1/9"


async def test_range_and_conditions_reach_the_desktop(world: World) -> None:
    request = await _seen(world, "Range: bytes=0-1", 'If-None-Match: "x"', path="/api/files/x")
    assert request.headers["Range"] == "bytes=0-1" and request.headers["If-None-Match"] == '"x"'


async def test_events_arrive_as_they_are_sent(world: World) -> None:
    go_on = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await go_on.wait()
        await response.write(b"data: 2\n\n")
        return response

    await world.desktop_app(web.get("/api/status", handler))
    client = await world.connect()
    await client.send(world.request("GET", "/api/status"))
    await client.head()
    assert b"data: 1" in await asyncio.wait_for(client.reader.readuntil(b"data: 1\n\n"), PATIENCE)
    go_on.set()
    assert b"data: 2" in await asyncio.wait_for(client.reader.readuntil(b"data: 2\n\n"), PATIENCE)


async def test_every_set_cookie_arrives_but_none_of_ours(world: World) -> None:
    async def handler(request: web.Request) -> web.Response:
        response = web.Response()
        for value in ("a=1; Domain=localhost", "b=2", "__Host-tclone-desk=forged; Secure; Path=/", "__Host-tclone=forged"):
            response.headers.add("Set-Cookie", value)
        return response

    await world.desktop_app(web.get("/api/status", handler))
    assert (await world.ask("GET", "/api/status")).all("Set-Cookie") == ["a=1", "b=2"]


async def test_an_upload_streams_without_being_kept(world: World) -> None:
    arrived = asyncio.Event()
    sizes: list[int] = []

    async def handler(request: web.Request) -> web.Response:
        first = await request.content.readany()
        arrived.set()
        sizes.append(len(first) + len(await request.read()))
        assert request.headers["Content-Length"] == "200000"
        return web.Response(text="stored")

    await world.desktop_app(web.post("/api/upload", handler))
    client = await world.connect()
    await client.send(world.request("POST", "/api/upload", "ws-1", f"Origin: {world.origin()}", "Content-Length: 200000") + b"x" * 1000)
    # The first bytes are upstream before the rest was sent.
    await asyncio.wait_for(arrived.wait(), PATIENCE)
    await client.send(b"x" * 199_000)
    assert (await client.reply()).body == b"stored" and sizes == [200_000]


async def test_a_chunked_upload_arrives_whole(world: World) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    await world.desktop_app(web.post("/api/upload", handler))
    client = await world.connect()
    await client.send(world.request("POST", "/api/upload", "ws-1", f"Origin: {world.origin()}", "Transfer-Encoding: chunked") + b"5\r\nhello\r\n0\r\n\r\n")
    assert (await client.reply()).body == b"5"


@pytest.mark.parametrize("accepts", [True, False])
async def test_continue_is_said_only_when_the_desktop_takes_the_body(world: World, accepts: bool) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"expect: 100-continue" in head.lower()
        if accepts:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await reader.readexactly(5)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()

    await world.raw_server(handler)
    client = await world.connect()
    await client.send(world.request("POST", "/api/upload", "ws-1", f"Origin: {world.origin()}", "Expect: 100-continue", "Content-Length: 5"))
    answer = await client.head()
    if accepts:
        assert answer.status == 100
        await client.send(b"hello")
        answer = await client.reply()
    assert answer.status == (200 if accepts else 413)


async def test_a_client_that_leaves_ends_the_request_upstream(world: World) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        started.set()
        await reader.read()
        ended.set()

    await world.raw_server(handler)
    client = await world.connect()
    await client.send(world.request("GET", "/api/status"))
    await asyncio.wait_for(started.wait(), PATIENCE)
    await client.close()
    await asyncio.wait_for(ended.wait(), PATIENCE)


async def test_a_body_that_breaks_off_does_not_look_whole(world: World) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await writer.drain()

    await world.raw_server(handler)
    client = await world.connect()
    await client.send(world.request("GET", "/api/status"))
    await client.head()
    rest = b""
    try:
        while chunk := await asyncio.wait_for(client.reader.read(4096), PATIENCE):
            rest += chunk
    except OSError:
        pass
    assert b"0\r\n\r\n" not in rest


@pytest.mark.parametrize(
    "answer",
    [
        b"not http at all\r\n\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 5000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nBad Name: y\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 0\r\n\r\n",
    ],
    ids=["garbage", "nothing", "both lengths", "two lengths", "long header", "many headers", "bad name", "nul"],
)
async def test_a_desktop_that_misbehaves_is_a_bad_gateway(world: World, answer: bytes) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    await world.raw_server(handler)
    found = await world.ask("GET", "/api/status")
    assert found.status == 502 and found.json()["error"]["code"] == "bad_upstream"
    assert "frame-ancestors" in found.get("Content-Security-Policy")


async def test_interim_answers_do_not_confuse(world: World) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()

    await world.raw_server(handler)
    assert (await world.ask("GET", "/api/status")).body == b"ok"


async def test_redirects_are_the_browsers_to_follow(world: World) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "http://169.254.169.254/"})

    await world.desktop_app(web.get("/api/status", handler))
    answer = await world.ask("GET", "/api/status")
    assert answer.status == 302 and answer.get("Location") == "http://169.254.169.254/"


async def test_a_kept_connection_serves_many_requests(world: World) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=request.raw_path)

    await world.desktop_app(web.get("/{tail:.*}", handler))
    client = await world.connect()
    for number in range(5):
        await client.send(world.request("GET", f"/api/files/{number}"))
        assert (await client.reply()).body == f"/api/files/{number}".encode()


async def test_control_gets_everything_and_answers_through(world: World) -> None:
    answer = await world.ask("PUT", "/any/path?x=%2F", "", "Authorization: Bearer t", "Cookie: __Host-tclone=c", "X-Forwarded-For: 6.6.6.6", body=b"12345")
    assert answer.body == b"control PUT /any/path?x=%2F 5"
    assert answer.get("Set-Cookie").startswith("__Host-tclone=portal")
    request = world.control.requests[0]
    assert request.headers["Authorization"] == "Bearer t" and request.headers["Cookie"] == "__Host-tclone=c"
    assert request.headers["X-Forwarded-For"] == "127.0.0.1" and request.headers["X-Forwarded-Proto"] == "https"
    assert request.headers["Host"] == request.headers["X-Forwarded-Host"] == world.host("")


async def test_without_control_the_portal_says_so_and_when_to_ask_again(world: World) -> None:
    await world.control.stop()
    answer = await world.ask("GET", "/", "")
    assert answer.status == 503 and answer.get("Retry-After") == "2" and answer.json()["error"]["code"] == "unavailable"
