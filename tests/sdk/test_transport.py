"""What a client does when the portal is away, slow or overwhelmed: repetitions that cannot do a thing twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

import tclone
from tclone import settings
from tclone.settings import Settings
from tclone.transport import KEY_HEADER, Transport


class Server:
    """Answers by script: each entry a status, or None for a connection that breaks off when the request has been heard."""

    def __init__(self) -> None:
        self.script: list[int | None] = []
        self.heard: list[tuple[str, str | None]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        self.heard.append((request.method, request.headers.get(KEY_HEADER)))
        status = self.script.pop(0) if self.script else 200
        if status is None:
            assert request.transport is not None
            request.transport.abort()
            await asyncio.sleep(0)
            return web.Response()
        headers = {"Retry-After": "1"} if status == 429 else {}
        return web.json_response({"error": {"code": "limit" if status == 429 else "unavailable", "message": "no"}} if status >= 400 else {"ok": 1}, status=status, headers=headers)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


@pytest.fixture
async def transport(server: Server) -> AsyncIterator[Transport]:
    made = Transport(Settings(server.url, "tct_x", None), patience=5)
    yield made
    await made.close()


@pytest.mark.parametrize(("method", "once"), [("GET", False), ("PUT", False), ("DELETE", False), ("POST", True)])
async def test_what_may_be_repeated_is_with_one_key(server: Server, transport: Transport, method: str, once: bool) -> None:
    server.script = [None, 503, 504]
    assert await transport.json(method, "/x", {} if method == "POST" else None, once=once) == {"ok": 1}
    assert len(server.heard) == 4 and len({key for _, key in server.heard}) == 1
    assert (server.heard[0][1] is not None) is once


@pytest.mark.parametrize("failure", [None, 503])
async def test_what_may_not_be_repeated_is_sent_once(server: Server, transport: Transport, failure: int | None) -> None:
    server.script = [failure]
    with pytest.raises(tclone.Unavailable):
        await transport.json("POST", "/x", {})
    assert len(server.heard) == 1


async def test_too_fast_waits_as_long_as_it_is_told(server: Server, transport: Transport) -> None:
    server.script = [429]
    began = asyncio.get_running_loop().time()
    assert await transport.json("POST", "/x", {}) == {"ok": 1}
    assert asyncio.get_running_loop().time() - began >= 1.0


async def test_patience_ends(server: Server) -> None:
    server.script = [429] * 20
    transport = Transport(Settings(server.url, "tct_x", None), patience=1.5)
    with pytest.raises(tclone.LimitReached) as refused:
        await transport.json("GET", "/x")
    assert refused.value.retry_after == 1.0 and len(server.heard) == 2
    await transport.close()


async def test_a_key_of_the_program_goes_with_each_try(server: Server) -> None:
    transport = Transport(Settings(server.url, "tct_x", None))
    server.script = [503, None]
    assert await transport.json("POST", "/x", {}, key="step-7") == {"ok": 1}
    assert server.heard == [("POST", "step-7")] * 3
    await transport.close()


async def test_a_server_that_is_not_there(server: Server) -> None:
    away = Transport(Settings("http://127.0.0.1:9", "tct_x", None), patience=0.2)
    with pytest.raises(tclone.Unavailable, match="is TClone up"):
        await away.json("POST", "/x", {})
    with pytest.raises(tclone.Unavailable, match="is TClone up"):
        async with away.socket("/ws", {}):
            pass
    await away.close()


def test_where_settings_come_from(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TCLONE_URL", "TCLONE_TOKEN", "TCLONE_TOKEN_FILE", "TCLONE_CA", "TCLONE_PORTAL_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(tclone.LoginNeeded, match="TCLONE_TOKEN"):
        settings.found()
    (tmp_path / "tclone").mkdir()
    (tmp_path / "tclone" / "token").write_text("tct_of-home\n")
    (tmp_path / "tclone" / "ca.pem").write_text("pem")
    found = settings.found()
    assert (found.url, found.token, found.ca) == (settings.DEFAULT_URL, "tct_of-home", tmp_path / "tclone" / "ca.pem")
    assert "tct_of-home" not in repr(found)
    monkeypatch.setenv("TCLONE_PORTAL_PORT", "9443")
    assert settings.found().url == "https://tclone.localhost:9443"
    for wrong in ("x", "0", "65536", "-1"):
        monkeypatch.setenv("TCLONE_PORTAL_PORT", wrong)
        with pytest.raises(ValueError, match="TCLONE_PORTAL_PORT is not a port"):
            settings.found()
    monkeypatch.delenv("TCLONE_PORTAL_PORT")
    (tmp_path / "other").write_text("tct_of-file")
    monkeypatch.setenv("TCLONE_TOKEN_FILE", str(tmp_path / "other"))
    assert settings.found().token == "tct_of-file"
    monkeypatch.setenv("TCLONE_TOKEN", "tct_of-environment")
    monkeypatch.setenv("TCLONE_URL", "https://desks.example.org/")
    assert (settings.found().token, settings.found().url) == ("tct_of-environment", "https://desks.example.org")
    assert settings.found("http://localhost:1", "tct_given").token == "tct_given"
    for wrong in ("http://desks.example.org", "ftp://localhost", "https://user@localhost", "https://localhost/path", "localhost:8443"):
        with pytest.raises(ValueError):
            settings.found(wrong)
    with pytest.raises(tclone.LoginNeeded):
        settings.found(token="two words")
