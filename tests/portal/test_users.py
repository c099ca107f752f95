"""Users: who may be made, what roles allow, and that whoever is disabled or removed is out at once."""

from __future__ import annotations

import asyncio
import socket

import pytest

from portal import accounts, administration
from portal.database import connect
from portal.principal import Role
from tests.portal.conftest import OWN_PASSWORD, PATIENCE, Client, Portal, program
from tests.portal.fake_engine import FakeEngine
from tests.portal.test_desktops import ask, ticket


async def code(client: Client, method: str, path: str, body: object = None) -> tuple[int, str]:
    answer = await client.request(method, path, body)
    return answer.status, (await answer.json())["error"]["code"]


async def listening(client: Client) -> asyncio.Task[None]:
    """A task that ends when the page's socket, which is open by now, was told that its session is over."""
    opened = asyncio.Event()

    async def ended() -> None:
        async with client.socket() as opened_socket, asyncio.timeout(PATIENCE):
            await opened_socket.send_json({"type": "hello", "key": client.key})
            while (await opened_socket.receive_json())["type"] != "ended":
                opened.set()

    task = asyncio.create_task(ended())
    await asyncio.wait_for(opened.wait(), PATIENCE)
    return task


async def test_a_one_time_password_is_good_for_choosing_one_and_nothing_else(portal: Portal) -> None:
    admin = await portal.login()
    made = await (await admin.request("POST", "/api/v1/users", {"user": "anna"})).json()
    anna = portal.client()
    refused = await anna.login(made["password"], "anna")
    assert (refused.status, (await refused.json())["error"]["code"]) == (403, "new_password") and "Set-Cookie" not in refused.headers
    for weak in ("short", "anna anna anna anna", "aaaaaaaaaaaaaaaa"):
        assert (await anna.login(made["password"], "anna", new_password=weak)).status == 400
    assert (await anna.login(made["password"], "anna", new_password=OWN_PASSWORD)).status == 200
    assert (await anna.login(made["password"], "anna", new_password=OWN_PASSWORD)).status == 401, "it has been used up"
    me = await (await anna.request("GET", "/api/v1/me")).json()
    assert (me["user"], me["role"], me["scopes"]) == ("anna", "user", ["control", "fork", "read"])


async def test_a_one_time_password_that_is_too_old_opens_nothing(portal: Portal) -> None:
    admin = await portal.login()
    made = await (await admin.request("POST", "/api/v1/users", {"user": "anna"})).json()
    await portal.control.database.run(lambda db: db.execute("UPDATE accounts SET one_time = 1 WHERE user = 'anna'"))
    assert (await portal.client().login(made["password"], "anna", new_password=OWN_PASSWORD)).status == 401


async def test_users_see_their_own_workspaces_and_admins_all(portal: Portal, engine: FakeEngine) -> None:
    admin = await portal.login()
    anna, ben = await portal.user(admin, "anna"), await portal.user(admin, "ben")
    mine = (await (await anna.request("POST", "/api/v1/workspaces", {"image": "workspace"})).json())["id"]
    listed = {client: [item["id"] for item in await (await client.request("GET", "/api/v1/workspaces")).json()] for client in (admin, anna, ben)}
    assert listed == {admin: [mine], anna: [mine], ben: []}
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/ticket"), ("GET", "/logs"), ("GET", "/shares"), ("POST", "/shares")):
        assert await code(ben, method, f"/api/v1/workspaces/{mine}{path}", {} if path == "/shares" and method == "POST" else None) == (404, "not_found"), path
    assert mine in engine.workspaces


@pytest.mark.parametrize(
    "method, path, body",
    [
        ("GET", "/users", None),
        ("POST", "/users", {"user": "eve", "role": "admin"}),
        ("PATCH", "/users/anna", {"role": "admin"}),
        ("POST", "/users/admin/password", None),
        ("DELETE", "/users/admin", None),
        ("GET", "/tokens?all=1", None),
        ("POST", "/images/workspace/build", None),
    ],
)
async def test_users_cannot_do_what_admins_do(portal: Portal, method: str, path: str, body: object) -> None:
    anna = await portal.user(await portal.login(), "anna")
    assert await code(anna, method, f"/api/v1{path}", body) == (403, "forbidden")


@pytest.mark.alone
async def test_a_disabled_user_is_out_within_a_second(portal: Portal, engine: FakeEngine) -> None:
    admin = await portal.login()
    anna = await portal.user(admin, "anna")
    engine.add()
    token = (await (await anna.request("POST", "/api/v1/tokens", {"name": "ci", "scopes": ["read"]})).json())["token"]
    program = portal.program(token)
    assert (await program.request("GET", "/api/v1/workspaces")).status == 200
    out = await listening(anna)
    begun = asyncio.get_running_loop().time()
    assert (await admin.request("PATCH", "/api/v1/users/anna", {"disabled": True})).status == 200
    assert (await anna.request("GET", "/api/v1/workspaces")).status == 401
    assert (await program.request("GET", "/api/v1/workspaces")).status == 401
    await out
    assert asyncio.get_running_loop().time() - begun < 1.0
    assert (await portal.client().login(OWN_PASSWORD, "anna")).status == 401
    assert (await admin.request("PATCH", "/api/v1/users/anna", {"disabled": False})).status == 200
    assert (await portal.client().login(OWN_PASSWORD, "anna")).status == 200
    assert (await program.request("GET", "/api/v1/workspaces")).status == 401, "what was taken stays taken"


