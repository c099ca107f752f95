"""What only admins see and do: everybody's workspaces, quotas of single users, the audit log by what is looked for."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from engine.config import REPO
from portal import audit_log, refusals
from portal.audit_log import Wanted
from portal.errors import OverQuota
from portal.quotas import Limits
from portal.settings import Settings
from tests.portal.conftest import PATIENCE, Client, Portal, token_of
from tests.portal.fake_engine import FakeEngine

_PAGES = ("/admin", "/admin/workspaces", "/admin/users", "/admin/settings", "/admin/audit")
_API = (("GET", "/overview"), ("GET", "/audit"), ("GET", "/audit/export"), ("GET", "/settings"), ("PUT", "/settings"), ("GET", "/users"))


async def test_the_admins_pages_and_their_data_are_for_admins_only(portal: Portal) -> None:
    admin = await portal.login()
    anna = await portal.user(admin, "anna")
    asks_for_html: dict[str, str | None] = {"Accept": "text/html"}
    for path in _PAGES:
        assert (await admin.request("GET", path, headers=asks_for_html)).status == 200, path
        refused = await anna.request("GET", path, headers=asks_for_html)
        assert refused.status == 403 and "for admins" in await refused.text(), path
        stranger = await portal.client().request("GET", path, headers=asks_for_html)
        assert (stranger.status, stranger.headers["Location"]) == (303, "/login"), path
    assert (await admin.request("GET", "/admin/secrets")).status == 404
    token = (await (await admin.request("POST", "/api/v1/tokens", {"name": "ci", "scopes": ["fork", "control"]})).json())["token"]
    for method, path in _API:
        body = {} if method == "PUT" else None
        for client in (anna, portal.program(token)):
            assert (await client.request(method, f"/api/v1{path}", body)).status == 403, path
        assert (await portal.client().request(method, f"/api/v1{path}", body)).status == 401, path
    assert (await anna.request("PATCH", "/api/v1/users/anna", {"quota": {"workspaces": None, "memory": None}})).status == 403


async def test_an_admin_that_is_none_any_more_has_no_admins_pages(portal: Portal) -> None:
    admin = await portal.login()
    bea = await portal.user(admin, "bea", "admin")
    assert (await bea.request("GET", "/admin")).status == 200
    await admin.request("PATCH", "/api/v1/users/bea", {"role": "user"})
    assert (await bea.request("GET", "/admin")).status == 403


@pytest.fixture
async def workers(portal: Portal) -> AsyncIterator[None]:
    """Two stream workers, as far as their health sockets; one of them says what makes no sense, too."""
    runners = []
    for name, traffic in (("stream", {"ws-1": 1000, "ws-2": 5}), ("stream-1", {"ws-1": 24, "ws-2": "many"})):

        async def answer(_: web.Request, traffic: object = traffic) -> web.Response:
            return web.json_response({"traffic": traffic})

        app = web.Application()
        app.router.add_get("/healthz", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(portal.places.run / f"{name}.sock")).start()
        runners.append(runner)
    yield
    for runner in runners:
        await runner.cleanup()


@pytest.mark.usefixtures("workers")
async def test_everybodys_workspaces_with_owner_viewers_and_traffic(portal: Portal, engine: FakeEngine) -> None:
    admin = await portal.login()
    anna = await portal.user(admin, "anna")
    assert (await anna.request("POST", "/api/v1/workspaces", {"image": "workspace"})).status == 201
    engine.add()
    portal.control.viewers.report("worker", [("session", "ws-1", 2), ("share", "ws-1", 1)])
    async with asyncio.timeout(PATIENCE):
        while portal.control.feed.workspace("ws-2") is None:
            await asyncio.sleep(0.01)
    assert await (await admin.request("GET", "/api/v1/overview")).json() == {
        "ws-1": {"owner": "anna", "viewers": 3, "traffic": 1024},
        "ws-2": {"owner": None, "viewers": 0, "traffic": 5},
    }


async def _launch(client: Client) -> tuple[int, dict[str, object]]:
    answer = await client.request("POST", "/api/v1/workspaces", {"image": "workspace", "memory": 1 << 30})
    return answer.status, (await answer.json()).get("error", {})


async def test_a_user_may_have_a_quota_of_its_own(portal: Portal, engine: FakeEngine) -> None:
    admin = await portal.login()
    anna, ben = await portal.user(admin, "anna"), await portal.user(admin, "ben")
    settings = await (await admin.request("GET", "/api/v1/settings")).json()
    await admin.request("PUT", "/api/v1/settings", {**settings, "user_workspaces": 0})
    changed = await admin.request("PATCH", "/api/v1/users/anna", {"quota": {"workspaces": 1, "memory": None}})
    assert (await changed.json())["quota"] == {"workspaces": 1, "memory": None, "disk": None, "cpus": None}
    assert (await _launch(anna))[0] == 201
    status, error = await _launch(anna)
    assert (status, error["quota"], error["limit"], error["use"]) == (429, "workspaces", 1, 1)
    assert (await _launch(ben))[0] == 429, "ben has what every user has"
    mine = await (await anna.request("GET", "/api/v1/quota")).json()
    assert mine == {"user": {"limits": {"workspaces": 1, "memory": None, "disk": None, "cpus": None}, "use": {"workspaces": 1, "memory": 4 << 30, "disk": 10 << 30, "cpus": 2}}}
    listed = {user["user"]: user for user in await (await admin.request("GET", "/api/v1/users")).json()}
    assert (listed["anna"]["limits"]["workspaces"], listed["ben"]["limits"]["workspaces"], listed["admin"]["limits"]["workspaces"]) == (1, 0, None)
    assert listed["anna"]["use"]["workspaces"] == 1
    # Nothing but the quota was changed, and null goes back to what every user has.
    assert (listed["anna"]["role"], listed["anna"]["disabled"]) == ("user", False)
    await admin.request("PATCH", "/api/v1/users/anna", {"quota": {"workspaces": None, "memory": None}})
    assert (await _launch(anna))[1]["limit"] == 0
    for wrong in ({"workspaces": -1, "memory": None}, {"workspaces": 1}, {"workspaces": 1.5, "memory": None}, "all"):
        assert (await admin.request("PATCH", "/api/v1/users/anna", {"quota": wrong})).status == 400, wrong
    assert (await admin.request("PATCH", "/api/v1/users/nobody", {"quota": {"workspaces": 1, "memory": None}})).status == 404


async def test_a_quota_for_disk_adds_up_the_limits_of_workspaces(portal: Portal, engine: FakeEngine) -> None:
    admin = await portal.login()
    anna = await portal.user(admin, "anna")

    async def launch(client: Client, **more: int) -> tuple[int, dict[str, object]]:
        answer = await client.request("POST", "/api/v1/workspaces", {"image": "workspace", **more})
        return answer.status, (await answer.json()).get("error", {})

    # Without a quota for disk no launch has a limit that nobody asked for.
    assert (await launch(anna))[0] == 201 and engine.workspaces["ws-1"]["disk_limit"] is None
    settings = await (await admin.request("GET", "/api/v1/settings")).json()
    assert (await admin.request("PUT", "/api/v1/settings", {**settings, "user_disk": 40 << 30})).status == 200
    assert (await launch(anna))[0] == 201 and engine.workspaces["ws-2"]["disk_limit"] == 10 << 30
    assert (await launch(anna, disk=15 << 30))[0] == 201 and engine.workspaces["ws-3"]["disk_limit"] == 15 << 30
    status, error = await launch(anna)
    assert (status, error["quota"], error["limit"], error["use"], error["wanted"]) == (429, "disk", 40 << 30, 35 << 30, 10 << 30)
    assert error["message"] == "you have 35 GiB of 40 GiB of disk, so 10 GiB more cannot be had; discard some first"
    # The one without a limit counts for 10 GiB, and so would its branch. An admin has no limit of its own.
    assert (await (await anna.request("GET", "/api/v1/quota")).json())["user"]["use"]["disk"] == 35 << 30
    refused = await anna.request("POST", "/api/v1/workspaces/ws-3/fork", {"copies": 1})
    assert refused.status == 429 and (await refused.json())["error"]["wanted"] == 15 << 30
    assert (await anna.request("POST", "/api/v1/workspaces/ws-1/fork", {"copies": 1})).status == 429
    assert (await launch(admin))[0] == 201 and engine.workspaces["ws-4"]["disk_limit"] is None
    changed = await admin.request("PATCH", "/api/v1/users/anna", {"quota": {"workspaces": None, "memory": None, "disk": 50 << 30}})
    assert (await changed.json())["limits"]["disk"] == 50 << 30
    assert (await anna.request("POST", "/api/v1/workspaces/ws-3/fork", {"copies": 1})).status == 201
    # What does not say anything of disk does not change it.
    changed = await admin.request("PATCH", "/api/v1/users/anna", {"quota": {"workspaces": 9, "memory": None}})
    assert (await changed.json())["quota"] == {"workspaces": 9, "memory": None, "disk": 50 << 30, "cpus": None}
    # A quota of all together holds for admins, too.
    assert (await admin.request("PUT", "/api/v1/settings", {**settings, "all_disk": 65 << 30})).status == 200
    assert (await launch(admin))[0] == 429
    assert (await launch(admin, disk=5 << 30))[0] == 201
    ben = await portal.user(admin, "ben")
    assert (await admin.request("PUT", "/api/v1/settings", {**settings, "user_disk": 5 << 30})).status == 200
    assert "; ask for less, or an admin for a higher quota" in str((await launch(ben))[1]["message"])
    assert (await launch(ben, disk=5 << 30))[0] == 201


async def test_a_quota_for_processors_adds_up_the_limits_of_workspaces(portal: Portal, engine: FakeEngine) -> None:
    admin = await portal.login()
    anna = await portal.user(admin, "anna")

    async def launch(client: Client, **more: object) -> tuple[int, dict[str, object]]:
        answer = await client.request("POST", "/api/v1/workspaces", {"image": "workspace", **more})
        return answer.status, (await answer.json()).get("error", {})

    assert (await launch(anna))[0] == 201 and engine.workspaces["ws-1"]["cpu_limit"] is None
    settings = await (await admin.request("GET", "/api/v1/settings")).json()
    assert (await admin.request("PUT", "/api/v1/settings", {**settings, "user_cpus": 5.5})).status == 200
    assert (await launch(anna))[0] == 201 and engine.workspaces["ws-2"]["cpu_limit"] == 2
    assert (await launch(anna, cpus=0.7))[0] == 201 and engine.workspaces["ws-3"]["cpu_limit"] == 0.7
    status, error = await launch(anna)
    assert (status, error["quota"], error["limit"], error["use"], error["wanted"]) == (429, "cpus", 5.5, 4.7, 2)
    assert error["message"] == "you have 4.7 of 5.5 processors, so 2 more cannot be had; discard some first"
    assert (await anna.request("POST", "/api/v1/workspaces/ws-3/fork", {"copies": 2})).status == 429
    assert (await anna.request("POST", "/api/v1/workspaces/ws-3/fork", {"copies": 1})).status == 201
    changed = await admin.request("PATCH", "/api/v1/users/anna", {"quota": {"workspaces": None, "memory": None, "cpus": 7}})
    assert (await changed.json())["limits"]["cpus"] == 7
    assert (await launch(anna, cpus=1.5))[0] == 201
    told = (await (await anna.request("GET", "/api/v1/quota")).json())["user"]
    assert (told["limits"]["cpus"], told["use"]["cpus"]) == (7, 6.9)
    for wrong in (0, 0.05, -1, "1", 1e9, True):
        assert (await launch(anna, cpus=wrong))[0] == 400, wrong
    # All together, admins too.
    assert (await admin.request("PUT", "/api/v1/settings", {**settings, "all_cpus": 8})).status == 200
    assert (await launch(admin))[0] == 429 and (await launch(admin, cpus=1))[0] == 201


async def test_a_limit_below_nothing_makes_no_room_for_others(portal: Portal, engine: FakeEngine) -> None:
    """While the engine has not yet refused it."""
    quotas = portal.control.quotas
    portal.control.settings.now = Settings(user_workspaces=2, user_memory=1 << 30, user_disk=1 << 30)
    with quotas.reserve("anna", 1, Limits(-1 << 40, -1 << 40, -1.0), unlimited=False):
        for memory, disk, quota in (((1 << 30) + 1, 1 << 30, "memory"), (1 << 30, (1 << 30) + 1, "disk")):
            with pytest.raises(OverQuota) as refused:
                quotas.reserve("anna", 1, Limits(memory, disk, 1.0), unlimited=False)
            assert (refused.value.more["quota"], refused.value.more["use"]) == (quota, 0)
        with pytest.raises(OverQuota) as refused:
            quotas.reserve("anna", 2, Limits(1, 1, 1.0), unlimited=False)
        assert (refused.value.more["quota"], refused.value.more["use"]) == ("workspaces", 1)


async def test_a_workspace_counts_once_while_the_request_for_it_is_under_way(portal: Portal, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown as soon as it has an owner, and pages ask what is used when they see it; on record it is a little later."""
    admin = await portal.login()
    anna = await portal.user(admin, "anna")
    goes_on = asyncio.Event()
    claim = portal.control.owners.claim

    async def slowly(workspace: str, user: str) -> None:
        await claim(workspace, user)
        await goes_on.wait()

    monkeypatch.setattr(portal.control.owners, "claim", slowly)
    request = asyncio.create_task(_launch(anna))
    try:
        async with asyncio.timeout(PATIENCE):
            while not await (await anna.request("GET", "/api/v1/workspaces")).json():
                await asyncio.sleep(0.01)
        told = await (await admin.request("GET", "/api/v1/quota")).json()
        assert not request.done() and told["all"]["use"]["workspaces"] == 1
        assert (await (await anna.request("GET", "/api/v1/quota")).json())["user"]["use"]["workspaces"] == 1
    finally:
        goes_on.set()
    assert (await request)[0] == 201


