"""Root of a workspace cannot lift the limits it was given, nor see or change the host's control groups."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import time
from pathlib import Path

import pytest

from engine import cgroups
from engine.cgroups import HYBRID_V2, ROOT, Cgroups, Limits, layout
from engine.client import EngineClient
from engine.errors import BadRequest, EngineError
from engine.cgroups import parent_of
from tests.engine import guest
from tests.engine.support import IMAGE, Engine, eventually, leftovers, pids_of

PIDS = 40
MEMORY = 96 << 20
MORE_PIDS = "300"
MORE_MIB = "400"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return guest.build("groups", tmp_path_factory.mktemp("guest"))


def limits_of(engine: Engine, identity: str) -> dict[str, int]:
    """The limits that the host's files say, at the group that the engine sets."""
    group = Path(parent_of(engine.run)) / identity
    memory = ROOT / group / "memory.max" if layout() == "v2" else ROOT / "memory" / group / "memory.limit_in_bytes"
    pids = (ROOT if layout() == "v2" else ROOT / "pids") / group / "pids.max"
    return {"memory": int(memory.read_text()), "pids": int(pids.read_text())}


def roots() -> set[str]:
    """What lies directly in the root of each hierarchy."""
    tops = [ROOT] if layout() == "v2" else [path for path in ROOT.iterdir() if path.is_dir()]
    return {f"{top}/{entry.name}" for top in tops for entry in os.scandir(top) if entry.is_dir()}


def check(printed: str, name: str) -> None:
    """What the attack printed: it mounted something, saw no group of others, and came against its limits."""
    assert "mounted v2" in printed or layout() == "none"
    assert "lifted " in printed or layout() == "v2", printed
    assert "shows" not in printed, printed
    assert printed.count(f"/{name}") == 0
    made = re.search(r"^processes (\d+)$", printed, re.M)
    assert made and 0 < int(made[1]) < PIDS, printed
    assert f"memory {signal.SIGKILL:d}\n" in printed, printed


async def test_a_workspace_with_all_the_processes_that_it_may_have_is_forked(engine: Engine, client: EngineClient) -> None:
    """Orphans in sessions, and in groups, whose leaders have ended: what makes them in the branch comes on top of their number."""
    source = (await client.launch(IMAGE, name="src", memory=MEMORY, pids=PIDS, wait=True))["id"]
    # The one that starts them stays, and makes one more when one was ended.
    session = "setsid sh -c 'sleep 1000 & exit' 2>/dev/null"
    group = "setsid sh -mc '(sleep 1000 & sleep 1000 &) & wait; exit' 2>/dev/null"
    script = f"while :; do {session}; {group}; sleep 0.02; done"
    assert (await client.run(source, ["sh", "-c", f"setsid sh -c {shlex.quote(script)} >/dev/null 2>&1 </dev/null &"]))[0] == 0
    await eventually(lambda: len(pids_of(engine, source)) >= PIDS - 2)
    for name in ("one", "two", "three"):
        (branch,) = (await client.fork(source, name=name))["branches"]
        assert branch["error"] is None
        assert limits_of(engine, branch["id"]) == {"memory": MEMORY, "pids": PIDS}
        assert len(pids_of(engine, branch["id"])) >= PIDS - 6
        await client.remove(branch["id"])


async def test_limits_hold_against_root_with_namespaces_of_its_own(engine: Engine, client: EngineClient, program: Path) -> None:
    """In a source and in a branch; as a child of pid 1 and as a command that was run; also what it made is gone with the workspace."""
    source = (await client.launch(IMAGE, name="src", memory=MEMORY, pids=PIDS, wait=True))["id"]
    branch = (await client.fork(source))["branches"][0]
    assert branch["error"] is None
    given = {"memory": MEMORY, "pids": PIDS}
    for ref in (source, branch["id"]):
        assert limits_of(engine, ref) == given
        name = f"stray-{ref}"
        path = await guest.install(client, ref, program)
        status, out, err = await client.run(ref, [path, name, MORE_PIDS, MORE_MIB])
        assert status == 0, err
        check(out.decode(), name)
        assert limits_of(engine, ref) == given
        assert not any(group.endswith(f"/{name}") for group in roots())
        await client.remove(ref)
        assert leftovers(engine, ref) == []


