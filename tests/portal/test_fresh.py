"""Whoever finds a browser open can look and work, but not change who gets in: that takes that its user has just shown who it is."""

from __future__ import annotations

import time

import pytest

from portal.sessions import FRESH_SECONDS, Session
from tests.portal.conftest import OWN_PASSWORD, Client, Portal, program

# Everything that decides about logins and rights, with what it does after its user was asked.
_ASKED: list[tuple[str, str, object, int]] = [
    ("POST", "/tokens", {"name": "x", "scopes": ["read"]}, 201),
    ("DELETE", "/sessions", None, 204),
    ("DELETE", "/sessions/none", None, 404),
    ("POST", "/me/factor", None, 201),
    ("PUT", "/me/factor", {"code": "1"}, 404),
    ("DELETE", "/me/factor", None, 404),
    ("POST", "/me/factor/recovery", None, 404),
    ("POST", "/users", {"user": "ben"}, 201),
    ("PATCH", "/users/anna", {"role": "admin"}, 200),
    ("POST", "/users/anna/password", None, 200),
    ("DELETE", "/users/anna/factor", None, 404),
    ("DELETE", "/users/anna", None, 204),
    ("PUT", "/settings", {"second_factor": False}, 200),
]


def session_of(portal: Portal, client: Client) -> Session:
    return next(session for session in portal.control.sessions._by_id.values() if session.key_fits(client.key))


def stale(portal: Portal, client: Client) -> None:
    """As if its user had shown who it is longer ago than it counts."""
    session_of(portal, client).shown = time.time() - FRESH_SECONDS - 1


async def refusal(client: Client, method: str, path: str, body: object = None) -> tuple[int, str]:
    answer = await client.request(method, f"/api/v1{path}", body)
    return answer.status, (await answer.json())["error"]["code"]


@pytest.mark.parametrize("method, path, body, status", _ASKED)
async def test_what_decides_about_logins_asks_again_who_it_is(portal: Portal, method: str, path: str, body: object, status: int) -> None:
    admin = await portal.login()
    await portal.user(admin, "anna")
    stale(portal, admin)
    assert await refusal(admin, method, path, body) == (403, "confirm")
    assert (await admin.request("GET", "/api/v1/users")).status == 200, "looking and working go on"
    assert await refusal(admin, "POST", "/me/confirm", {"password": "wrong"}) == (401, "denied")
    assert await refusal(admin, method, path, body) == (403, "confirm")
    assert (await admin.request("POST", "/api/v1/me/confirm", {"password": portal.password})).status == 204
    assert (await admin.request(method, f"/api/v1{path}", body)).status == status


async def test_nothing_else_asks(portal: Portal) -> None:
    """The table above is whole: a route that is declared so and has no test fails here."""
    declared = {(route.method, route.path) for route in portal.control.routes if route.fresh}
    tested = {(method, path.replace("/none", "/{session}").replace("/anna", "/{user}")) for method, path, _, _ in _ASKED}
    assert declared == tested


async def test_a_login_counts_for_ten_minutes_and_a_clock_that_goes_back_for_nothing(portal: Portal) -> None:
    client = await portal.login()
    session = session_of(portal, client)
    now = time.time()
    session.shown = now
    assert FRESH_SECONDS == 600 and session.is_fresh(now + 599) and not session.is_fresh(now + 600) and not session.is_fresh(now - 1)


async def test_to_confirm_is_limited_like_a_login_and_is_for_this_session_alone(portal: Portal) -> None:
    one, other = await portal.login(), await portal.login()
    stale(portal, one)
    stale(portal, other)
    assert (await one.request("POST", "/api/v1/me/confirm", {"password": portal.password})).status == 204
    assert await refusal(other, "DELETE", "/sessions") == (403, "confirm")
    got = [(await other.request("POST", "/api/v1/me/confirm", {"password": "wrong"})).status for _ in range(6)]
    assert got == [401] * 5 + [429]


async def test_another_users_password_confirms_nothing(portal: Portal) -> None:
    admin = await portal.login()
    await portal.user(admin, "anna")
    stale(portal, admin)
    assert await refusal(admin, "POST", "/me/confirm", {"password": OWN_PASSWORD}) == (401, "denied")


async def test_a_token_is_not_asked(portal: Portal) -> None:
    admin = await portal.login()
    agent = await program(portal, admin, "admin")
    assert (await agent.request("POST", "/api/v1/users", {"user": "anna"})).status == 201


async def test_what_was_shown_is_known_after_a_restart(portal: Portal) -> None:
    client = await portal.login()
    stale(portal, client)
    await client.request("POST", "/api/v1/me/confirm", {"password": portal.password})
    identity = session_of(portal, client).id
    row = await portal.control.database.run(lambda db: db.execute("SELECT shown FROM sessions WHERE id = ?", (identity,)).fetchone())
    assert row == (session_of(portal, client).shown,)