async def test_what_was_done_can_be_read_at_once(portal: Portal, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the disk is."""
    admin = await portal.login()
    write = os.write

    def slowly(fd: int, data: bytes) -> int:
        if threading.current_thread().name == "audit":
            time.sleep(0.1)
        return write(fd, data)

    monkeypatch.setattr("portal.audit.os.write", slowly)
    await portal.user(admin, "anna")
    entries = await (await admin.request("GET", "/api/v1/audit?event=user-add")).json()
    exported = await (await admin.request("GET", "/api/v1/audit/export?event=login&user=anna")).text()
    assert len(entries) == 1 and len(exported.splitlines()) == 1


async def test_the_audit_log_is_filtered_and_exported(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    admin = await portal.login()
    anna = await portal.user(admin, "anna")
    await admin.request("POST", "/api/v1/workspaces/ws-1/fork", {"copies": 1})
    await anna.request("POST", "/api/v1/workspaces", {"image": "workspace"})

    async def found(query: str) -> list[tuple[str, str | None]]:
        answer = await admin.request("GET", f"/api/v1/audit?{query}")
        assert answer.status == 200, await answer.text()
        return [(entry["event"], entry.get("user")) for entry in await answer.json()]

    assert await found("event=launch") == [("launch", "anna")]
    # A fork is part of the history of its branches, too; making a user part of the user's.
    assert await found("workspace=ws-2") == await found("workspace=ws-1") == [("fork", "admin")]
    assert await found("user=anna") == [("launch", "anna"), ("login", "anna"), ("password", "anna"), ("user-add", "admin")]
    assert await found("user=anna&event=login") == [("login", "anna")]
    assert await found("user=anna&limit=1") == [("launch", "anna")] and await found("user=nobody") == []
    for wrong in ("user=", "event=a%20b", "workspace=%C3%BC", "user=" + "x" * 101):
        assert (await admin.request("GET", f"/api/v1/audit?{wrong}")).status == 400, wrong
    saved = await admin.request("GET", "/api/v1/audit/export?user=anna")
    assert saved.headers["Content-Disposition"] == 'attachment; filename="audit.jsonl"' and saved.content_type == "application/x-ndjson"
    lines = [json.loads(line) for line in (await saved.text()).splitlines()]
    assert [line["event"] for line in lines] == ["launch", "login", "password", "user-add"] and "position" not in lines[0]
    async with asyncio.timeout(PATIENCE):
        while await found("event=audit-export") != [("audit-export", "admin")]:
            await asyncio.sleep(0.02)


async def test_calls_without_the_right_are_on_record_and_fill_no_disk(portal: Portal, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(portal.control._router._refusals._rates, "_clock", lambda: now)
    engine.add()
    admin = await portal.login()
    anna = await portal.user(admin, "anna")
    looks = portal.program(await token_of(anna, "read"))

    async def refused() -> list[dict[str, Any]]:
        answer = await admin.request("GET", "/api/v1/audit?event=refused&limit=1000")
        told = [{name: entry.get(name) for name in ("user", "workspace", "asked", "outcome", "token", "left_out")} for entry in await answer.json()]
        return told[::-1]

    assert (await anna.request("GET", "/api/v1/users")).status == 403
    assert (await admin.request("POST", "/api/v1/workspaces", {"image": "workspace"})).status == 201
    # Another's workspace is no more than one that is not there to whoever asks; the log knows. One that nobody has is a slip.
    assert (await anna.request("GET", "/api/v1/workspaces/ws-2")).status == (await anna.request("GET", "/api/v1/workspaces/ws-99")).status == 404
    assert (await looks.request("POST", "/api/v1/workspaces", {"image": "workspace"})).status == 403
    assert (await looks.request("POST", "/api/v1/tokens", {"name": "x", "scopes": ["read"]})).status == 403
    token = (await (await anna.request("GET", "/api/v1/tokens")).json())[0]["id"]
    mine = {"user": "anna", "workspace": "", "outcome": "forbidden", "token": None, "left_out": None}
    expected = [
        mine | {"asked": "/api/v1/users"}, mine | {"asked": "/api/v1/workspaces/{id}", "workspace": "ws-2", "outcome": "not_found"},
        mine | {"asked": "/api/v1/workspaces", "token": token}, mine | {"asked": "/api/v1/tokens", "token": token},
    ]  # fmt: skip
    assert await refused() == expected
    # Who goes on without end is told of once in a while.
    for _ in range(60):
        assert (await looks.request("POST", "/api/v1/workspaces/ws-1/fork", {"copies": 1})).status == 403
    assert len(await refused()) == 2 + refusals._BURST
    now += 60
    assert (await looks.request("GET", "/api/v1/users")).status == 403
    assert (await refused())[-1] == mine | {"asked": "/api/v1/users", "token": token, "left_out": 62 - refusals._BURST}


def test_the_page_has_words_for_every_event() -> None:
    code = "".join(path.read_text() for path in (REPO / "portal").rglob("*.py"))
    recorded = set(re.findall(r'audit\.(?:record|outcome)\(\s*"([a-z-]+)"', code))
    text = (REPO / "static" / "js" / "strings_admin.js").read_text()
    words = re.findall(r'^    "?([a-z-]+)"?: "(.+)",$', text[text.index("  events: {") :].partition("  },")[0], re.MULTILINE)
    assert len(recorded) > 40 and recorded == {event for event, _ in words}
    assert len({said for _, said in words}) == len(words)


def test_a_log_of_many_blocks_is_read_backwards_without_loss(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    # Lines of all lengths: block borders fall into them, and before and behind their ends.
    lines = [json.dumps({"event": "e", "number": number, "user": "ab"[number % 2], "more": "x" * (number * 37 % 901)}) for number in range(900)]
    path.write_text("\n".join(lines) + "\n")
    assert path.stat().st_size > 5 * 64 * 1024
    numbers = [entry["number"] for entry in audit_log.entries(path)]
    assert numbers == list(range(899, -1, -1))
    seen, before = [], None
    while page := audit_log.newest(path, 70, before, Wanted(user="a")):
        seen += [entry["number"] for entry in page]
        before = page[-1]["position"]
    assert seen == list(range(898, -1, -2))