def cpus_of(engine: Engine, identity: str) -> float | None:
    """The same for processors; None without a limit."""
    group = Path(parent_of(engine.run)) / identity
    if layout() == "v2":
        quota, period = (ROOT / group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    top = ROOT / "cpu" / group
    quota = int((top / "cpu.cfs_quota_us").read_text())
    return None if quota == -1 else quota / int((top / "cpu.cfs_period_us").read_text())


async def test_processors_are_limited_in_source_and_branch(engine: Engine, client: EngineClient) -> None:
    """However many of its programs would like to run; and none waits long for its next turn."""
    made = await client.launch(IMAGE, name="src", cpus=0.4, wait=True)
    assert made["cpu_limit"] == 0.4
    source = made["id"]
    await client.run(source, ["sh", "-c", "for i in 1 2 3; do (while :; do :; done) & done"])
    branch = (await client.fork(source))["branches"][0]
    assert branch["error"] is None and (await client.get(branch["id"]))["cpu_limit"] == 0.4
    for ref in (source, branch["id"]):
        assert cpus_of(engine, ref) == 0.4
        before, began = (await client.stats(ref))["cpu_seconds"], time.monotonic()
        await asyncio.sleep(2)
        used, passed = (await client.stats(ref))["cpu_seconds"] - before, time.monotonic() - began
        assert 0 < used <= 0.45 * passed + 0.05, (ref, used, passed)
    free = (await client.launch(IMAGE, name="free", wait=True))["id"]
    assert (await client.get(free))["cpu_limit"] is None
    for ref in (source, branch["id"], free):
        await client.remove(ref)
        assert leftovers(engine, ref) == []
    for wrong in (0, 0.01, 2000, "1", True, float("nan")):
        with pytest.raises(BadRequest) as refused:
            await client.launch(IMAGE, cpus=wrong)  # type: ignore[arg-type]
        assert refused.value.field == "cpus"


async def _told(client: EngineClient, ref: str) -> bytes:
    """What the program has written when it is done. No command can be started while it has all the processes that there may be."""
    try:
        status, out, _ = await client.run(ref, ["cat", "/tmp/early"])
    except EngineError:
        return b""
    return out if status == 0 and any(line.startswith(b"done") for line in out.splitlines()) else b""


async def test_children_of_pid_1_are_no_freer_than_commands(engine: Engine, client: EngineClient, program: Path) -> None:
    script = f"until [ -x /root/groups ]; do sleep 0.05; done; sleep 0.2; /root/groups early {MORE_PIDS} {MORE_MIB} > /tmp/early 2>&1; sleep 100000"
    source = (await client.launch(IMAGE, name="src", memory=MEMORY, pids=PIDS, command=["sh", "-c", script], wait=True))["id"]
    branch = (await client.fork(source))["branches"][0]
    assert branch["error"] is None
    for ref in (source, branch["id"]):
        await guest.install(client, ref, program)
        told = await eventually(lambda: _told(client, ref), what=f"the end of the program in {ref}")
        check(told.decode(), "early")
        await client.remove(ref)
        assert leftovers(engine, ref) == []


@pytest.mark.skipif(layout() != "hybrid", reason="elsewhere the workspace's groups are all in the trees that crun uses")
async def test_every_process_is_in_a_group_of_the_tree_beside(engine: Engine, client: EngineClient) -> None:
    source = (await client.launch(IMAGE, name="src", wait=True))["id"]
    branch = (await client.fork(source))["branches"][0]["id"]
    for ref in (source, branch):
        async with client.exec(ref, ["sleep", "1000"]):
            group = f"/{parent_of(engine.run)}/{ref}/{cgroups.INSIDE}"
            pids = pids_of(engine, ref)
            assert len(pids) >= 2
            for pid in pids:
                lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
                assert f"0::{group}" in lines and all(line.endswith(group) for line in lines), lines


async def test_groups_of_a_crashed_engine_are_removed(engine: Engine, client: EngineClient) -> None:
    """Groups that no workspace owns, in all trees, with a group below that someone made."""
    groups = Cgroups(parent_of(engine.run))
    groups.open()
    try:
        groups.prepare("ws-4711", Limits(MEMORY, PIDS))
    finally:
        groups.close()
    tree = HYBRID_V2 if layout() == "hybrid" else ROOT if layout() == "v2" else ROOT / "pids"
    (tree / parent_of(engine.run) / "ws-4711" / "made").mkdir()
    await engine.stop(signal.SIGKILL)
    await engine.start()
    assert leftovers(engine, "ws-4711") == []


def test_limits_need_the_controllers_passed_down_in_v2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On files that stand for a v2 tree: on a hybrid host there is none with controllers."""
    for group in (tmp_path, tmp_path / "engine"):
        group.mkdir(exist_ok=True)
        (group / "cgroup.subtree_control").write_text("cpu pids\n" if group == tmp_path else "")
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    groups = Cgroups("engine")
    group = tmp_path / "engine" / "ws-1"
    group.mkdir()
    (group / "pids.max").write_text("max\n")
    groups.prepare("ws-1", Limits(MEMORY, None))
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory"
    assert (tmp_path / "engine" / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert (group / "memory.max").read_text() == str(MEMORY) and (group / "pids.max").read_text() == "max"
    assert groups.entry("ws-1") is None and groups.oci_path("ws-1") == "/engine/ws-1/inside"
