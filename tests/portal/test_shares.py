"""Share links on control's side: who makes them, what they open, and that they end."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import time
from urllib.parse import urlsplit

import pytest

from portal.feed import Feed
from portal.viewers import Viewers
from tests.portal.conftest import ORIGIN, PATIENCE, Client, Portal
from tests.portal.fake_engine import FakeEngine


async def share(client: Client, **body: object) -> dict:
    answer = await client.request("POST", "/api/v1/workspaces/ws-1/shares", body)
    assert answer.status == 201, await answer.text()
    return await answer.json()


def secret_of(link: str) -> str:
    parts = urlsplit(link)
    assert (parts.path, parts.query) == ("/share", "")
    return parts.fragment


async def opened(portal: Portal, link: str) -> tuple[int, dict]:
    answer = await portal.client().request("POST", "/api/v1/share", {"secret": secret_of(link)})
    return answer.status, await answer.json()


async def redeem(portal: Portal, code: str, workspace: str = "ws-1") -> tuple[int, dict]:
    answer = await portal.private().request("POST", "/tickets/redeem", {"code": code, "workspace": workspace})
    return answer.status, await answer.json()


async def test_a_link_opens_its_desktop_for_watching_alone(portal: Portal, engine: FakeEngine) -> None:
    engine.add(name="desk")
    made = await share(await portal.login(), label="for the review")
    assert made["link"].startswith(f"{ORIGIN}/share#") and len(secret_of(made["link"])) >= 43
    assert made["expires"] == pytest.approx(time.time() + 86400, abs=60)
    status, answer = await opened(portal, made["link"])
    assert status == 200 and answer["action"] == "https://ws-1.tclone.localhost:8443/__tclone/enter" and answer["name"] == "desk"
    status, grant = await redeem(portal, answer["code"])
    assert status == 200 and (grant["role"], grant["session"], grant["expires"]) == ("viewer", made["id"], made["expires"])
    checked = await portal.private().request("POST", "/desks/check", {"desk": grant["desk"], "workspace": "ws-1"})
    assert (await checked.json())["role"] == "viewer"
    other = await portal.private().request("POST", "/desks/check", {"desk": grant["desk"], "workspace": "ws-2"})
    assert other.status == 403


async def test_the_audit_log_tells_whoever_came_by_a_link_from_its_maker(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    person = await portal.login()
    _, answer = await opened(portal, (await share(person))["link"])
    assert (await redeem(portal, answer["code"]))[0] == 200
    own = (await (await person.request("POST", "/api/v1/workspaces/ws-1/ticket")).json())["code"]
    assert (await redeem(portal, own))[0] == 200
    entries = await (await person.request("GET", "/api/v1/audit?limit=100&user=admin")).json()
    told = [(one["event"], one["user"], one.get("shared_by")) for one in entries if one["event"] in ("share", "share-opened", "desktop")]
    assert told == [("desktop", "admin", None), ("desktop", "(share link)", "admin"), ("share-opened", "(share link)", "admin"), ("share", "admin", None)]


async def test_a_login_opens_it_for_control(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    client = await portal.login()
    code = (await (await client.request("POST", "/api/v1/workspaces/ws-1/ticket")).json())["code"]
    assert (await redeem(portal, code))[1]["role"] == "controller"


async def test_the_link_opens_nothing_else(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    secret = secret_of((await share(await portal.login()))["link"])
    stranger = portal.client()
    for name, value in (("Authorization", f"Bearer {secret}"), ("X-TClone-Key", secret), ("Cookie", f"__Host-tclone={secret}")):
        assert (await stranger.request("GET", "/api/v1/workspaces", headers={name: value})).status == 401
    page = await stranger.request("GET", "/share")
    assert page.status == 200 and "ws-1" not in await page.text()


async def test_revoking_ends_desk_code_and_link_and_is_told_at_once(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    client = await portal.login()
    made = await share(client)
    desk = (await redeem(portal, (await opened(portal, made["link"]))[1]["code"]))[1]["desk"]
    unused = (await opened(portal, made["link"]))[1]["code"]
    async with portal.private().socket("/sessions/watch") as watch:
        assert made["id"] in (await watch.receive_json(timeout=PATIENCE))["sessions"]
        assert (await client.request("DELETE", f"/api/v1/workspaces/ws-1/shares/{made['id']}")).status == 204
        assert await watch.receive_json(timeout=1.0 if PATIENCE < 1 else PATIENCE) == {"type": "ended", "session": made["id"], "reason": "revoked"}
    assert (await opened(portal, made["link"]))[0] == 404
    assert (await redeem(portal, unused))[0] == 403
    assert (await portal.private().request("POST", "/desks/check", {"desk": desk, "workspace": "ws-1"})).status == 403


async def test_a_link_expires(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    client = await portal.login()
    made = await share(client, hours=2.0 / 3600)
    async with portal.private().socket("/sessions/watch") as watch:
        async with asyncio.timeout(PATIENCE):
            while (message := await watch.receive_json()).get("session") != made["id"]:
                pass
    assert message["reason"] == "expired"
    assert (await opened(portal, made["link"]))[0] == 404
    assert await (await client.request("GET", "/api/v1/workspaces/ws-1/shares")).json() == []


async def test_links_go_with_their_workspace_and_do_not_pass_to_branches(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    client = await portal.login()
    made = await share(client)
    answer = await client.request("POST", "/api/v1/workspaces/ws-1/fork", {"copies": 1})
    branch = (await answer.json())["branches"][0]["id"]
    assert await (await client.request("GET", f"/api/v1/workspaces/{branch}/shares")).json() == []
    await client.request("DELETE", "/api/v1/workspaces/ws-1")
    async with asyncio.timeout(PATIENCE):
        while portal.control.access.shares.get(made["id"]) is not None:
            await asyncio.sleep(0.02)


async def test_links_and_desks_outlive_a_restart_of_control(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    made = await share(await portal.login())
    desk = (await redeem(portal, (await opened(portal, made["link"]))[1]["code"]))[1]["desk"]
    shares = portal.control.access.shares
    for table in (shares._by_id, shares._by_hash, shares._desks):
        table.clear()
    await shares.open()
    assert (await portal.private().request("POST", "/desks/check", {"desk": desk, "workspace": "ws-1"})).status == 200
    assert (await opened(portal, made["link"]))[0] == 200


async def test_links_are_bounded_and_checked(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    engine.add(desktop=False)
    client = await portal.login()
    for body in ({"hours": 0}, {"hours": 1e6}, {"label": "x" * 101}, {"role": "controller"}):
        assert (await client.request("POST", "/api/v1/workspaces/ws-1/shares", body)).status == 400
    assert (await client.request("POST", "/api/v1/workspaces/ws-2/shares", {})).status == 409
    assert (await client.request("DELETE", "/api/v1/workspaces/ws-1/shares/shr-0")).status == 404
    assert (await portal.client().request("POST", "/api/v1/share", {"secret": "x" * 5000})).status == 404


async def test_no_link_is_stored_or_logged(portal: Portal, engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    engine.add()
    client = await portal.login()
    made = await share(client)
    _, answer = await opened(portal, made["link"])
    _, grant = await redeem(portal, answer["code"])
    connection = sqlite3.connect(portal.places.database)
    dump = "\n".join(connection.iterdump())
    connection.close()
    for secret in (secret_of(made["link"]), answer["code"], grant["desk"]):
        assert secret not in dump and secret not in caplog.text
    listed = await (await client.request("GET", "/api/v1/workspaces/ws-1/shares")).text()
    assert secret_of(made["link"]) not in listed


async def test_viewers_are_counted_over_all_workers_and_told_to_pages(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    client = await portal.login()
    made = await share(client)

    async def viewers() -> int:
        return (await (await client.request("GET", "/api/v1/workspaces/ws-1/shares")).json())[0]["viewers"]

    async def reach(count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while await viewers() != count:
                await asyncio.sleep(0.02)

    async with portal.private().socket("/sessions/watch") as one:
        await one.send_json({"type": "open", "open": [[made["id"], "ws-1", 2], ["other", "ws-1", 1]]})
        async with portal.private().socket("/sessions/watch") as two:
            await two.send_json({"type": "open", "open": [[made["id"], "ws-1", 1]]})
            await reach(3)
            assert portal.control.viewers.counts() == {"ws-1": 4}
        await reach(2)
    await reach(0)


async def test_an_owner_is_told_of_others_that_look_on(portal: Portal, engine: FakeEngine) -> None:
    """By a link, and an admin by the right that it has; the owner's own windows do not count."""
    admin = await portal.login()
    anna = await portal.user(admin, "anna")
    assert (await anna.request("POST", "/api/v1/workspaces", {"image": "webtop-xfce"})).status == 201
    link = await share(anna)
    sessions = {user: portal.control.sessions.of(user)[0].id for user in ("admin", "anna")}

    async with anna.socket("/ws") as page, portal.private().socket("/sessions/watch") as stream:
        await page.send_json({"type": "hello", "key": anna.key})

        async def told() -> int | None:
            async with asyncio.timeout(PATIENCE):
                while (event := json.loads((await page.receive()).data))["type"] != "watched":
                    pass
            assert event["workspace"] == "ws-1"
            return event["data"]

        await stream.send_json({"type": "open", "open": [[sessions["anna"], "ws-1", 2], [link["id"], "ws-1", 1]]})
        assert await told() == 1
        await stream.send_json({"type": "open", "open": [[sessions["anna"], "ws-1", 2], [link["id"], "ws-1", 1], [sessions["admin"], "ws-1", 1]]})
        assert await told() == 2
        assert portal.control.feed.snapshot()["facts"]["watched"] == {"ws-1": 2}
        await stream.send_json({"type": "open", "open": [[sessions["anna"], "ws-1", 3], ["ended", "ws-1", 1]]})
        assert await told() is None


def test_pages_hear_of_viewers_only_when_the_count_changes() -> None:
    told: list[tuple[str, object]] = []

    class Pages(Feed):
        def __init__(self) -> None:
            pass

        def publish(self, kind: str, **rest: object) -> None:
            told.append((str(rest["workspace"]), rest["data"]))

        def state(self, kind: str, identity: str, value: object) -> None:
            assert (kind, identity, value) == ("watched", "ws-1", None)

    viewers = Viewers(Pages(), lambda right, workspace: False)
    viewers.report("one", [("s1", "ws-1", 1)])
    viewers.report("one", [("s2", "ws-1", 1)])
    viewers.forget("one")
    assert told == [("ws-1", {"viewers": 1}), ("ws-1", {"viewers": 0})]