async def test_a_removed_users_workspaces_are_the_admins_and_not_of_a_later_namesake(portal: Portal) -> None:
    admin = await portal.login()
    anna = await portal.user(admin, "anna")
    mine = (await (await anna.request("POST", "/api/v1/workspaces", {"image": "workspace"})).json())["id"]
    assert (await admin.request("DELETE", "/api/v1/users/anna")).status == 204
    assert (await anna.request("GET", "/api/v1/workspaces")).status == 401
    namesake = await portal.user(admin, "anna")
    assert await (await namesake.request("GET", "/api/v1/workspaces")).json() == []
    assert (await admin.request("GET", f"/api/v1/workspaces/{mine}")).status == 200


async def test_the_last_admin_stays(portal: Portal) -> None:
    admin = await portal.login()
    for method, path, body in (("DELETE", "", None), ("PATCH", "", {"role": "user"}), ("PATCH", "", {"disabled": True})):
        assert await code(admin, method, f"/api/v1/users/admin{path}", body) == (409, "conflict")
    await portal.user(admin, "anna", "admin")
    assert (await admin.request("PATCH", "/api/v1/users/admin", {"role": "user"})).status == 200
    assert await code(admin, "GET", "/api/v1/users") == (403, "forbidden"), "a role that was taken is gone with the next request"


async def test_names_and_roles_are_checked(portal: Portal) -> None:
    admin = await portal.login()
    for user in ("", "Anna", "a b", "-a", "a" * 65, "<script>", "a\n", "../x"):
        assert await code(admin, "POST", "/api/v1/users", {"user": user}) == (400, "bad_request"), user
    assert await code(admin, "POST", "/api/v1/users", {"user": "anna", "role": "root"}) == (400, "bad_request")
    assert await code(admin, "POST", "/api/v1/users", {"user": "admin"}) == (409, "conflict")
    for method, path in (("PATCH", ""), ("DELETE", ""), ("POST", "/password")):
        assert await code(admin, method, f"/api/v1/users/nobody{path}", {"disabled": True} if method == "PATCH" else None) == (404, "not_found")


async def test_a_new_password_needs_the_old_one_and_ends_the_other_sessions(portal: Portal) -> None:
    one, other = await portal.login(), await portal.login()
    change = {"password": "wrong", "new_password": OWN_PASSWORD}
    assert await code(one, "POST", "/api/v1/me/password", change) == (401, "denied")
    assert await code(one, "POST", "/api/v1/me/password", {"password": portal.password, "new_password": "short"}) == (400, "bad_request")
    out = await listening(other)
    assert (await one.request("POST", "/api/v1/me/password", {**change, "password": portal.password})).status == 204
    await out
    assert (await one.request("GET", "/api/v1/me")).status == 200
    assert (await other.request("GET", "/api/v1/me")).status == 401
    assert (await portal.client().login(OWN_PASSWORD)).status == 200


async def test_guessing_the_old_password_is_limited_like_a_login(portal: Portal) -> None:
    client = await portal.login()
    change = {"password": "wrong", "new_password": OWN_PASSWORD}
    got = [(await client.request("POST", "/api/v1/me/password", change)).status for _ in range(6)]
    assert got == [401] * 5 + [429]


async def test_sessions_are_listed_and_ended_one_by_one_or_all_others(portal: Portal) -> None:
    one, other, third = await portal.login(), await portal.login(), await portal.login()
    listed = await (await one.request("GET", "/api/v1/sessions")).json()
    assert len(listed) == 3 and [item["current"] for item in listed].count(True) == 1
    assert all(item["address"] == "192.0.2.7" and "aiohttp" in item["agent"] for item in listed)
    assert not any("hash" in name or "key" in name for item in listed for name in item)
    theirs = (await (await other.request("GET", "/api/v1/sessions")).json())
    target = next(item["id"] for item in theirs if item["current"])
    out = await listening(other)
    assert (await one.request("DELETE", f"/api/v1/sessions/{target}")).status == 204
    await out
    assert (await other.request("GET", "/api/v1/me")).status == 401
    assert (await one.request("DELETE", "/api/v1/sessions")).status == 204
    assert (await third.request("GET", "/api/v1/me")).status == 401 and (await one.request("GET", "/api/v1/me")).status == 200


