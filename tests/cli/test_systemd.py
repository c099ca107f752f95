"""The unit for systemd: by systemd's own checker, and run as systemd does, with its environment, its socket for readiness and its ways to stop."""

from __future__ import annotations

import asyncio
import configparser
import os
import re
import shlex
import signal
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.cli import notify
from engine.config import REPO
from tests.cli.conftest import Tclone
from tests.cli.test_up import _port, _status

_UNIT = REPO / "scripts" / "systemd" / "tclone.service"
_CHECKOUT = "/opt/tclone"
_UCRED = struct.Struct("3i")
# A manager waits as long as the unit says; a busy machine gets as much here.
_START_SECONDS, _STOP_SECONDS = 300, 90


def unit() -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None, strict=True)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read(_UNIT)
    return parsed


def complaints(path: Path) -> list[str]:
    """What systemd says of a unit file; it only warns of much that it then ignores. What it says of others on this machine is not ours."""
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, check=False)
    return [line for line in (done.stdout + done.stderr).splitlines() if path.name in line]


def test_systemd_knows_every_line_of_it(tmp_path: Path) -> None:
    # The checker wants to see the program; where the checkout lies is the operator's to say.
    text = _UNIT.read_text().replace(f"{_CHECKOUT}/.venv/bin/tclone", "/bin/true")
    path = tmp_path / "tclone.service"
    path.write_text(text)
    assert complaints(path) == []
    path.write_text(text.replace("Delegate=", "Delgate="))
    assert any("Delgate" in line for line in complaints(path)), "the checker sees what it is to see"


def test_its_times_are_longer_than_ours() -> None:
    service = unit()["Service"]
    text = (REPO / "engine" / "cli" / "up.py").read_text()
    ours = {name: float(value) for name, value in re.findall(r"^(_START_SECONDS|_DOWN_SECONDS) = ([0-9.]+)$", text, re.MULTILINE)}
    assert int(service["TimeoutStartSec"]) > ours["_START_SECONDS"] and int(service["TimeoutStopSec"]) > ours["_DOWN_SECONDS"]
    assert int(service["TimeoutStopSec"]) == _STOP_SECONDS


def command(words: str) -> list[str]:
    """A line of the unit as what is to be run, by this checkout and interpreter."""
    argv = shlex.split(words)
    assert argv[0] == f"{_CHECKOUT}/.venv/bin/tclone"
    return [sys.executable, "-m", "engine.cli.main", *argv[1:]]


@dataclass
class Manager:
    """As much of systemd as a service of Type=notify sees. `told`: what the main process has said; what others say does not count (NotifyAccess=main)."""

    environment: dict[str, str]
    listener: socket.socket
    told: list[str]
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *command(unit()["Service"]["ExecStart"]), env=self.environment, cwd="/", stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    async def hear(self, wanted: str) -> None:
        """Wait for a line of the main process."""
        assert self.process is not None
        loop = asyncio.get_running_loop()
        while wanted not in self.told:
            readable = loop.create_future()
            loop.add_reader(self.listener, lambda: readable.done() or readable.set_result(None))
            try:
                ended = asyncio.create_task(self.process.wait())
                await asyncio.wait({readable, ended}, return_when=asyncio.FIRST_COMPLETED)
                if not readable.done():
                    raise AssertionError(f"ended with {self.process.returncode} before it said {wanted}; said {self.told}")
                ended.cancel()
            finally:
                loop.remove_reader(self.listener)
            text, ancillary, _, _ = self.listener.recvmsg(4096, socket.CMSG_SPACE(_UCRED.size))
            sender = next(_UCRED.unpack(data)[0] for _, kind, data in ancillary if kind == socket.SCM_CREDENTIALS)
            assert sender == self.process.pid, "only the main process speaks"
            self.told += text.decode().splitlines()

    async def ends(self) -> str:
        """Wait for the end, which is one that systemd does not take for a failure; what was printed."""
        assert self.process is not None and self.process.stdout is not None
        out = await asyncio.wait_for(self.process.stdout.read(), _STOP_SECONDS)
        assert await self.process.wait() == 0
        return out.decode()


@pytest.fixture
async def manager(tclone_up: Tclone, place: Path) -> AsyncIterator[Manager]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        listener.bind(str(place / "notify"))
        listener.setblocking(False)
        # A service has no home, terminal or language of anybody's.
        ours = {name: value for name, value in tclone_up.environment.items() if name.startswith(("TCLONE_", "PYTHONPATH"))}
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        yield Manager({**ours, "PATH": path, "LANG": "C.UTF-8", "INVOCATION_ID": "0" * 32, "NOTIFY_SOCKET": listener.getsockname()}, listener, [])


@pytest.mark.root
@pytest.mark.parametrize("way", ["ExecStop", "SIGTERM"])
async def test_it_says_when_it_is_ready_and_stops_in_time(manager: Manager, tclone_up: Tclone, place: Path, way: str) -> None:
    assert unit()["Service"]["Type"] == "notify" and unit()["Service"]["NotifyAccess"] == "main"
    await manager.start()
    assert manager.process is not None
    async with asyncio.timeout(_START_SECONDS):
        await manager.hear("READY=1")
    assert [line for line in manager.told if line.startswith("STATUS=starting")] == [f"STATUS=starting {name}" for name in ("engine", "control", "stream")]
    # Ready is ready: what comes at once is answered.
    ca = place / "data" / "portal" / "tls" / "ca.pem"
    assert await _status(_port(tclone_up), ssl.create_default_context(cafile=str(ca))) == 200
    if way == "ExecStop":
        stop = await asyncio.create_subprocess_exec(*command(unit()["Service"]["ExecStop"]), env={**manager.environment, "MAINPID": str(manager.process.pid)}, cwd="/", stdout=asyncio.subprocess.DEVNULL)
        await manager.hear("STOPPING=1")
        assert await asyncio.wait_for(stop.wait(), _STOP_SECONDS) == 0
    else:
        manager.process.send_signal(signal.SIGTERM)
        await manager.hear("STOPPING=1")
    printed = await manager.ends()
    assert "TClone is up at" in printed
    # It went into the journal, which others may read and which is kept.
    assert "not shown in a log" in printed
    assert not re.search(r"[a-z2-9]{5}(-[a-z2-9]{5}){3}", printed), printed


@pytest.mark.parametrize("name", ["/file", "@abstract"])
def test_either_kind_of_socket_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    address = f"{name}-{os.getpid()}" if name.startswith("@") else str(tmp_path) + name
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + address[1:] if address.startswith("@") else address)
        listener.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        notify.tell(READY=1, STATUS="at work")
        assert listener.recv(100) == b"READY=1\nSTATUS=at work" and notify.managed()
    notify.tell(STOPPING=1)  # the manager has gone: nothing happens
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify.tell(READY=1)
    assert not notify.managed() and notify.without({"NOTIFY_SOCKET": address, "PATH": "/bin"}) == {"PATH": "/bin"}
