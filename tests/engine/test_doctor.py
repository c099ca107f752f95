"""`tclone doctor WS` and a refused fork name everything that is in the way, with the real fork program."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.cgroups import ROOT, layout
from engine.client import EngineClient
from engine.cgroups import parent_of
from engine.errors import Conflict, Unsupported
from tests.engine import guest
from tests.engine.support import IMAGE, REPO, Engine, eventually

ENOSYS = 38


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return guest.build("refused", tmp_path_factory.mktemp("guest"))


@pytest.fixture
async def workspace(client: EngineClient) -> str:
    return (await client.launch(IMAGE, name="src", wait=True))["id"]


def command_line(engine: Engine, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TCLONE_RUN": str(engine.run), "TCLONE_DATA": str(engine.config.data)}
    return subprocess.run([sys.executable, "-m", "engine.cli.main", *arguments], cwd=REPO, env=environment, capture_output=True, text=True)


async def test_io_uring_does_not_exist_inside(client: EngineClient, workspace: str, refused: Path) -> None:
    assert f"io_uring -{ENOSYS}\n" in await guest.start(client, workspace, refused, "io_uring")
    assert (await client.examine(workspace))["ok"]


async def test_every_blocker_with_pid_command_descriptor_and_remedy(
    engine: Engine, client: EngineClient, workspace: str, refused: Path
) -> None:
    printed = await guest.start(client, workspace, refused, "traced_by_thread", "name=evil\x1b]0;x", "userfaultfd", "seccomp_listener")
    held = {name: int(number) for name, _, number in (line.partition(" ") for line in printed.splitlines()) if number}
    assert all(number > 0 for number in held.values()), held
    found = await client.examine(workspace)
    assert not found["ok"] and found["processes"] == 4 and found["blockers_omitted"] == 0
    by_descriptor = {blocker["fd"]: blocker for blocker in found["blockers"]}
    assert set(by_descriptor) == {held["userfaultfd"], held["seccomp_listener"], None}
    assert by_descriptor[None]["pid"] == held["traced_by_thread"] and by_descriptor[None]["command"] == "traced"
    assert "a userfaultfd" in by_descriptor[held["userfaultfd"]]["message"]
    assert all(blocker["remedy"] and blocker["message"].isprintable() for blocker in found["blockers"])

    with pytest.raises(Unsupported) as refusal:
        await client.fork(workspace)
    assert refusal.value.blockers == found["blockers"]
    assert all(blocker["message"] in refusal.value.message for blocker in found["blockers"])
    assert [item["state"] for item in await client.list()] == ["ready"]

    shown = command_line(engine, "doctor", "src")
    assert shown.returncode == 1 and shown.stdout.count("BLOCKED") == 3 and shown.stdout.count("\n         -> ") == 3
    assert "\x1b" not in shown.stdout
    as_json = command_line(engine, "doctor", "src", "--json")
    assert as_json.returncode == 1 and json.loads(as_json.stdout) == found
    fork = command_line(engine, "fork", "src", "--json")
    assert fork.returncode == 6 and json.loads(fork.stdout)["error"]["blockers"] == found["blockers"]
    assert "\x1b" not in fork.stderr and fork.stderr.count("\n") >= 3


async def test_a_workspace_that_can_be_forked(engine: Engine, client: EngineClient, workspace: str) -> None:
    shown = command_line(engine, "doctor", "src")
    assert shown.returncode == 0 and shown.stdout.startswith(f"{workspace} can be forked (2 processes")
    assert command_line(engine, "doctor", "ws-99").returncode == 4


async def test_attached_commands_are_noted(client: EngineClient, workspace: str) -> None:
    async with client.exec(workspace, ["sleep", "1000"]):

        async def noted() -> list[dict]:
            return (await client.examine(workspace))["warnings"]

        (warning,) = await eventually(noted, what="the warning")
        assert warning["command"] == "sleep" and warning["pid"] > 1 and "setsid" in warning["remedy"]
        assert (await client.examine(workspace))["ok"]


async def test_outward_connections_are_noted_and_inner_ones_not(client: EngineClient, workspace: str) -> None:
    listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with listener:
        script = "nc -l -p 7000 > /dev/null & sleep 0.5; (sleep 1000 | nc 127.0.0.1 7000) & (sleep 1000 | nc 198.51.100.1 80) & sleep 1"
        # A stopped listener: its client waits to be accepted.
        script += "; nc -l -p 7001 > /dev/null & sleep 0.5; kill -STOP $!; (sleep 1000 | nc 127.0.0.1 7001) & sleep 1"
        await client.run(workspace, ["sh", "-c", f"({script}) > /dev/null 2>&1 < /dev/null"])
        found = await client.examine(workspace)
    assert found["ok"]
    connections = [warning["message"] for warning in found["warnings"]]
    assert not any("7000" in message or "7001" in message for message in connections), connections


async def test_a_paused_workspace(engine: Engine, client: EngineClient, workspace: str) -> None:
    group = ROOT if layout() == "v2" else ROOT / "freezer"
    state, frozen, thawed = ("cgroup.freeze", "1", "0") if layout() == "v2" else ("freezer.state", "FROZEN", "THAWED")
    file = group / parent_of(engine.run) / workspace / state
    file.write_text(frozen)
    try:
        with pytest.raises(Conflict, match="paused"):
            await client.fork(workspace)
        found = await client.examine(workspace)
        assert not found["ok"] and "paused" in found["blockers"][0]["message"] and found["blockers"][0]["pid"] is None
    finally:
        file.write_text(thawed)
    assert (await client.fork(workspace))["branches"][0]["error"] is None


async def test_a_stopped_workspace(client: EngineClient, workspace: str) -> None:
    await client.run(workspace, ["kill", "-TERM", "1"])

    async def stopped() -> bool:
        return (await client.get(workspace))["state"] == "stopped"

    await eventually(stopped)
    for attempt in (client.examine(workspace), client.fork(workspace)):
        with pytest.raises(Conflict, match="stopped"):
            await attempt
