"""What protects a person's browser: origins, headers, hosts, and what comes from hostile workspaces."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import aiohttp
import pytest

from portal import hosts
from tests.portal.conftest import HOST, ORIGIN, PATIENCE, Portal
from tests.portal.fake_engine import FakeEngine

HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>\n\u202e'


@pytest.mark.parametrize(
    "path", ["/", "/login", "/w/ws-1", "/nowhere", "/healthz", "/api/v1/workspaces", "/api/nothing", "/static/x/css/base.css", "/ws"]
)
async def test_every_answer_carries_the_security_headers(portal: Portal, path: str) -> None:
    answer = await portal.client().request("GET", path)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "base-uri 'none'" in policy
    assert "unsafe" not in policy and "data:" not in policy
    assert "frame-src https://*.tclone.localhost:8443;" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "strict-origin"
    assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert "camera=()" in answer.headers["Permissions-Policy"]
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert "Server" not in answer.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": None},
        {"Origin": "null"},
        {"Origin": "https://evil.example"},
        {"Origin": "https://ws-1.tclone.localhost:8443"},
        {"Origin": "http://localhost:8443"},
        {"Origin": "https://localhost:43827"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_unsafe_requests_from_elsewhere_are_refused(portal: Portal, engine: FakeEngine, headers: dict[str, str | None]) -> None:
    client = await portal.login()
    for method, path, body in (
        ("POST", "/api/v1/workspaces", {"image": "workspace"}),
        ("DELETE", "/api/v1/workspaces/ws-1", None),
        ("POST", "/api/v1/login", {"user": "admin", "password": portal.password}),
        ("POST", "/api/v1/logout", None),
    ):
        answer = await client.request(method, path, body, headers=headers)
        assert answer.status == 403 and (await answer.json())["error"]["code"] == "csrf", (method, path)
    assert engine.calls == []
    assert (await client.request("GET", "/api/v1/workspaces")).status == 200, "the session is still there"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
async def test_a_body_that_a_form_can_send_is_refused(portal: Portal, kind: str) -> None:
    client = await portal.login()
    body = json.dumps({"image": "workspace"}).encode()
    for method, path, wanted in (
        ("POST", "/api/v1/workspaces", "Content-Type: application/json"),
        ("PUT", "/api/v1/settings", "Content-Type: application/octet-stream or application/json"),
        ("PUT", "/api/v1/workspaces/ws-1/file?path=/x", "application/octet-stream"),
        ("POST", "/api/v1/workspaces/ws-1/download", "Content-Type: application/x-www-form-urlencoded"),
    ):
        if kind in wanted:
            continue
        answer = await client.request(method, path, headers={"Content-Type": kind}, data=body)
        error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (415, "media_type"), path
        assert wanted in error["message"] and kind.partition(";")[0] in error["message"]


async def test_answers_in_json_end_their_line_and_tell_no_version(portal: Portal, engine: FakeEngine) -> None:
    client = await portal.login()
    engine.add()
    for path in ("/api/v1/me", "/api/v1/workspaces", "/api/v1/workspaces/ws-9", "/api/v1/nowhere", "/healthz", "/api/v1/openapi.json"):
        answer = await client.request("GET", path)
        text = await answer.text()
        assert text.endswith("\n") and json.loads(text) is not None, path
        assert int(answer.headers.get("Content-Length", len(text.encode()))) == len(text.encode())
        assert "Server" not in answer.headers, path
    assert (await portal.private().request("GET", "/health")).headers["Server"] == "TClone"


async def test_a_websocket_from_another_origin_is_refused(portal: Portal) -> None:
    client = await portal.login()
    for origin in (None, "https://ws-1.tclone.localhost:8443", "https://evil.example"):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with client.socket(Origin=origin):
                pass
        assert refused.value.status == 403


async def test_other_names_lead_to_the_one_origin(portal: Portal) -> None:
    answer = await portal.client("127.0.0.1:8443").request("GET", "/w/ws-1?x=1")
    assert answer.status == 308 and answer.headers["Location"] == "https://tclone.localhost:8443/w/ws-1?x=1"
    assert (await portal.client("127.0.0.1:8443").request("POST", "/api/v1/login", {})).status == 421
    for host in ("evil.example", "ws-1.tclone.localhost:8443", "tclone.localhost.evil.example", "127.0.0.1.nip.example:8443"):
        assert (await portal.client(host).request("GET", "/login")).status == 421, host


async def test_a_path_cannot_turn_the_redirect_to_another_site(portal: Portal) -> None:
    answer = await portal.client("127.0.0.1:8443").request("GET", "//evil.example/")
    assert answer.headers["Location"].startswith("https://tclone.localhost:8443/")


async def test_an_api_call_without_login_is_never_redirected(portal: Portal) -> None:
    client = portal.client()
    for method, path in (("GET", "/api/v1/workspaces"), ("POST", "/api/v1/workspaces"), ("DELETE", "/api/v1/workspaces/ws-1")):
        answer = await client.request(method, path)
        assert answer.status == 401 and answer.content_type == "application/json"
    page = await client.request("GET", "/")
    assert page.status == 303 and page.headers["Location"] == "/login"


@pytest.mark.parametrize("path", ["/static/x/../portal.db", "/static/x/..%2f..%2fpyproject.toml", "/static/x/%2e%2e/base.html", "/static/x//etc/passwd"])
async def test_static_files_are_only_the_static_files(portal: Portal, path: str) -> None:
    assert (await portal.client().request("GET", path)).status == 404


async def test_hostile_names_arrive_as_json_text_only(portal: Portal, engine: FakeEngine) -> None:
    engine.add(name=HOSTILE, error=HOSTILE)
    client = await portal.login()
    answer = await client.request("GET", "/api/v1/workspaces")
    assert answer.content_type == "application/json" and (await answer.json())[0]["name"] == HOSTILE
    page = await client.request("GET", "/w/ws-1")
    assert "alert(" not in await page.text() and "onerror" not in await page.text()


async def test_log_text_is_plain_bounded_and_without_control_characters(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    engine.log_text = "\x1b]0;title\x07<script>alert(1)</script>\n" + "x" * 200_000 + "\nlast"
    client = await portal.login()
    answer = await client.request("GET", "/api/v1/workspaces/ws-1/logs?tail=40")
    text = await answer.text()
    assert answer.content_type == "text/plain" and len(text) <= 64 * 1024 and text.endswith("last")
    assert "\x1b" not in text and "\x07" not in text


@pytest.mark.parametrize(
    "method, path, body",
    [
        ("POST", "/api/v1/workspaces", {"image": 7}),
        ("POST", "/api/v1/workspaces", {"image": "workspace", "ports": ["3000"]}),
        ("POST", "/api/v1/workspaces", {"image": "workspace", "ports": [0]}),
        ("POST", "/api/v1/workspaces", {"image": "workspace", "ports": [True]}),
        ("POST", "/api/v1/workspaces", {"image": "workspace", "memory": "4g"}),
        ("POST", "/api/v1/workspaces", {"image": "workspace", "env": {}}),
        ("POST", "/api/v1/workspaces", ["image"]),
        ("POST", "/api/v1/workspaces/ws-1/fork", {"copies": "2"}),
        ("POST", "/api/v1/workspaces/ws-1/fork", {"copies": True}),
        ("POST", "/api/v1/workspaces/..%2Fimages/fork", {"copies": 1}),
        ("DELETE", "/api/v1/workspaces/all", None),
        ("GET", "/api/v1/workspaces/ws-1/logs?tail=-1", None),
        ("POST", "/api/v1/login", {"user": "admin"}),
    ],
)
async def test_bad_input_is_named_and_goes_no_further(
    portal: Portal, engine: FakeEngine, method: str, path: str, body: object
) -> None:
    client = await portal.login()
    answer = await client.request(method, path, body)
    assert answer.status == 400 and (await answer.json())["error"]["message"]
    assert engine.calls == []


async def test_a_huge_body_is_refused(portal: Portal) -> None:
    client = await portal.login()
    answer = await client.request("POST", "/api/v1/workspaces", {"image": "x" * 100_000})
    assert answer.status == 413


def test_sockets_and_rights_of_a_process_started_by_root(config) -> None:
    """The real process drops root before it listens."""
    if os.geteuid() != 0:
        pytest.fail("needs root, to see it dropped")
    user = "nobody"
    config.data.mkdir(exist_ok=True)
    config.data.parent.chmod(0o755)
    environment = {
        **os.environ,
        "TCLONE_DATA": str(config.data),
        "TCLONE_RUN": str(config.run),
        "TCLONE_PORTAL_USER": user,
        "PYTHONUNBUFFERED": "1",
    }
    process = subprocess.Popen([sys.executable, "-m", "portal.control"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        path = config.run / "portal" / "control.sock"
        output = b""
        while b"control answers" not in output:
            line = process.stdout.readline()
            assert line, output.decode()
            output += line
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if ":\t" in line)
        assert "0" not in status["Uid"].split() and "0" not in status["Gid"].split() and not status["Groups"].strip()
        assert status["NoNewPrivs"] == "1" and int(status["CapEff"], 16) == 0 and int(status["CapPrm"], 16) == 0
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(f"GET /healthz HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        # What takes long to load follows without being asked for.
        while b"the Model Context Protocol is spoken at /mcp" not in output:
            line = process.stdout.readline()
            assert line, output.decode()
            output += line
    finally:
        process.terminate()
        try:
            # As long as other tests wait: the machine may be busy.
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    assert not path.exists()


@pytest.mark.parametrize(
    "host, workspace",
    [
        ("ws-3.tclone.localhost:8443", "ws-3"),
        ("WS-3.TCLONE.LOCALHOST", "ws-3"),
        ("ws-3.tclone.localhost.", None),
        ("ws-3.tclone.localhost.evil.example", None),
        ("a.ws-3.tclone.localhost", None),
        ("ws-.tclone.localhost", None),
        ("ws-3evil.tclone.localhost", None),
        ("ws-3.localhost:8443", None),
        ("ws-3.tclone.localhost:x", None),
        ("ws-3.tclone.localhost:8443@evil", None),
        ("", None),
    ],
)
def test_which_hosts_are_desktops(host: str, workspace: str | None) -> None:
    assert hosts.workspace_of(host) == workspace


def test_origins_keep_the_port_by_which_the_browser_came() -> None:
    assert hosts.portal_origin(HOST) == ORIGIN
    assert hosts.portal_origin("tclone.localhost") == "https://tclone.localhost"
    assert hosts.desktop_origin("ws-2", "tclone.localhost:9443") == "https://ws-2.tclone.localhost:9443"




@pytest.mark.parametrize("method, path", [("POST", "/api/v1/workspaces"), ("DELETE", "/api/v1/workspaces/ws-1"), ("PUT", "/api/v1/settings")])
async def test_a_program_that_forgot_its_token_is_told_to_log_in(portal: Portal, engine: FakeEngine, method: str, path: str) -> None:
    answer = await portal.client().request(method, path, {} if method != "DELETE" else None, headers={"Origin": None})
    assert (answer.status, (await answer.json())["error"]["code"], answer.headers["WWW-Authenticate"]) == (401, "login", "Bearer")
    assert engine.calls == []


@pytest.mark.parametrize("sent", [b"", b'{"idle_seconds": NaN}', b'{"idle_seconds": Infinity}'])
async def test_what_is_no_json_object_changes_no_setting(portal: Portal, sent: bytes) -> None:
    client = await portal.login()
    assert (await client.request("PUT", "/api/v1/settings", {"idle_seconds": 600.0, "user_workspaces": 3.0})).status == 200
    refused = await client.request("PUT", "/api/v1/settings", headers={"Content-Type": "application/json"}, data=sent)
    assert (refused.status, (await refused.json())["error"]["code"]) == (400, "bad_request")
    now = await (await client.request("GET", "/api/v1/settings")).json()
    assert (now["idle_seconds"], now["user_workspaces"]) == (600, 3), "8.0 is a whole number"


async def test_an_image_that_nobody_can_build_is_not_there(portal: Portal, engine: FakeEngine) -> None:
    answer = await (await portal.login()).request("POST", "/api/v1/images/nothing/build")
    assert (answer.status, (await answer.json())["error"]["code"]) == (404, "not_found")
    assert engine.calls == []


async def test_a_method_that_is_not_there_is_told_before_its_body_is_looked_at(portal: Portal) -> None:
    client = await portal.login()
    answer = await client.request("TRACE", "/api/v1/workspaces/ws-1/file?path=/x", headers={"Content-Type": "application/octet-stream"}, data=b"x")
    assert answer.status == 405


async def test_looking_changes_nothing(portal: Portal, engine: FakeEngine) -> None:
    """Whatever can be asked for by GET, which a browser may ask for without being told to."""
    engine.add(name="desk", desktop=True)
    client = await portal.login()
    document = await (await client.request("GET", "/api/v1/openapi.json")).json()
    endless = {path for path in document["paths"] if path.endswith(("/events", "/control", "/exec", "/terminal"))}
    looked = [path for path, methods in document["paths"].items() if "get" in methods and path not in endless]
    before = json.dumps(engine.workspaces), portal.control.settings.now
    for path in looked:
        asked = path.replace("{id}", "ws-1").replace("{name}", "workspace").replace("{user}", "admin")
        answer = await client.request("GET", f"/api/v1{asked}?path=/home/user/notes.txt" if path.endswith(("/file", "/files")) else f"/api/v1{asked}")
        assert answer.status < 500, path
    assert len(looked) > 20 and {verb for verb, _ in engine.calls} <= {"screenshot", "accessibility", "act"}
    assert {action["action"] for verb, body in engine.calls if verb == "act" for action in body["actions"]} == {"get_clipboard"}
    assert (json.dumps(engine.workspaces), portal.control.settings.now) == before
    entries = await (await client.request("GET", "/api/v1/audit")).json()
    assert {entry["event"] for entry in entries} == {"login", "action", "audit-export"}, entries
    # Who looks at a clipboard may see a password: that is on record.
    assert [entry["action"] for entry in entries if entry["event"] == "action"] == ["get_clipboard"]


async def test_every_page_behind_the_login_has_a_way_out(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    client = await portal.login()
    pages = ("/", "/w/ws-1", "/compare", "/compare/ws-1/ws-2", "/account", "/docs", "/docs/how-to/files", "/admin", "/admin/users", "/admin/settings", "/admin/audit")
    for page in pages:
        answer = await client.request("GET", page)
        assert answer.status == 200 and re.search(r'<button [^>]*id="logout"[^>]*>Log out</button>', await answer.text()), page


async def test_a_defect_tells_nothing_of_itself(portal: Portal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> NoReturn:
        raise RuntimeError("at /srv/tclone/portal.db")

    client = await portal.login()
    monkeypatch.setattr(portal.control.access.tokens, "of", broken)
    answer = await client.request("GET", "/api/v1/tokens")
    assert (answer.status, await answer.json()) == (500, {"error": {"code": "internal", "message": "the portal failed; its log has more"}})
    assert "at /srv/tclone/portal.db" in caplog.text
