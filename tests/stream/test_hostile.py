"""Requests made to confuse the proxy, to reach another desktop, or to use a right twice."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from aiohttp import web

from portal.hosts import PORTAL_HOST
from tests.stream.world import DESK_COOKIE, Client, World


@pytest.fixture
async def requests(world: World) -> list[web.Request]:
    """What reached ws-1's or ws-2's desktop."""
    seen: list[web.Request] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request)
        return web.Response(text="desktop")

    for workspace in ("ws-1", "ws-2"):
        await world.desktop_app(web.route("*", "/{tail:.*}", handler), workspace=workspace)
    return seen


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 6",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding : chunked",
        "Content-Length: +5",
        "Content-Length: 5, 5",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "X: y\n\tContent-Length: 3",
        "X: a\x00b",
    ],
)
async def test_smuggled_requests_are_refused(world: World, requests: list[web.Request], head: str) -> None:
    client = await world.connect()
    smuggled = b"0\r\n\r\nGET /api/status HTTP/1.1\r\nHost: x\r\n\r\n"
    await client.send(world.request("POST", "/api/upload", "ws-1", f"Origin: {world.origin()}", head) + smuggled)
    assert (await client.reply()).status == 400
    assert await client.ended()
    assert not requests


@pytest.mark.parametrize(
    ("line", "statuses"),
    [(f"X: {'a' * 70_000}", {400, 431}), ("\r\n".join(f"X-{n}: y" for n in range(2000)), {400, 431})],
    ids=["one long header", "many headers"],
)
async def test_huge_headers_are_refused_without_being_kept(world: World, requests: list[web.Request], line: str, statuses: set[int]) -> None:
    client = await world.connect()
    await client.send(world.request("GET", "/api/status", "ws-1", line))
    assert (await client.reply()).status in statuses
    assert not requests


@pytest.mark.parametrize("upgrade", ["h2c", "websocket, h2c", "tcp", "TLS/1.0"])
async def test_only_websockets_are_upgraded(world: World, requests: list[web.Request], upgrade: str) -> None:
    extra = ("Connection: Upgrade, HTTP2-Settings", f"Upgrade: {upgrade}", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
    answer = await world.ask("GET", "/api/websockets", "ws-1", f"Origin: {world.origin()}", *extra)
    assert answer.status == 400 and not requests


async def test_http2_is_not_negotiated(world: World) -> None:
    context = ssl.create_default_context(cadata=None)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    _, writer = await asyncio.open_connection("127.0.0.1", world.port, ssl=context)
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
    writer.transport.abort()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_old_tls_is_refused(world: World, version: ssl.TLSVersion) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", world.port, ssl=context)


@pytest.mark.parametrize("host", ["evil.example", "ws-1.evil.example", f"ws-1.{PORTAL_HOST}.evil.example", f"ws-x.{PORTAL_HOST}", ""])
async def test_a_wrong_host_is_misdirected(world: World, requests: list[web.Request], host: str) -> None:
    client = await world.connect()
    await client.send(f"GET /api/status HTTP/1.1\r\nHost: {host}\r\nCookie: {world.cookies['ws-1']}\r\n\r\n".encode())
    assert (await client.reply()).status in (400, 421)
    assert not requests and not world.control.requests


@pytest.mark.parametrize("hosts", ["", f"Host: ws-1.{PORTAL_HOST}\r\nHost: ws-2.{PORTAL_HOST}\r\n"], ids=["none", "two"])
async def test_there_is_exactly_one_host(world: World, requests: list[web.Request], hosts: str) -> None:
    client = await world.connect()
    await client.send(f"GET /api/status HTTP/1.1\r\n{hosts}Cookie: {world.cookies['ws-1']}\r\n\r\n".encode())
    assert (await client.reply()).status in (400, 421)
    assert not requests


@pytest.mark.parametrize("target", [f"http://ws-2.{PORTAL_HOST}/api/status", f"//ws-2.{PORTAL_HOST}/api/status", "*"])
async def test_the_request_target_names_no_other_host(world: World, requests: list[web.Request], target: str) -> None:
    assert (await world.ask("GET", target)).status in (400, 404)
    assert not requests


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "https://{host}:{port}", "https://ws-2.{host}:{port}", "http://ws-1.{host}:{port}", "https://ws-1.{host}", ""])
async def test_a_websocket_from_another_origin_is_refused_before_101(world: World, requests: list[web.Request], origin: str) -> None:
    client = await world.connect()
    await client.send(world.upgrade_bytes("ws-1", f"Origin: {origin.format(port=world.port, host=PORTAL_HOST)}" if origin else "Origin:"))
    assert (await client.reply()).status == 403
    assert not requests


@pytest.mark.parametrize("origin", ["https://evil.example", None])
async def test_an_unsafe_request_from_another_origin_is_refused(world: World, requests: list[web.Request], origin: str | None) -> None:
    extra = (f"Origin: {origin}",) if origin else ()
    assert (await world.ask("POST", "/api/upload", "ws-1", *extra, body=b"x")).status == 403
    assert not requests


@pytest.mark.parametrize("cookie", ["", "__Host-tclone-desk=", "__Host-tclone-desk=guess", "__Host-tclone-desk=desk-of-ws-2", "__Host-tclone-desk=desk-of-ws-1; __Host-tclone-desk=desk-of-ws-2"])
@pytest.mark.parametrize("kind", ["document", "fetch", "post", "websocket", "asset", "state"])
async def test_a_desktop_opens_only_with_its_own_cookie(world: World, requests: list[web.Request], cookie: str, kind: str) -> None:
    extra = (f"Cookie: {cookie}",) if cookie else ()
    if kind == "websocket":
        client = await world.connect()
        await client.send(world.upgrade_bytes("ws-1", *extra, cookie=False))
        answer = await client.reply()
    elif kind == "post":
        answer = await world.ask("POST", "/api/upload", "ws-1", f"Origin: {world.origin()}", *extra, cookie=False, body=b"x")
    else:
        path = {"document": "/", "fetch": "/api/status", "asset": "/assets/x.js", "state": "/__tclone/state"}[kind]
        fetch = ("Sec-Fetch-Dest: iframe",) if kind == "document" else ()
        answer = await world.ask("GET", path, "ws-1", *extra, *fetch, cookie=False)
    assert answer.status == 401 and not answer.all("Location") and not requests
    if kind == "document":
        assert f"{world.origin('')}/w/ws-1".encode() in answer.body
    else:
        assert answer.json()["error"]["code"] == "login"
    assert f"frame-ancestors 'self' {world.origin('')}" in answer.get("Content-Security-Policy")


async def _enter(world: World, code: str, workspace: str = "ws-1", origin: str | None = None, **fields: str) -> tuple[int, str, str]:
    form = "&".join(f"{key}={value}" for key, value in {"code": code, **fields}.items()).encode()
    answer = await world.ask(
        "POST", "/__tclone/enter", workspace, f"Origin: {origin or world.origin('')}", "Content-Type: application/x-www-form-urlencoded", cookie=False, body=form
    )
    return answer.status, answer.get("Location"), answer.get("Set-Cookie")


async def test_a_code_lets_in_once(world: World) -> None:
    world.control.codes["code"] = ("alice", "ws-1")
    status, location, cookie = await _enter(world, "code")
    assert (status, location) == (303, "/")
    flags = {part.strip() for part in cookie.split(";")[1:]}
    assert cookie.startswith(f"{DESK_COOKIE}=desk-")
    assert {"Secure", "HttpOnly", "SameSite=None", "Partitioned", "Path=/"} <= flags and not any(f.lower().startswith("domain") for f in flags)
    assert (await _enter(world, "code"))[0] == 403


async def test_a_code_is_good_for_its_workspace_only(world: World) -> None:
    world.control.codes["code"] = ("alice", "ws-1")
    assert (await _enter(world, "code", "ws-2"))[::2] == (403, "")


@pytest.mark.parametrize("origin", ["https://evil.example", f"https://ws-2.{PORTAL_HOST}", "null"])
async def test_a_code_is_taken_from_the_portals_page_only(world: World, origin: str) -> None:
    world.control.codes["code"] = ("alice", "ws-1")
    assert (await _enter(world, "code", origin=origin))[0] == 403
    assert "code" in world.control.codes


@pytest.mark.parametrize(("path", "status"), [("/assets/x", 303), ("//evil.example", 400), ("https://evil.example", 400), ("/\\evil.example", 400), ("/%0d%0aX: y", 400), ("/%2e%2e/", 400)])
async def test_the_way_in_leads_nowhere_else(world: World, path: str, status: int) -> None:
    world.control.codes["code"] = ("alice", "ws-1")
    assert (await _enter(world, "code", path=path.replace("%", "%25")))[0] == status


@pytest.mark.parametrize("body", [b"", b"code=", b"code=a&code=b", b"x" * 5000, b"code=%ff\xff", b"&".join(b"a%d=1" % n for n in range(50))])
async def test_a_malformed_form_is_refused(world: World, body: bytes) -> None:
    answer = await world.ask(
        "POST", "/__tclone/enter", "ws-1", f"Origin: {world.origin('')}", "Content-Type: application/x-www-form-urlencoded", cookie=False, body=body
    )
    assert answer.status in (400, 403) and not answer.all("Set-Cookie")


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
async def test_the_way_in_takes_a_form_only(world: World, method: str) -> None:
    answer = await world.ask(method, "/__tclone/enter?code=code", "ws-1", cookie=False)
    assert answer.status == 404 and not answer.all("Set-Cookie")


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/api/tokens"), ("POST", "/api/%74okens"), ("POST", "/assets/../api/tokens"), ("POST", "/api/switch"), ("DELETE", "/api/sessions/1"), ("GET", "/api/metrics"), ("POST", "/computer-use")],
)
async def test_control_endpoints_of_the_desktop_are_out_of_reach(world: World, requests: list[web.Request], method: str, path: str) -> None:
    extra = (f"Origin: {world.origin()}", "Selkies-Authorization: Bearer master", "Authorization: Bearer master")
    assert (await world.ask(method, path, "ws-1", *extra, body=b"{}" if method == "POST" else b"")).status in (400, 404)
    assert not requests


async def test_no_answer_and_no_log_holds_the_token(world: World, requests: list[web.Request], caplog: pytest.LogCaptureFixture) -> None:
    for path in ("/", "/api/status", "/nothing", "/__tclone/state"):
        answer = await world.ask("GET", path)
        assert b"token-of" not in answer.body and "token-of" not in repr(answer.headers)
    assert "token-of" not in caplog.text and "desk-of" not in caplog.text


async def test_a_portal_websocket_needs_the_portals_origin_or_a_token(world: World) -> None:
    async def status(*extra: str) -> int:
        client: Client = await world.connect()
        await client.send(world.upgrade_bytes("", *extra, path="/ws"))
        return (await client.head()).status

    assert await status() == 101
    assert await status(f"Origin: {world.origin('ws-1')}") == 403
    assert await status("Origin:") == 403
    assert await status("Origin:", "Authorization: Bearer t") == 101


@pytest.mark.parametrize("workspace", ["", "ws-1"])
async def test_nothing_is_served_without_tls(world: World, requests: list[web.Request], workspace: str) -> None:
    """No page is ever shown where browsers withhold what the viewer needs (WebCodecs, the clipboard), and no cookie is sent in the clear."""
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(world.request("GET", "/", workspace))
    try:
        assert b"HTTP/" not in await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:
        pass
    writer.close()
    assert not requests
