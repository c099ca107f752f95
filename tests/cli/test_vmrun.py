"""`tclone vmrun`: machines and snapshots as OSWorld's DesktopEnv asks for them, and failures that it does not look at."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from tests.cli.conftest import Tclone
from tests.cli.fake_engine import FakeEngine

PATH = "/branches/desk"


@pytest.fixture
async def vmrun(tclone: Tclone, place: Path) -> AsyncIterator[Tclone]:
    tclone.environment["XDG_STATE_HOME"] = str(place / "state")
    yield tclone


@pytest.fixture
async def answering(engine: FakeEngine) -> AsyncIterator[None]:
    """What answers at the loopback port of every workspace."""

    async def platform(_: web.Request) -> web.Response:
        return web.Response(text="Linux")

    app = web.Application()
    app.router.add_get("/platform", platform)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    engine.osworld_port = runner.addresses[0][1]
    yield
    await runner.cleanup()


async def test_a_revert_forks_the_snapshot_and_the_path_stays(vmrun: Tclone, engine: FakeEngine, answering: None) -> None:
    engine.add("desk", desktop=True, osworld=engine.osworld_port, ports={"9222": 45000})
    engine.add("headless")
    assert (await vmrun("vmrun", "-T", "ws", "list")).out == f"Total running VMs: 1\n{PATH}\n"
    assert (await vmrun("vmrun", "-T", "ws", "snapshot", PATH, "init_state")).status == 0
    assert [(one["id"], one["label"], one["osworld"]) for one in engine.workspaces.values()][2:] == [("ws-3", "init_state: snapshot of desk", None)]
    assert (await vmrun("vmrun", "listSnapshots", PATH)).out == "Total snapshots: 1\ninit_state\n"
    assert (await vmrun("vmrun", "revertToSnapshot", PATH, "init_state")).status == 0
    # What a snapshot shows does not change: its programs stand still.
    assert [one["paused"] for one in engine.workspaces.values()] == [False, True, False]
    # The machine is another workspace now, forked from the snapshot; the one before it is gone.
    assert {one["id"]: one["parent"] for one in engine.workspaces.values()} == {"ws-2": None, "ws-3": "ws-1", "ws-4": "ws-3"}
    assert (await vmrun("vmrun", "list")).out == f"Total running VMs: 1\n{PATH}\n"
    done = await vmrun("vmrun", "-T", "ws", "getGuestIPAddress", PATH + ".vmx", "-wait")
    assert done.out == f"127.0.0.1:{engine.osworld_port}:45222:0:0\n"
    # Taken anew under the same name, a snapshot takes the place of the one before.
    assert (await vmrun("vmrun", "snapshot", PATH, "init_state")).status == 0
    assert {one["id"]: one["parent"] for one in engine.workspaces.values()} == {"ws-2": None, "ws-4": "ws-3", "ws-5": "ws-4"}
    assert (await vmrun("vmrun", "stop", PATH)).status == 0 and "ws-4" not in engine.workspaces
    assert (await vmrun("vmrun", "list")).out == "Total running VMs: 0\n"
    assert (await vmrun("vmrun", "start", PATH, "nogui")).status == 0 and engine.workspaces["ws-6"]["label"] == "machine desk"
    assert (await vmrun("vmrun", "deleteSnapshot", PATH, "init_state")).status == 0 and set(engine.workspaces) == {"ws-2", "ws-6"}


async def test_a_revert_that_waits_tells_the_new_address_before_the_old_machine_goes(vmrun: Tclone, engine: FakeEngine, answering: None) -> None:
    engine.add("desk", desktop=True, osworld=engine.osworld_port, ports={"9222": 45000})
    assert (await vmrun("vmrun", "snapshot", PATH, "init_state")).status == 0
    engine.errors["DELETE /v1/workspaces/ws-1"] = (503, "unavailable", "the disk is busy")
    done = await vmrun("vmrun", "revertToSnapshot", PATH, "init_state", "-wait")
    assert done.out == f"127.0.0.1:{engine.osworld_port}:45222:0:0\n" and done.status == 9 and "the disk is busy" in done.err
    # The machine is as it should be: who asks for its address is told.
    del engine.errors["DELETE /v1/workspaces/ws-1"]
    assert (await vmrun("vmrun", "getGuestIPAddress", PATH, "-wait")).out == done.out
    failed = await vmrun("vmrun", "revertToSnapshot", PATH, "absent", "-wait")
    assert (failed.status, failed.out) == (4, "")


async def test_whoever_asks_for_the_address_hears_of_what_failed(vmrun: Tclone, engine: FakeEngine, answering: None) -> None:
    engine.add("desk", desktop=True, osworld=engine.osworld_port)
    assert (await vmrun("vmrun", "revertToSnapshot", PATH, "absent")).status == 4
    told = await vmrun("vmrun", "getGuestIPAddress", PATH, "-wait")
    assert told.status == 1 and not told.out and "the last command on desk failed: vmrun revertToSnapshot absent: desk has no snapshot absent" in told.err
    # Once; meanwhile it may have been set right.
    assert (await vmrun("vmrun", "getGuestIPAddress", PATH)).status == 0
    # What could not be started again is not stopped.
    refused = await vmrun("vmrun", "stop", PATH)
    assert refused.status == 5 and "no snapshot to be started from" in refused.err and "ws-1" in engine.workspaces
    engine.failed_branch = 0
    engine.errors["POST /v1/workspaces/ws-1/fork"] = (422, "unsupported", "pid 7 is in the way")
    assert (await vmrun("vmrun", "snapshot", PATH, "init_state")).status == 6
    assert "pid 7 is in the way" in (await vmrun("vmrun", "getGuestIPAddress", PATH)).err


async def test_the_address_waits_for_what_is_under_way(vmrun: Tclone, engine: FakeEngine, answering: None, place: Path) -> None:
    engine.add("desk", desktop=True, osworld=engine.osworld_port)
    first = place / "state" / "tclone" / "vmrun" / "desk"
    first.parent.mkdir(parents=True)
    first.touch()
    # A revert that takes its time holds the machine.
    holder = subprocess.Popen(["flock", str(first), "sh", "-c", "echo held; read line"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin is not None and holder.stdout is not None
    assert await asyncio.to_thread(holder.stdout.readline) == b"held\n"
    asking = asyncio.create_task(vmrun("vmrun", "getGuestIPAddress", PATH, "-wait"))
    await asyncio.wait({asking}, timeout=1.5)
    assert not asking.done()
    engine.workspaces["ws-1"]["osworld"] = None
    engine.add("desk-clone", desktop=True, label="machine desk", osworld=engine.osworld_port, ports={"9222": 45333})
    holder.communicate(b"\n")
    assert (await asking).out == f"127.0.0.1:{engine.osworld_port}:45333:0:0\n"


class Session:
    """`tclone vmrun session` at work."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, *words: str, number: object = 1) -> dict[str, object]:
        return await self.line(json.dumps({"number": number, "words": words}))

    async def line(self, text: str) -> dict[str, object]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(text.encode() + b"\n")
        async with asyncio.timeout(30):
            return json.loads(await self._process.stdout.readline())

    async def end(self) -> tuple[int, str]:
        """Its status and what it said to stderr."""
        async with asyncio.timeout(30):
            _, err = await self._process.communicate(b"")
        return self._process.returncode or 0, err.decode()


