"""API tokens: scopes, expiry, revocation, and that their secrets are nowhere."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time

import aiohttp
import pytest

from tests.portal.conftest import PATIENCE, Client, Portal
from tests.portal.fake_engine import FakeEngine


async def make(client: Client, *scopes: str, **more: object) -> dict:
    answer = await client.request("POST", "/api/v1/tokens", {"name": "ci", "scopes": list(scopes), **more})
    assert answer.status == 201, await answer.text()
    return await answer.json()


async def test_a_token_needs_neither_cookie_nor_key_nor_origin(portal: Portal, engine: FakeEngine) -> None:
    admin = await portal.login()
    made = await make(admin, "fork")
    assert made["token"].startswith("tct_") and len(made["token"]) >= 4 + 43 and made["id"].startswith("tok-")
    assert made["expires"] == pytest.approx(time.time() + 30 * 86400, abs=60)
    program = portal.program(made["token"])
    answer = await program.request("POST", "/api/v1/workspaces", {"image": "workspace"})
    assert answer.status == 201 and engine.calls[-1][0] == "launch"
    me = await (await program.request("GET", "/api/v1/me")).json()
    assert (me["user"], me["scopes"], me["token"]) == ("admin", ["fork", "read"], made["id"])


@pytest.mark.parametrize(
    "scope, method, path, body",
    [
        ("read", "POST", "/workspaces", {"image": "workspace"}),
        ("read", "DELETE", "/workspaces/ws-1", None),
        ("read", "POST", "/workspaces/ws-1/shares", {}),
        ("control", "POST", "/workspaces/ws-1/fork", {}),
        ("fork", "GET", "/users", None),
        ("fork", "POST", "/workspaces/ws-1/shares", {}),
        ("control", "POST", "/images/workspace/build", None),
        ("admin", "POST", "/workspaces/ws-1/ticket", None),
        ("admin", "POST", "/tokens", {"name": "more", "scopes": ["read"]}),
        ("admin", "POST", "/me/password", {"password": "x", "new_password": "y"}),
        ("admin", "DELETE", "/sessions", None),
    ],
)
async def test_a_token_does_what_its_scopes_allow_and_no_more(
    portal: Portal, engine: FakeEngine, scope: str, method: str, path: str, body: object
) -> None:
    engine.add()
    program = portal.program((await make(await portal.login(), scope))["token"])
    answer = await program.request(method, f"/api/v1{path}", body)
    assert (answer.status, (await answer.json())["error"]["code"]) == (403, "forbidden")


async def test_a_token_never_has_more_than_its_user(portal: Portal) -> None:
    admin = await portal.login()
    anna = await portal.user(admin, "anna", "admin")
    token = (await make(anna, "admin"))["token"]
    assert (await portal.program(token).request("GET", "/api/v1/users")).status == 200
    await admin.request("PATCH", "/api/v1/users/anna", {"role": "user"})
    assert (await portal.program(token).request("GET", "/api/v1/users")).status == 403
    refused = await anna.request("POST", "/api/v1/tokens", {"name": "more", "scopes": ["admin"]})
    assert refused.status == 403


@pytest.mark.alone
async def test_a_revoked_token_is_refused_and_its_socket_closed_within_a_second(portal: Portal) -> None:
    admin = await portal.login()
    made = await make(admin, "read")
    program = portal.program(made["token"])
    async with program.socket() as socket:
        await socket.send_json({"type": "hello"})
        assert (await socket.receive_json(timeout=PATIENCE))["type"] == "snapshot"
        assert (await admin.request("DELETE", f"/api/v1/tokens/{made['id']}")).status == 204
        begun = time.monotonic()
        async with asyncio.timeout(PATIENCE):
            while (message := await socket.receive()).type is aiohttp.WSMsgType.TEXT:
                if message.json()["type"] == "ended":
                    break
        assert time.monotonic() - begun < 1.0
    answer = await program.request("GET", "/api/v1/workspaces")
    assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")


async def test_an_expired_token_is_refused_and_its_socket_closed(portal: Portal) -> None:
    admin = await portal.login()
    program = portal.program((await make(admin, "read", days=3.0 / 86400))["token"])
    async with program.socket() as socket:
        await socket.send_json({"type": "hello"})
        async with asyncio.timeout(PATIENCE):
            while (await socket.receive_json())["type"] != "ended":
                pass
    assert (await program.request("GET", "/api/v1/workspaces")).status == 401
    assert await (await admin.request("GET", "/api/v1/tokens")).json() == []


async def test_never_is_a_legal_expiry_and_nonsense_is_not(portal: Portal) -> None:
    admin = await portal.login()
    assert (await make(admin, "read", days=None))["expires"] is None
    for body in (
        {"name": "x", "scopes": []},
        {"name": "", "scopes": ["read"]},
        {"name": "x" * 101, "scopes": ["read"]},
        {"name": "x", "scopes": ["root"]},
        {"name": "x", "scopes": ["read"], "days": 0.0},
        {"name": "x", "scopes": ["read"], "days": 1e9},
        {"name": "x", "scopes": ["read"], "days": float("nan")},
    ):
        assert (await admin.request("POST", "/api/v1/tokens", body)).status == 400, body


@pytest.mark.parametrize("value", ["Bearer nonsense", "Bearer tct_" + "A" * 43, "Bearer ", "Basic YWRtaW46eA==", "tct_x", "Bearer tct_" + "A" * 4000])
async def test_a_bad_authorization_header_is_refused_though_a_cookie_is_there(portal: Portal, value: str) -> None:
    client = await portal.login()
    answer = await client.request("GET", "/api/v1/workspaces", headers={"Authorization": value})
    assert answer.status == 401


async def test_the_list_shows_the_last_use_and_no_secret(portal: Portal) -> None:
    admin = await portal.login()
    made = await make(admin, "read")
    assert (await (await admin.request("GET", "/api/v1/tokens")).json())[0]["used"] is None
    await portal.program(made["token"]).request("GET", "/api/v1/me")
    listed = (await (await admin.request("GET", "/api/v1/tokens")).json())[0]
    assert listed["used"] == pytest.approx(time.time(), abs=60)
    assert set(listed) == {"id", "user", "name", "scopes", "created", "expires", "used"}
    # What was only in memory is on the disk soon, and survives that another process changes tokens.
    async with asyncio.timeout(PATIENCE):
        while not await portal.control.database.run(lambda db: db.execute("SELECT used FROM tokens WHERE used > 1").fetchone()):
            await asyncio.sleep(0.05)


async def test_others_tokens_are_not_there(portal: Portal) -> None:
    admin = await portal.login()
    anna, ben = await portal.user(admin, "anna"), await portal.user(admin, "ben")
    made = await make(anna, "control")
    assert await (await ben.request("GET", "/api/v1/tokens")).json() == []
    assert (await ben.request("DELETE", f"/api/v1/tokens/{made['id']}")).status == 404
    assert len(await (await admin.request("GET", "/api/v1/tokens?all=1")).json()) == 1
    other = await make(anna, "control")
    assert (await portal.program(other["token"]).request("DELETE", f"/api/v1/tokens/{made['id']}")).status == 403
    assert (await portal.program(made["token"]).request("DELETE", f"/api/v1/tokens/{made['id']}")).status == 204
    assert (await admin.request("DELETE", f"/api/v1/tokens/{other['id']}")).status == 204


async def test_an_overlong_header_is_not_quoted_in_the_log(portal: Portal, caplog: pytest.LogCaptureFixture) -> None:
    secret = (await make(await portal.login(), "read"))["token"]
    program = portal.program(secret)
    for name in ("Authorization", "Cookie"):
        answer = await program.request("GET", "/api/v1/me", headers={name: f"Bearer {secret} " + "x" * 9000})
        assert answer.status == 400
    assert secret not in caplog.text and "a malformed request was refused: LineTooLong" in caplog.text


async def test_no_token_is_stored_or_logged(portal: Portal, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = (await make(await portal.login(), "read"))["token"]
    await portal.program(secret).request("GET", "/api/v1/nowhere")
    await portal.program(secret + "x").request("GET", "/api/v1/workspaces")
    connection = sqlite3.connect(portal.places.database)
    dump = "\n".join(connection.iterdump())
    connection.close()
    assert secret not in dump and secret not in caplog.text and secret[4:] not in dump + caplog.text
    assert '"event": "token-create"' in caplog.text
