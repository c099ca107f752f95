"""Opening a desktop: one-time codes, desks, and what the stream process is told."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import sys
from typing import Any

import pytest

from portal.tickets import LIFE_SECONDS, Tickets
from tests.portal.conftest import PATIENCE, Client, Portal
from tests.portal.fake_engine import FakeEngine


def test_a_code_is_good_once() -> None:
    tickets = Tickets()
    code = tickets.issue("s1", "ws-1")
    assert len(code) >= 43
    assert tickets.redeem(code, "ws-1") == "s1"
    assert tickets.redeem(code, "ws-1") is None


def test_a_code_is_bound_to_its_workspace_and_used_up_by_a_wrong_try() -> None:
    tickets = Tickets()
    code = tickets.issue("s1", "ws-1")
    assert tickets.redeem(code, "ws-2") is None
    assert tickets.redeem(code, "ws-1") is None


def test_a_code_lives_thirty_seconds() -> None:
    now = 0.0
    tickets = Tickets(clock=lambda: now)
    early, late = tickets.issue("s1", "ws-1"), tickets.issue("s1", "ws-1")
    now = LIFE_SECONDS - 0.01
    assert tickets.redeem(early, "ws-1") == "s1"
    now = LIFE_SECONDS
    assert tickets.redeem(late, "ws-1") is None


def test_one_session_cannot_fill_the_memory_with_codes() -> None:
    tickets = Tickets()
    codes = [tickets.issue("s1", "ws-1") for _ in range(200)]
    assert sum(tickets.redeem(code, "ws-1") is not None for code in codes) == 64


async def ask(client: Client, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    answer = await client.request("POST", path, body)
    return answer.status, await answer.json()


async def ticket(client: Client, workspace: str = "ws-1") -> dict[str, Any]:
    answer = await client.request("POST", f"/api/v1/workspaces/{workspace}/ticket")
    assert answer.status == 200
    return await answer.json()


async def test_the_whole_exchange(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    client, stream = await portal.login(), portal.private()
    given = await ticket(client)
    assert given["action"] == "https://ws-1.tclone.localhost:8443/__tclone/enter" and given["code"] not in given["action"]
    status, grant = await ask(stream, "/tickets/redeem", {"code": given["code"], "workspace": "ws-1"})
    assert status == 200 and grant["user"] == "admin" and grant["workspace"] == "ws-1" and grant["expires"] > 1e9
    assert grant["session"] != client.cookies["__Host-tclone"]
    status, checked = await ask(stream, "/desks/check", {"desk": grant["desk"], "workspace": "ws-1"})
    assert status == 200 and checked["session"] == grant["session"]
    assert (await ask(stream, "/desks/check", {"desk": grant["desk"], "workspace": "ws-2"}))[0] == 403
    assert (await ask(stream, "/desks/check", {"desk": "guess", "workspace": "ws-1"}))[0] == 403
    assert (await ask(stream, "/tickets/redeem", {"code": given["code"], "workspace": "ws-1"}))[0] == 403


async def test_codes_and_desks_end_with_their_session(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    client, stream = await portal.login(), portal.private()
    first, second = await ticket(client), await ticket(client)
    _, grant = await ask(stream, "/tickets/redeem", {"code": first["code"], "workspace": "ws-1"})
    await client.request("POST", "/api/v1/logout")
    assert (await ask(stream, "/tickets/redeem", {"code": second["code"], "workspace": "ws-1"}))[0] == 403
    assert (await ask(stream, "/desks/check", {"desk": grant["desk"], "workspace": "ws-1"}))[0] == 403


async def test_the_stream_process_hears_of_ended_sessions_at_once(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    client, stream = await portal.login(), portal.private()
    _, grant = await ask(stream, "/tickets/redeem", {"code": (await ticket(client))["code"], "workspace": "ws-1"})
    async with stream.socket("/sessions/watch") as watch:
        first = await watch.receive_json(timeout=PATIENCE)
        assert first == {"type": "snapshot", "sessions": [grant["session"]]}
        await client.request("POST", "/api/v1/logout")
        assert await watch.receive_json(timeout=PATIENCE) == {"type": "ended", "session": grant["session"], "reason": "logout"}


async def test_a_desk_outlives_a_restart_of_control(portal: Portal, engine: FakeEngine) -> None:
    engine.add()
    client, stream = await portal.login(), portal.private()
    _, grant = await ask(stream, "/tickets/redeem", {"code": (await ticket(client))["code"], "workspace": "ws-1"})
    sessions = portal.control.sessions
    await sessions.close()
    for table in (sessions._by_cookie, sessions._by_id, sessions._desks):
        table.clear()
    await sessions.open()
    assert (await ask(stream, "/desks/check", {"desk": grant["desk"], "workspace": "ws-1"}))[0] == 200


@pytest.mark.parametrize(
    "workspace, status", [({"desktop": False, "image": "workspace"}, 409), ({"state": "starting"}, 409), ({"state": "failed"}, 409)]
)
async def test_no_code_for_a_desktop_that_is_not_there(portal: Portal, engine: FakeEngine, workspace: dict[str, Any], status: int) -> None:
    engine.add(**workspace)
    client = await portal.login()
    assert (await client.request("POST", "/api/v1/workspaces/ws-1/ticket")).status == status
    assert (await client.request("POST", "/api/v1/workspaces/ws-99/ticket")).status == 404


@pytest.mark.parametrize("body", [{}, {"code": 7, "workspace": "ws-1"}, {"code": "x", "workspace": "../etc"}, {"code": "x"}])
async def test_malformed_questions_are_refused(portal: Portal, body: dict[str, Any]) -> None:
    assert (await ask(portal.private(), "/tickets/redeem", body))[0] == 400


async def test_the_private_socket_asks_who_is_there(portal: Portal) -> None:
    """Another user's process is refused even when the file's mode would let it in."""
    portal.places.private_socket.chmod(0o666)
    for directory in (portal.places.run, portal.config.run, portal.config.run.parent):
        directory.chmod(0o755)
    code = (
        "import os, socket, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534);"
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "s.sendall(b'GET /health HTTP/1.1\\r\\nHost: c\\r\\nConnection: close\\r\\n\\r\\n'); print(s.recv(64).split()[1].decode())"
    )
    process = await asyncio.create_subprocess_exec(
        "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable,
        "-c", code, str(portal.places.private_socket), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert out.strip() == b"403"
    assert (await portal.private().request("GET", "/health")).status == 200


def test_peer_credentials_have_the_layout_we_read() -> None:
    left, right = socket.socketpair()
    with left, right:
        pid, uid, gid = struct.unpack("3i", left.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        assert (pid, uid, gid) == (os.getpid(), os.geteuid(), os.getegid())