@pytest.fixture
async def session(vmrun: Tclone) -> AsyncIterator[Session]:
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(*vmrun.argv("vmrun", "session"), env=vmrun.environment, **pipes)
    made = Session(process)
    yield made
    if process.returncode is None:
        await made.end()


async def test_one_process_carries_out_many_commands(session: Session, engine: FakeEngine, answering: None) -> None:
    engine.add("desk", desktop=True, osworld=engine.osworld_port, ports={"9222": 45000})
    assert await session.ask("list", number=5) == {"number": 5, "output": f"Total running VMs: 1\n{PATH}"}
    assert await session.ask("snapshot", PATH, "init_state", number=6) == {"number": 6, "output": ""}
    absent = await session.ask("revertToSnapshot", PATH, "absent", "-wait", number=7)
    assert absent["number"] == 7 and absent["error"]["code"] == "not_found" and "has no snapshot absent" in absent["error"]["message"]  # type: ignore[index]
    for wrong in ("", "{", "[]", '{"number": 1}', '{"number": "1", "words": []}', '{"number": 1, "words": ["list", 2]}'):
        refused = await session.line(wrong)
        assert refused["number"] is None and refused["error"]["code"] == "bad_request", wrong  # type: ignore[index]
    # The client looks at once at what it was given: what the machine was before goes a moment later, and two of them do not stay.
    for number in (1, 2, 3):
        assert await session.ask("revertToSnapshot", PATH, "init_state", "-wait", number=number) == {"number": number, "output": f"127.0.0.1:{engine.osworld_port}:45222:0:0"}
        assert len(engine.workspaces) <= 4
    assert await session.ask("stop", PATH) == {"number": 1, "output": ""}
    assert set(engine.workspaces) == {"ws-2"}
    assert await session.end() == (0, "")


