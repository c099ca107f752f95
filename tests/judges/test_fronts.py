"""The examples of docs/how-to/expose.md at work: real nginx and HAProxy with that very text before the real portal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from bench.proxies import free_port, program
from engine.config import REPO
from portal.hosts import PORTAL_HOST
from tests.stream.stack import PATIENCE, Stack, running

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]
_PAGE = REPO / "docs" / "how-to" / "expose.md"
# Not the proxy's own address, so that one is not taken for the other.
_VISITOR = "127.0.0.2"
_UPLOAD = 24 << 20


def _example(kind: str, changes: dict[str, str]) -> str:
    """The page's block of that kind with this machine's names in place of its own. Each of them has to be there."""
    (text,) = re.findall(rf"^```{kind}\n(.*?)^```", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for before, after in changes.items():
        assert before in text, f"{before!r} is not in the example any more"
        text = text.replace(before, after)
    return text


def _nginx(stack: Stack, port: int, directory: Path) -> list[str]:
    tls = stack.places.tls
    block = _example("nginx", {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl", "desks.example.org": PORTAL_HOST, "127.0.0.1:8443": f"127.0.0.1:{stack.port}",
        "/etc/nginx/desks.pem": str(tls / "leaf.pem"), "/etc/nginx/desks.key": str(tls / "leaf.key"), "/etc/nginx/tclone-ca.pem": str(tls / "ca.pem"),
    })  # fmt: skip
    places = " ".join(f"{name}_temp_path {directory}/{name};" for name in ("proxy", "client_body", "fastcgi", "uwsgi", "scgi"))
    head = f"daemon off; user root; worker_processes 1; pid {directory}/pid; error_log {directory}/errors; events {{}}"
    (directory / "nginx.conf").write_text(f"{head}\nhttp {{ access_log {directory}/access; {places}\n{block}\n}}\n")
    return [*program("nginx"), "-p", str(directory), "-c", str(directory / "nginx.conf"), "-e", str(directory / "start")]


def _haproxy(stack: Stack, port: int, directory: Path) -> list[str]:
    tls, pair = stack.places.tls, directory / "desks.pem"
    pair.write_text((tls / "leaf.pem").read_text() + (tls / "leaf.key").read_text())
    block = _example("haproxy", {
        "bind :443": f"bind 127.0.0.1:{port}", "desks.example.org": PORTAL_HOST, "127.0.0.1:8443": f"127.0.0.1:{stack.port}",
        "/etc/haproxy/desks.pem": str(pair), "/etc/haproxy/tclone-ca.pem": str(tls / "ca.pem"),
    })  # fmt: skip
    (directory / "haproxy.cfg").write_text(f"defaults\n    timeout connect 5s\n    timeout client 1h\n    timeout server 1h\n{block}")
    return [*program("haproxy"), "-db", "-f", str(directory / "haproxy.cfg")]


@contextlib.asynccontextmanager
async def _listening(argv: list[str], port: int, directory: Path) -> AsyncIterator[None]:
    with (directory / "said").open("wb") as said:
        process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                assert process.returncode is None, (directory / "said").read_text()
                with contextlib.suppress(OSError):
                    (await asyncio.open_connection("127.0.0.1", port))[1].close()
                    break
                await asyncio.sleep(0.05)
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _login(stack: Stack, http: aiohttp.ClientSession, origin: str) -> dict[str, str]:
    """What a browser sends from then on. It also claims to be somebody else, as a visitor may."""
    said = {"Host": origin.removeprefix("https://"), "Origin": origin, "X-Forwarded-For": "203.0.113.9"}
    async with http.post("/api/v1/login", json={"user": "admin", "password": stack.password}, headers=said) as answer:
        assert answer.status == 200, await answer.text()
        return {**said, "X-TClone-Key": (await answer.json())["key"], "Cookie": answer.headers["Set-Cookie"].partition(";")[0]}


async def _login_addresses(stack: Stack) -> list[str]:
    """Of the logins in the audit log, which is written a moment after the answer."""
    async with asyncio.timeout(PATIENCE):
        while True:
            lines = stack.places.audit.read_text().splitlines() if stack.places.audit.exists() else []
            found = [entry["address"] for entry in map(json.loads, lines) if entry["event"] == "login"]
            if found:
                return found
            await asyncio.sleep(0.05)


async def _pieces() -> AsyncIterator[bytes]:
    for _ in range(_UPLOAD >> 18):
        yield b"u" * (1 << 18)


@pytest.mark.parametrize("front", [_nginx, _haproxy], ids=["nginx", "haproxy"])
async def test_the_portal_works_behind_the_front_of_the_example(front, tmp_path: Path) -> None:
    await asyncio.to_thread(subprocess.run, [REPO / "scripts/setup", "rivals"], check=True, capture_output=True)
    async with running(workers=1, TCLONE_BEHIND_PROXY="127.0.0.1") as stack:
        port = free_port()
        origin, desktop = f"https://{PORTAL_HOST}:{port}", f"https://ws-1.{PORTAL_HOST}:{port}"
        connector = aiohttp.TCPConnector(ssl=stack.trust, local_addr=(_VISITOR, 0), force_close=True)
        async with (
            _listening(front(stack, port, tmp_path), port, tmp_path),
            aiohttp.ClientSession(f"https://127.0.0.1:{port}", connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as http,
        ):
            known = await _login(stack, http, origin)
            # Who came is who stood before the proxy, whatever the visitor claimed.
            assert await _login_addresses(stack) == [_VISITOR]
            # More than the megabyte that nginx takes when it is told nothing, and from a body whose length nobody knows.
            kind = {"Content-Type": "application/octet-stream"}
            async with http.put("/api/v1/workspaces/ws-1/file?path=/big", data=_pieces(), headers=known | kind) as answer:
                assert (answer.status, (await answer.json())["size"]) == (201, _UPLOAD)
            async with http.get("/api/v1/workspaces/ws-1/file?path=/big", headers=known) as answer:
                assert (answer.status, len(await answer.read())) == (200, _UPLOAD)
            async with http.post("/api/v1/workspaces/ws-1/ticket", json={}, headers=known) as answer:
                ticket = await answer.json()
            # The public port of the proxy, not the portal's own.
            assert ticket["action"] == f"{desktop}/__tclone/enter"
            headers = {"Host": desktop.removeprefix("https://"), "Origin": origin}
            async with http.post("/__tclone/enter", data={"code": ticket["code"]}, headers=headers, allow_redirects=False) as answer:
                assert answer.status == 303, await answer.text()
                cookie = answer.headers["Set-Cookie"].partition(";")[0]
            async with http.ws_connect("/api/websockets", headers={**headers, "Origin": desktop, "Cookie": cookie}) as stream:
                loop = asyncio.get_running_loop()
                pictures = [int.from_bytes((await stream.receive(timeout=PATIENCE)).data, "big") for _ in range(100)]
                assert pictures == list(range(pictures[0], pictures[0] + 100))
                # Passed on as they come, 20 ms apart: a buffering proxy would hold back more than a second of them.
                begun = loop.time()
                await stream.receive(timeout=PATIENCE)
                assert loop.time() - begun < 1.0
            events = {**known, "Origin": origin}
            async with http.ws_connect("/ws", headers=events) as feed:
                await feed.send_json({"type": "hello", "key": known["X-TClone-Key"], "since": None})
                assert (await feed.receive_json(timeout=PATIENCE))["type"] == "snapshot"
