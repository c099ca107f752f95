"""`tclone up` and `tclone down` for real: engine, control and stream, with directories, a port and a cgroup of their own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import ssl
import tarfile
import time
from pathlib import Path

import aiohttp
import psutil
import pytest

from portal.hosts import PORTAL_HOST
from tests.cli.conftest import Done, Tclone
from tests.leaks import LeakCounter
from tests.ports import free_port

pytestmark = pytest.mark.root


def _port(tclone_up: Tclone) -> int:
    return int(tclone_up.environment["TCLONE_PORTAL_PORT"])


def _supervisor(place: Path) -> int:
    return json.loads((place / "run" / "supervisor.json").read_text())["pid"]


async def _status(port: int, context: ssl.SSLContext) -> int:
    connector = aiohttp.TCPConnector(ssl=context)
    headers = {"Host": f"{PORTAL_HOST}:{port}"}
    async with aiohttp.ClientSession(connector=connector) as session:
        async with session.get(f"https://localhost:{port}/healthz", headers=headers) as answer:
            return answer.status


async def test_up_detached_then_down(tclone_up: Tclone, place: Path) -> None:
    up = await tclone_up("up", "--detach", timeout=120)
    assert up.status == 0, up.err
    assert f"TClone is up at https://{PORTAL_HOST}:{_port(tclone_up)}/" in up.out
    assert up.out.splitlines()[-1].startswith(f"Ready: open https://{PORTAL_HOST}:{_port(tclone_up)}/ in a browser")
    password = re.search(r"^  password +(\S{12,})$", up.out, re.MULTILINE)
    assert password is not None, up.out

    # The certificate that the browser is shown is signed by the CA whose fingerprint was printed.
    ca = await tclone_up("ca")
    path, fingerprint = ca.out.splitlines()
    assert fingerprint.removeprefix("SHA-256 ") in up.out
    assert await _status(_port(tclone_up), ssl.create_default_context(cafile=path)) == 200
    assert (await tclone_up("ca", "--pem")).out.startswith("-----BEGIN CERTIFICATE-----")

    assert (await tclone_up("ls", "--json")).json() == []
    again = await tclone_up("up", "--detach")
    assert again.status == 0 and "already up" in again.out and "password" not in again.out

    down = await tclone_up("down", timeout=90)
    assert (down.status, down.out) == (0, "TClone is down\n")
    assert (await tclone_up("down")).out == "TClone is not running\n"
    assert (await tclone_up("ls")).status == 9

    # The password is nowhere but on the terminal that first start wrote to.
    for file in (place / "data").rglob("*"):
        if file.is_file() and file.stat().st_size < 64 << 20:
            assert password[1].encode() not in file.read_bytes(), file


async def test_the_last_line_says_what_can_be_done_next(tclone_up: Tclone, tmp_path: Path) -> None:
    """An image is built when there is none, and run when there is one; the same when all of it is up already."""
    def step(done: Done) -> str:
        assert done.status == 0, done.err
        return re.search(r"^Ready: open https://\S+ in a browser \(user admin\), or go on with `(.+)`$", done.out.splitlines()[-1])[1]  # type: ignore[index]

    assert step(await tclone_up("up", "-d", timeout=120)) == "tclone image build webtop-xfce"
    (tmp_path / "root" / "bin").mkdir(parents=True)
    (tmp_path / "root" / "bin" / "sh").write_text("#!\n")
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        archive.add(tmp_path / "root", ".")
    assert (await tclone_up("image", "import", str(tmp_path / "root.tar"), "--name", "mine")).status == 0
    again = await tclone_up("up", "-d")
    assert "already up" in again.out and step(again) == "tclone run mine"
    refused = await tclone_up("up", "-d", "--image", "nowhere")
    assert refused.status == 4 and "no recipe for image nowhere" in refused.err
    assert (await tclone_up("down", "--keep", timeout=90)).status == 0
    assert step(await tclone_up("up", "-d", timeout=120)) == "tclone run mine"


async def test_the_password_is_shown_once_and_passwd_makes_another(tclone_up: Tclone) -> None:
    # A first image takes minutes: address and password are there before it is begun, and are not told again when that fails.
    first = await tclone_up("up", "-d", "--image", "nowhere", timeout=120)
    assert first.status == 4 and "no recipe for image nowhere" in first.err
    assert first.out.startswith("TClone is up at") and first.out.count("  password ") == 1
    assert (await tclone_up("down", timeout=90)).status == 0
    second = await tclone_up("up", "-d", timeout=120)
    assert second.status == 0 and "password" not in second.out
    changed = await tclone_up("passwd")
    assert changed.status == 0 and len(changed.out.strip()) >= 12
    assert changed.out.strip() not in first.out


async def test_the_portals_processes_are_not_root(tclone_up: Tclone, place: Path) -> None:
    assert (await tclone_up("up", "-d", timeout=120)).status == 0
    users = {}
    for process in psutil.Process(_supervisor(place)).children():
        name = process.cmdline()[-1]
        users[name] = process.username()
    assert users == {"engine": "root", "portal.control": "nobody", "portal.stream": "nobody"}


async def test_ctrl_c_in_the_foreground_is_down(tclone_up: Tclone) -> None:
    process = await asyncio.create_subprocess_exec(
        *tclone_up.argv("up"), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=tclone_up.environment
    )
    assert process.stdout is not None and process.stderr is not None
    first = await asyncio.wait_for(process.stdout.readline(), 120)
    assert first.startswith(b"TClone is up at")
    process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), 60) == 0
    assert "Ctrl-C stops TClone" in (await process.stderr.read()).decode()
    assert (await tclone_up("ls")).status == 9


async def test_a_killed_service_is_started_again(tclone_up: Tclone, place: Path) -> None:
    assert (await tclone_up("up", "-d", timeout=120)).status == 0
    supervisor = psutil.Process(_supervisor(place))
    before = {process.cmdline()[-1]: process.pid for process in supervisor.children()}
    os.kill(before["engine"], signal.SIGKILL)
    os.kill(before["portal.stream"], signal.SIGKILL)
    deadline = time.monotonic() + 30
    while (await tclone_up("ls")).status != 0:
        assert time.monotonic() < deadline
    after = {process.cmdline()[-1]: process.pid for process in supervisor.children()}
    assert after["engine"] != before["engine"] and after["portal.control"] == before["portal.control"]


async def test_a_killed_supervisor_takes_its_services_along_and_up_works_again(tclone_up: Tclone, place: Path) -> None:
    assert (await tclone_up("up", "-d", timeout=120)).status == 0
    supervisor = psutil.Process(_supervisor(place))
    services = supervisor.children()
    supervisor.kill()
    _, alive = psutil.wait_procs(services, timeout=20)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    assert (await tclone_up("down")).out == "TClone is not running\n"
    again = await tclone_up("up", "-d", timeout=120)
    assert again.status == 0, again.err


async def test_a_taken_port_is_named_with_its_holder_and_the_next_step(tclone_up: Tclone, place: Path) -> None:
    with socket.create_server(("127.0.0.1", _port(tclone_up))):
        up = await tclone_up("up", "-d")
    assert up.status == 5
    assert f"port {_port(tclone_up)} is taken by" in up.err and f"(pid {os.getpid()})" in up.err and "--port N" in up.err


async def test_two_ups_at_once_start_one(tclone_up: Tclone, place: Path) -> None:
    both = await asyncio.gather(tclone_up("up", "-d", timeout=120), tclone_up("up", "-d", timeout=120))
    assert [done.status for done in both] == [0, 0], [done.err for done in both]
    assert (await tclone_up("ls")).status == 0


async def test_a_data_directory_the_portal_cannot_reach_is_named(leaks: LeakCounter, tmp_path: Path, place: Path) -> None:
    command = Tclone({**os.environ, "TCLONE_DATA": str(tmp_path / "data"), "TCLONE_RUN": str(place / "run"), "TCLONE_PORTAL_USER": "nobody"})
    up = await command("up", "-d", "--port", str(free_port()))
    assert up.status == 9 and "cannot enter" in up.err and "chmod o+x" in up.err
