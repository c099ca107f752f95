"""The API behind the panels: who may use it, what goes through it, and what does not."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from portal.api.files import attachment
from portal.principal import Principal, Role, Scope
from tests.portal.conftest import PATIENCE, Client, Portal, answers, program
from tests.portal.fake_engine import FakeEngine
from tests.portal.fake_inside import CHANGES, MADE

ONE = "/api/v1/workspaces/ws-1"
UNSAFE = [("POST", "/ports/4000"), ("DELETE", "/ports/3000"), ("POST", "/directories?path=/x"), ("DELETE", "/files?path=/x"), ("PUT", "/file?path=/x")]
SAFE = [("GET", "/listeners"), ("GET", "/stats"), ("GET", "/files?path=/"), ("GET", "/file?path=/x"), ("GET", "/diff"), ("GET", "/diff/file?path=/x")]


@pytest.fixture
async def client(portal: Portal, engine: FakeEngine) -> Client:
    engine.add()
    async with asyncio.timeout(PATIENCE):
        while portal.control.feed.workspace("ws-1") is None:
            await asyncio.sleep(0.01)
    return await portal.login()


async def send(client: Client, path: str, data: bytes, **changes: str | None) -> aiohttp.ClientResponse:
    headers: dict[str, str | None] = {"Content-Type": "application/octet-stream", **changes}
    return await client.request("PUT", f"{ONE}/file?path={path}", headers=headers, data=io.BytesIO(data))


async def content(answer: aiohttp.ClientResponse) -> bytes:
    """The body, which the client has read."""
    return (await answer.text(encoding="latin-1")).encode("latin-1")


@pytest.mark.parametrize(("method", "path"), [*UNSAFE, *SAFE, ("POST", "/download"), ("GET", "/terminal")])
async def test_nothing_without_the_session_key(client: Client, engine: FakeEngine, method: str, path: str) -> None:
    answer = await client.request(method, ONE + path, headers={"X-TClone-Key": None})
    assert answer.status in (400, 401), await answer.text()
    assert (await client.request(method, ONE + path, headers={"Cookie": None, "X-TClone-Key": "x" * 43})).status in (400, 401)
    assert engine.inside.shells == [] and engine.workspaces["ws-1"]["ports"].keys() == {"3000"}


@pytest.mark.parametrize(("method", "path"), [*UNSAFE, ("POST", "/download")])
async def test_nothing_from_another_site(client: Client, method: str, path: str) -> None:
    assert (await client.request(method, ONE + path, headers={"Origin": "https://ws-1.tclone.localhost:8443"})).status == 403
    assert (await client.request(method, ONE + path, headers={"Sec-Fetch-Site": "cross-site"})).status == 403


async def test_bodies_that_another_sites_form_could_send_are_refused(client: Client, engine: FakeEngine) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = await send(client, "/tmp/x", b"x", **{"Content-Type": kind})
        assert answer.status == 415, kind
        assert (await client.request("POST", f"{ONE}/directories?path=/x", headers={"Content-Type": kind}, data=b"x")).status == 415
    assert b"/tmp/x" not in engine.inside.files


@pytest.mark.parametrize("path", ["/listeners", "/files?path=/", "/diff", "/stats"])
async def test_workspaces_that_are_not_there(client: Client, path: str) -> None:
    assert (await client.request("GET", f"/api/v1/workspaces/ws-99{path}")).status == 404
    assert (await client.request("GET", f"/api/v1/workspaces/..{path}")).status in (400, 404)


async def test_listeners_and_ports(client: Client, engine: FakeEngine) -> None:
    found = (await (await client.request("GET", f"{ONE}/listeners")).json())["listeners"]
    assert [item["port"] for item in found] == [3000, 8000, 8080] and found[0]["host"] == engine.workspaces["ws-1"]["ports"]["3000"]
    made = await client.request("POST", f"{ONE}/ports/8000")
    assert made.status == 201 and (await made.json())["host"] == engine.workspaces["ws-1"]["ports"]["8000"]
    assert (await client.request("DELETE", f"{ONE}/ports/8000")).status == 204
    assert "8000" not in engine.workspaces["ws-1"]["ports"]
    assert (await client.request("DELETE", f"{ONE}/ports/8000")).status == 404
    for port in ("0", "65536", "x", "-1", "999999"):
        assert (await client.request("POST", f"{ONE}/ports/{port}")).status == 400
    assert (await (await client.request("GET", f"{ONE}/stats")).json())["unique_bytes"] == 412 << 20


async def test_files_go_in_and_out_as_they_are(client: Client, engine: FakeEngine) -> None:
    data = bytes(range(256)) * 8192
    assert (await send(client, "/tmp/a%20b", data)).status == 201
    assert engine.inside.files[b"/tmp/a b"] == data
    refused = await send(client, "/tmp/a%20b", b"other")
    assert refused.status == 409 and "exists already" in await refused.text()
    assert (await send(client, "/tmp/a%20b&overwrite=1", b"other")).status == 201
    answer = await client.request("GET", f"{ONE}/file?path=/tmp/a%20b")
    assert answer.status == 200 and await content(answer) == b"other"
    part = await client.request("GET", f"{ONE}/file?path=/tmp/a%20b", headers={"Range": "bytes=0-3"})
    assert (part.status, await content(part), part.headers["Content-Range"]) == (206, b"othe", "bytes 0-3/5")
    assert (await client.request("HEAD", f"{ONE}/file?path=/tmp/a%20b")).status == 200
    missing = await client.request("GET", f"{ONE}/file?path=/none")
    assert missing.status == 404 and "there is no" in await missing.text()
    for path in ("", "relative", "%2e"):
        assert (await client.request("GET", f"{ONE}/file?path={path}")).status == 400


async def test_what_a_workspace_holds_never_runs_as_a_page_of_the_portal(client: Client, engine: FakeEngine) -> None:
    engine.inside.files[b'/tmp/"x\r\n.html'] = b"<script>alert(1)</script>"
    answer = await client.request("GET", f"{ONE}/file?path=/tmp/%22x%0D%0A.html")
    headers = answer.headers
    assert headers["Content-Type"] == "application/octet-stream" and headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Disposition"].startswith("attachment;") and "default-src 'none'" in headers["Content-Security-Policy"]
    assert "Set-Cookie" not in headers


@pytest.mark.parametrize("name", [b"\xff\xfe", b"two\nlines", "é.txt".encode(), b'"; filename=x', b"", b"x" * 255])
def test_names_in_headers_are_harmless(name: bytes) -> None:
    header = attachment(b"/tmp/" + name)
    assert header.isascii() and header.isprintable() and header.count('"') == 2


async def test_names_that_are_not_utf_8(client: Client, engine: FakeEngine) -> None:
    listed = await (await client.request("GET", f"{ONE}/files?path=/home/user")).json()
    assert "%FF%FE" in [entry["encoded"] for entry in listed["entries"]]
    answer = await client.request("GET", f"{ONE}/file?path=/home/user/%FF%FE")
    assert await content(answer) == b"odd"
    assert (await send(client, "/tmp/%FE%25", b"x")).status == 201 and b"/tmp/\xfe%" in engine.inside.files


async def test_a_form_saves_a_file_with_the_key_in_its_body(client: Client) -> None:
    kind = {"Content-Type": "application/x-www-form-urlencoded", "X-TClone-Key": None}
    body = f"key={quote(client.key)}&path={quote('/home/user/notes.txt')}"
    answer = await client.request("POST", f"{ONE}/download", headers=kind, data=body)
    assert answer.status == 200 and await content(answer) == b"first\nsecond\n"
    assert answer.headers["Content-Disposition"].startswith('attachment; filename="notes.txt"')
    wrong = await client.request("POST", f"{ONE}/download", headers=kind, data="key=wrong&path=/home/user/notes.txt")
    assert wrong.status == 401


async def test_changes_are_streamed_line_by_line(client: Client) -> None:
    answer = await client.request("GET", f"{ONE}/diff?base=image")
    lines = [json.loads(line) for line in (await answer.text()).splitlines()]
    assert lines == [*MADE, {"done": {"base": None, "changes": 3, "own": 3, "truncated": False}}]
    assert not any(line["own"] for line in lines[:-1])
    answer = await client.request("GET", f"{ONE}/diff?base=image&own=1")
    lines = [json.loads(line) for line in (await answer.text()).splitlines()]
    assert lines == [*CHANGES, {"done": {"base": None, "changes": 6, "own": 3, "truncated": False}}]
    assert (await client.request("GET", f"{ONE}/diff?own=yes")).status == 400
    assert "+<b>second</b>" in (await (await client.request("GET", f"{ONE}/diff/file?path=/home/user/notes.txt")).json())["diff"]
    assert (await client.request("GET", f"{ONE}/diff?base=../x")).status == 400


# Terminal


async def hello(client: Client, **changes: Any) -> dict[str, Any]:
    return {"type": "hello", "key": client.key, "rows": 30, "cols": 100, **changes}


async def test_a_terminal_is_a_shell_of_the_desktops_user(client: Client, engine: FakeEngine) -> None:
    async with client.socket(f"{ONE}/terminal") as socket:
        await socket.send_json(await hello(client))
        assert await socket.receive_json() == {"type": "ready"}
        assert await socket.receive_bytes() == b"$ "
        await socket.send_bytes("é\x1b[A".encode())
        assert await socket.receive_bytes() == "é\x1b[A".encode()
        await socket.send_json({"resize": [40, 120]})
        for bad in ("x", '{"resize":[0,1]}', '{"resize":["a",1]}', '{"resize":[99999,1]}', "[]"):
            await socket.send_str(bad)
        await socket.send_bytes(b"exit\r")
        assert await answers(socket) == [{"type": "exit", "code": 3}]
    (shell,) = engine.inside.shells
    assert (shell["user"], shell["tty"], shell["rows"], shell["cols"]) == ("@desktop", True, 30, 100)
    assert engine.inside.sizes == [[40, 120]]


async def test_a_terminal_wants_the_session_key_and_a_page_of_the_portal(client: Client, engine: FakeEngine) -> None:
    for changes in ({"key": "x" * 43}, {"key": None}, {"key": 7}):
        async with client.socket(f"{ONE}/terminal") as socket:
            await socket.send_json(await hello(client, **changes))
            assert await answers(socket) == [{"type": "ended"}]
    async with client.socket(f"{ONE}/terminal") as socket:
        await socket.send_str("no hello")
        assert await answers(socket) == []
    async with client.socket("/api/v1/workspaces/ws-99/terminal") as socket:
        await socket.send_json(await hello(client))
        (answer,) = await answers(socket)
        assert answer["type"] == "error" and answer["error"]["code"] == "not_found"
    with pytest.raises(aiohttp.WSServerHandshakeError):
        async with client.socket(f"{ONE}/terminal", Origin="https://ws-1.tclone.localhost:8443"):
            pass
    assert engine.inside.shells == []


async def test_a_terminal_ends_with_its_session_and_with_its_page(client: Client, engine: FakeEngine) -> None:
    async def gone() -> None:
        async with asyncio.timeout(PATIENCE):
            while engine.inside.open_shells:
                await asyncio.sleep(0.02)

    async with client.socket(f"{ONE}/terminal") as socket:
        await socket.send_json(await hello(client))
        assert await socket.receive_json() == {"type": "ready"}
    await gone()
    async with client.socket(f"{ONE}/terminal") as socket:
        await socket.send_json(await hello(client))
        assert await socket.receive_json() == {"type": "ready"}
        await client.request("POST", "/api/v1/logout")
        assert (await answers(socket))[-1] == {"type": "ended"}
    await gone()


async def test_a_programs_terminal_ends_when_a_person_takes_control(client: Client, portal: Portal, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Principal("admin", Role.ADMIN, frozenset(Scope), token="t1")
    monkeypatch.setattr(portal.control.identity, "of_socket", lambda *_: program)
    async with client.socket(f"{ONE}/terminal") as socket:
        await socket.send_json(await hello(client))
        assert await socket.receive_json() == {"type": "ready"}
        await socket.send_bytes(b"before")
        assert [await socket.receive_bytes() for _ in range(2)] == [b"$ ", b"before"]
        assert (await client.request("POST", f"{ONE}/lease", {})).status == 200
        await socket.send_bytes(b"after")
        (last,) = await answers(socket)
    assert (last["type"], last["error"]["code"]) == ("error", "held") and "held by admin" in last["error"]["message"]
    async with client.socket(f"{ONE}/terminal") as socket:
        await socket.send_json(await hello(client))
        assert (await answers(socket))[0]["error"]["code"] == "held"
    assert len(engine.inside.shells) == 1


async def test_a_page_that_does_not_read_makes_the_shell_wait(client: Client) -> None:
    async with client.socket(f"{ONE}/terminal") as socket:
        await socket.send_json(await hello(client))
        assert await socket.receive_json() == {"type": "ready"}
        await socket.send_bytes(b"flood\r")
        await asyncio.sleep(0.5)
        await socket.send_bytes(b"exit\r")
        found = await answers(socket)
    assert sum(len(item) for item in found if isinstance(item, bytes)) == 200 * 65536 + 2 and found[-1] == {"type": "exit", "code": 3}


async def test_too_many_terminals_are_refused(client: Client) -> None:
    sockets = [client.socket(f"{ONE}/terminal") for _ in range(17)]
    opened = [await socket.__aenter__() for socket in sockets]
    for socket in opened:
        await socket.send_json(await hello(client))
    first = [await socket.receive_json() for socket in opened]
    assert [message["type"] for message in first].count("ready") == 16
    assert [message["error"]["code"] for message in first if message["type"] == "error"] == ["limit"]
    for socket in sockets:
        await socket.__aexit__(None, None, None)


async def test_promotion(client: Client, engine: FakeEngine, portal: Portal) -> None:
    engine.add(kind="branch", parent="ws-1", generation=1)
    async with asyncio.timeout(PATIENCE):
        while portal.control.feed.workspace("ws-2") is None:
            await asyncio.sleep(0.01)
    address = "/api/v1/workspaces/ws-2/promote"
    planned = await client.request("POST", address, {"paths": ["/home/user/a%20b"], "dry_run": True})
    assert planned.status == 200, await planned.text()
    assert await planned.json() == {
        "workspace": "ws-2", "into": "ws-1", "dry_run": True,
        "paths": [{"path": "/home/user/a b", "encoded": "/home/user/a%20b", "change": "added", "kind": "file", "size": 3, "outcome": "planned", "reason": None}],
    }  # fmt: skip
    engine.inside.conflicts = {"/x"}
    assert (await client.request("POST", address, {"paths": ["/x"]})).status == 409
    assert (await client.request("POST", address, {"paths": ["/x"], "into": "ws-1", "force": True})).status == 200
    assert engine.inside.promoted[-1] == ("ws-2", {"into": "ws-1", "paths": ["/x"], "force": True, "dry_run": False})
    for body in ({}, {"paths": []}, {"paths": ["x"]}, {"paths": ["/x"], "into": "desk"}, {"paths": ["/x"], "force": 1}):
        assert (await client.request("POST", address, body)).status == 400, body
    assert (await client.request("POST", "/api/v1/workspaces/ws-1/promote", {"paths": ["/x"]})).status == 409, "it has no parent"
    # While a person has control of the one that they go to, programs wait.
    agent = await program(portal, client, "read", "control")
    await client.request("POST", "/api/v1/workspaces/ws-1/lease", {})
    assert (await agent.request("POST", address, {"paths": ["/x"]})).status == 423
    assert (await agent.request("POST", address, {"paths": ["/x"], "dry_run": True})).status == 200
    reader = await program(portal, client, "read")
    assert (await reader.request("POST", address, {"paths": ["/x"], "dry_run": True})).status == 403


async def test_the_other_side_is_one_that_may_be_seen(client: Client, engine: FakeEngine, portal: Portal) -> None:
    anna, ben = await portal.user(client, "anna"), await portal.user(client, "ben")
    made = {}
    for name, user in (("anna", anna), ("ben", ben)):
        answer = await user.request("POST", "/api/v1/workspaces", {"image": "workspace"})
        made[name] = (await answer.json())["id"]
        await user.request("GET", f"/api/v1/workspaces/{made[name]}")
    mine, theirs = f"/api/v1/workspaces/{made['anna']}", made["ben"]
    assert (await anna.request("GET", f"{mine}/diff?base={theirs}")).status == 404
    assert (await anna.request("GET", f"{mine}/diff/file?path=/home/user/notes.txt&base={theirs}")).status == 404
    assert (await anna.request("POST", f"{mine}/promote", {"paths": ["/x"], "into": theirs})).status == 404
    # By a name nobody is found: it might be another's.
    assert (await anna.request("GET", f"{mine}/diff?base=desk")).status == 400
    assert engine.inside.promoted == []
    assert (await client.request("GET", f"{mine}/diff?base={theirs}")).status == 200
