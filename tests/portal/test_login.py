"""Who gets in: passwords, sessions, cookies, the session key, and what ends a session."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import stat
import subprocess
import sys
from http.cookies import SimpleCookie

import argon2
import pytest

from portal import accounts, administration
from portal.app import Options
from portal.attempts import LIMIT, WINDOW_SECONDS, Attempts
from portal.database import connect
from portal.node import Patience
from portal.setup import prepare
from tests.portal.conftest import PATIENCE, Portal


async def test_the_password_opens_and_the_key_comes_once(portal: Portal) -> None:
    client = portal.client()
    answer = await client.login(portal.password)
    assert answer.status == 200 and len(client.key) >= 43
    assert (await client.request("GET", "/api/v1/workspaces")).status == 200


async def test_the_cookie_is_host_bound_and_unreadable(portal: Portal) -> None:
    answer = await portal.client().login(portal.password)
    cookie = SimpleCookie(answer.headers["Set-Cookie"])["__Host-tclone"]
    assert cookie["secure"] and cookie["httponly"] and cookie["samesite"] == "Strict"
    assert cookie["path"] == "/" and not cookie["domain"]


@pytest.mark.parametrize("user, password", [("admin", "wrong"), ("admin", ""), ("root", "right"), ("admin", "x" * 5000)])
async def test_a_wrong_password_or_user_is_refused_alike(portal: Portal, user: str, password: str) -> None:
    client = portal.client()
    given = portal.password if password == "right" else password
    answer = await client.request("POST", "/api/v1/login", {"user": user, "password": given})
    assert answer.status == 401
    assert (await answer.json())["error"] == {"code": "denied", "message": "user or password is wrong"}
    assert "Set-Cookie" not in answer.headers


async def test_five_attempts_a_minute_for_address_and_user(portal: Portal) -> None:
    client = portal.client()
    for _ in range(LIMIT):
        assert (await client.login("wrong")).status == 401
    refused = await client.login(portal.password)
    assert refused.status == 429 and 1 <= int(refused.headers["Retry-After"]) <= 60
    client.address = "192.0.2.99"
    assert (await client.login(portal.password)).status == 200, "another address is not held up"


def test_attempts_are_forgotten_after_a_minute() -> None:
    now = 0.0
    attempts = Attempts(clock=lambda: now)
    assert [attempts.take("a", "u") for _ in range(LIMIT)] == [0.0] * LIMIT
    assert attempts.take("a", "u") == pytest.approx(WINDOW_SECONDS)
    now = WINDOW_SECONDS + 0.1
    assert attempts.take("a", "u") == 0.0


async def test_the_cookie_without_the_key_opens_nothing(portal: Portal) -> None:
    """A server in a workspace, reached by its published port, is handed the cookie: ports do not separate cookies."""
    client = await portal.login()
    client.key = ""
    for method, path in (("GET", "/api/v1/workspaces"), ("POST", "/api/v1/logout"), ("GET", "/api/v1/images")):
        answer = await client.request(method, path)
        assert answer.status == 401 and (await answer.json())["error"]["code"] == "login"
    page = await client.request("GET", "/")
    assert page.status == 200 and portal.config.socket.name not in await page.text()


async def test_the_key_of_another_session_does_not_fit(portal: Portal) -> None:
    one, other = await portal.login(), await portal.login()
    one.key = other.key
    assert (await one.request("GET", "/api/v1/workspaces")).status == 401


async def test_login_again_changes_the_session_and_ends_the_earlier(portal: Portal) -> None:
    client = await portal.login()
    old_cookie, old_key = client.cookies["__Host-tclone"], client.key
    await client.login(portal.password)
    assert client.cookies["__Host-tclone"] != old_cookie and client.key != old_key
    client.cookies["__Host-tclone"], client.key = old_cookie, old_key
    assert (await client.request("GET", "/api/v1/workspaces")).status == 401


async def test_a_cookie_that_we_did_not_make_is_not_adopted(portal: Portal) -> None:
    client = portal.client()
    client.cookies["__Host-tclone"] = "chosen-by-somebody-else"
    await client.login(portal.password)
    assert client.cookies["__Host-tclone"] != "chosen-by-somebody-else"


async def test_logout_ends_the_session_and_its_socket_at_once(portal: Portal) -> None:
    client = await portal.login()
    async with client.socket() as socket:
        await socket.send_json({"type": "hello", "key": client.key, "since": None})
        assert (await socket.receive_json(timeout=PATIENCE))["type"] == "snapshot"
        cookie = client.cookies["__Host-tclone"]
        assert (await client.request("POST", "/api/v1/logout")).status == 204
        async with asyncio.timeout(PATIENCE):
            while (await socket.receive_json())["type"] != "ended":
                pass
    client.cookies["__Host-tclone"] = cookie
    assert (await client.request("GET", "/api/v1/workspaces")).status == 401


async def test_a_new_password_ends_every_session(portal: Portal) -> None:
    client = await portal.login()
    done = await asyncio.to_thread(administration.run, portal.config, "user-passwd", {"user": "admin"})
    fresh = done["answer"]["password"]
    assert (await client.request("GET", "/api/v1/workspaces")).status == 401
    assert (await client.login(portal.password)).status == 401
    assert (await client.login(fresh)).status == 200


class TestLifetime:
    @pytest.fixture
    def options(self) -> Options:
        return Options(patience=Patience(1, 3), idle_seconds=0.7, absolute_seconds=30)

    async def test_an_idle_session_ends_and_its_page_hears_of_it(self, portal: Portal) -> None:
        client = await portal.login()
        async with client.socket() as socket:
            await socket.send_json({"type": "hello", "key": client.key})
            async with asyncio.timeout(PATIENCE):
                while (await socket.receive_json())["type"] != "ended":
                    pass
        assert (await client.request("GET", "/api/v1/workspaces")).status == 401


async def test_sessions_outlive_a_restart_of_control(portal: Portal) -> None:
    client = await portal.login()
    await portal.control.sessions.close()
    portal.control.sessions._by_cookie.clear()
    portal.control.sessions._by_id.clear()
    await portal.control.sessions.open()
    assert (await client.request("GET", "/api/v1/workspaces")).status == 200


async def test_no_secret_is_stored_or_logged(portal: Portal, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = await portal.login()
    secrets = [portal.password, client.key, client.cookies["__Host-tclone"]]
    await client.login("wrong-" + portal.password)
    connection = sqlite3.connect(portal.places.database)
    dump = "\n".join(connection.iterdump())
    connection.close()
    for secret in secrets:
        assert secret not in dump and secret not in caplog.text
    assert '"event": "login"' in caplog.text and '"event": "login-refused"' in caplog.text
    assert "$argon2id$" in dump


def test_prepare_makes_one_password_and_private_files(config) -> None:
    first, second = prepare(config), prepare(config)
    assert first.password and second.password is None and first.fingerprint == second.fingerprint
    assert stat.S_IMODE((config.data / "portal").stat().st_mode) == 0o700
    assert stat.S_IMODE((config.data / "portal" / "portal.db").stat().st_mode) == 0o600
    connection = connect(config.data / "portal" / "portal.db")
    stored = accounts.stored_hash(connection, "admin")
    connection.close()
    assert accounts.verify(stored, first.password) and not accounts.verify(stored, first.password + "x")
    assert not accounts.verify(None, first.password)


def test_hashing_takes_the_memory_and_passes_that_are_recommended() -> None:
    """In a process of its own: the tests here hash with less work."""
    code = "from portal import accounts; print(accounts.hashed('x')); accounts.ready(); print(accounts._nobodys())"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for stored in out.splitlines():
        parameters = argon2.extract_parameters(stored)
        assert (parameters.type, parameters.memory_cost, parameters.time_cost) == (argon2.Type.ID, 65536, 3)