async def test_others_sessions_are_not_there(portal: Portal) -> None:
    admin = await portal.login()
    anna = await portal.user(admin, "anna")
    target = (await (await admin.request("GET", "/api/v1/sessions")).json())[0]["id"]
    assert await code(anna, "DELETE", f"/api/v1/sessions/{target}") == (404, "not_found")
    assert (await admin.request("GET", "/api/v1/me")).status == 200


async def test_what_the_command_line_changes_is_felt(portal: Portal) -> None:
    """Another process writes the database; control notices by itself."""
    admin = await portal.login()
    anna = await portal.user(admin, "anna")

    def remove() -> None:
        connection = connect(portal.places.database)
        accounts.remove(connection, "anna")
        accounts.add(connection, "ben", Role.USER, accounts.hashed(OWN_PASSWORD), None)
        connection.close()

    await asyncio.to_thread(remove)
    async with asyncio.timeout(PATIENCE):
        while (await anna.request("GET", "/api/v1/me")).status == 200:
            await asyncio.sleep(0.05)
    assert (await portal.client().login(OWN_PASSWORD, "ben")).status == 200


async def test_what_an_admin_opened_closes_when_it_is_one_no_more(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    admin = await portal.login()
    anna = await portal.user(admin, "anna", "admin")
    agent, stream = await program(portal, anna, "read"), portal.private()
    desk = (await ask(stream, "/tickets/redeem", {"code": (await ticket(anna))["code"], "workspace": "ws-1"}))[1]["desk"]
    assert (await ask(stream, "/desks/check", {"desk": desk, "workspace": "ws-1"}))[0] == 200
    async with anna.socket() as page, agent._session.get("http://control/api/v1/workspaces/ws-1/events", headers=agent.headers()) as events, asyncio.timeout(PATIENCE):
        await page.send_json({"type": "hello", "key": anna.key})
        assert [item["id"] for item in (await page.receive_json())["workspaces"]] == ["ws-1"]
        assert await events.content.readline()
        assert (await admin.request("PATCH", "/api/v1/users/anna", {"role": "user"})).status == 200
        while (await page.receive_json())["type"] != "ended":
            pass
        await events.content.read()
    assert (await ask(stream, "/desks/check", {"desk": desk, "workspace": "ws-1"}))[0] == 403
    assert await code(agent, "GET", "/api/v1/workspaces/ws-1") == (404, "not_found")
    # The login itself goes on, with what a user may.
    assert (await (await anna.request("GET", "/api/v1/me")).json())["role"] == "user"
    async with anna.socket() as page:
        await page.send_json({"type": "hello", "key": anna.key})
        assert (await page.receive_json(timeout=PATIENCE))["workspaces"] == []


async def _by_command(portal: Portal, what: str, **wanted: object) -> dict:
    """What a `tclone user` or `tclone token` does, which has ended when this returns."""
    return (await asyncio.to_thread(administration.run, portal.config, what, wanted))["answer"]


async def test_what_the_command_line_changes_holds_as_soon_as_its_command_has_ended(portal: Portal) -> None:
    """Again and again, as the portal looks by itself twice a second, too."""
    for number in range(5):
        user = f"user{number}"
        one_time = (await _by_command(portal, "user-add", user=user, role="user"))["password"]
        browser = portal.client()
        assert (await browser.login(one_time, user, new_password=OWN_PASSWORD)).status == 200
        assert (await browser.request("GET", "/api/v1/workspaces")).status == 200
        made = await _by_command(portal, "token-create", user=user, name="at once", scopes=["read"], days=1)
        program = portal.program(made["token"])
        assert (await program.request("GET", "/api/v1/workspaces")).status == 200
        await _by_command(portal, "user-change", user=user, disabled=True)
        assert (await browser.request("GET", "/api/v1/workspaces")).status == 401
        assert (await program.request("GET", "/api/v1/workspaces")).status == 401
        await _by_command(portal, "user-change", user=user, disabled=False, role="admin")
        assert (await browser.login(OWN_PASSWORD, user)).status == 200
        assert (await browser.request("GET", "/api/v1/users")).status == 200
        made = await _by_command(portal, "token-create", user=user, name="revoked", scopes=["read"], days=1)
        await _by_command(portal, "token-revoke", token=made["id"])
        assert (await portal.program(made["token"]).request("GET", "/api/v1/workspaces")).status == 401


async def test_a_change_that_the_portal_cannot_be_told_of_is_made_and_found_by_itself(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A portal that is stuck, or a socket that nobody reads any more, holds no command up for long."""
    monkeypatch.setattr(administration, "_TELL_SECONDS", 0.2)
    portal.places.private_socket.unlink()
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(portal.places.private_socket))
        deaf.listen()
        made = await _by_command(portal, "token-create", user="admin", name="late", scopes=["read"], days=1)
    made_too = await _by_command(portal, "token-create", user="admin", name="nobody listens", scopes=["read"], days=1)
    for token in (made["token"], made_too["token"]):
        program = portal.program(token)
        async with asyncio.timeout(PATIENCE):
            while (await program.request("GET", "/api/v1/workspaces")).status == 401:
                await asyncio.sleep(0.05)