async def test_a_session_ends_when_all_is_discarded_and_tells_what_could_not_be(session: Session, engine: FakeEngine, answering: None) -> None:
    engine.add("desk", desktop=True, osworld=engine.osworld_port, ports={"9222": 45000})
    await session.ask("snapshot", PATH, "init_state")
    engine.errors["DELETE /v1/workspaces/ws-1"] = (503, "unavailable", "the disk is busy")
    assert "error" not in await session.ask("revertToSnapshot", PATH, "init_state", "-wait")
    async with asyncio.timeout(30):
        while "error" not in (told := await session.ask("list")):
            await asyncio.sleep(0.1)
    assert told["error"] == {"code": "unavailable", "message": "the disk is busy"}
    assert "error" not in await session.ask("list"), "it is told once"
    del engine.errors["DELETE /v1/workspaces/ws-1"]
    assert "error" not in await session.ask("revertToSnapshot", PATH, "init_state", "-wait")
    assert "ws-3" in engine.workspaces
    assert await session.end() == (0, "")
    assert "ws-3" not in engine.workspaces and "ws-4" in engine.workspaces


@pytest.mark.parametrize("words", [
    [], ["start"], ["list", "more"], ["start", "/elsewhere/desk"], ["start", "/branches/../etc"], ["start", "/branches/UP"], ["snapshot", PATH], ["snapshot", PATH, "a b"], ["fly", PATH],
])  # fmt: skip
async def test_what_it_does_not_know(vmrun: Tclone, engine: FakeEngine, words: list[str]) -> None:
    done = await vmrun("vmrun", *words)
    assert done.status == 2 and done.err.startswith("tclone: ") and not engine.requests


async def test_the_program_of_that_name(vmrun: Tclone, engine: FakeEngine, tmp_path: Path) -> None:
    engine.add("desk", desktop=True, osworld=1)
    for _ in range(2):
        assert (await vmrun("vmrun", "install", str(tmp_path / "bin"))).out == f"{tmp_path}/bin/vmrun\n"
    done = await asyncio.to_thread(subprocess.run, [tmp_path / "bin" / "vmrun", "-T", "ws", "list"], env=vmrun.environment, capture_output=True, text=True, check=True)
    assert PATH in done.stdout
    (tmp_path / "bin" / "vmrun").write_text("#!/bin/sh\n# VMware's\n")
    refused = await vmrun("vmrun", "install", str(tmp_path / "bin"))
    assert refused.status == 5 and (tmp_path / "bin" / "vmrun").read_text().endswith("VMware's\n")
