"""The portal's services stand before workspaces: processor weights on every layout of control groups, and the order of dying."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from engine import cgroups
from engine.cgroups import parent_of
from engine.cli import services
from engine.cli.weights import Standing, Standings
from tests.cli.conftest import Tclone

PREFIX = f"tclone-test-weights-{os.getpid()}"


@pytest.fixture
def process() -> Iterator[int]:
    with subprocess.Popen(["/bin/sleep", "60"]) as child:
        yield child.pid
        child.kill()


@pytest.mark.root
def test_a_service_gets_its_weight_on_this_host_and_leaves_nothing(process: int) -> None:
    standings = Standings(PREFIX, {"stream": Standing(weight=1000)})
    assert standings.give("stream", process) == []
    assert standings.give("engine", process) == []
    root, name, value = (cgroups.ROOT, "cpu.weight", "1000") if cgroups.layout() == "v2" else (cgroups.ROOT / "cpu", "cpu.shares", "10240")
    group = root / f"{PREFIX}-stream"
    assert (group / name).read_text().strip() == value
    assert str(process) in (group / "cgroup.procs").read_text().split()
    standings.close()
    assert group.exists()
    (root / "cgroup.procs").write_text(str(process))
    standings.close()
    assert not group.exists()


def _fake(root: Path, monkeypatch: pytest.MonkeyPatch, layout: str) -> Path:
    """A tree of plain files as the kernel would show it; the group's directory, which is made with its files."""
    monkeypatch.setattr(cgroups, "ROOT", root)
    monkeypatch.setattr(cgroups, "HYBRID_V2", root / "unified")
    group = root / f"{PREFIX}-stream" if layout == "v2" else root / "cpu" / f"{PREFIX}-stream"
    group.mkdir(parents=True)
    names = ("cpu.weight",) if layout == "v2" else ("cpu.shares",)
    for path in (*(group / name for name in (*names, "cgroup.procs")), root / "memory" / "x" if layout != "v2" else root / "cgroup.subtree_control"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    if layout == "v2":
        (root / "cgroup.controllers").write_text("cpu memory")
    else:
        (root / "cpu" / "cpu.shares").touch()
    if layout == "hybrid":
        (root / "unified").mkdir()
        (root / "unified" / "cgroup.controllers").touch()
    return group


@pytest.mark.parametrize(("layout", "name", "value"), [("v2", "cpu.weight", "1000"), ("v1", "cpu.shares", "10240"), ("hybrid", "cpu.shares", "10240")])
def test_each_layout_is_spoken_to_in_its_own_units(
    layout: str, name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: int
) -> None:
    group = _fake(tmp_path, monkeypatch, layout)
    assert cgroups.layout() == layout
    assert Standings(PREFIX, {"stream": Standing(weight=1000)}).give("stream", process) == []
    assert (group / name).read_text() == value
    assert (group / "cgroup.procs").read_text() == str(process)
    if layout == "v2":
        assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"


def test_what_the_host_does_not_permit_is_told_once_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: int) -> None:
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "HYBRID_V2", tmp_path / "unified")
    standings = Standings(PREFIX, {"stream": Standing(weight=1000)})
    (note,) = standings.give("stream", process)
    assert note.startswith("stream runs without a processor weight of its own (cpu.weight 1000): ") and "no cpu controller" in note
    assert standings.give("stream", process) == []
    standings.close()


def test_a_process_that_is_gone_is_no_error() -> None:
    with subprocess.Popen(["/bin/true"]) as child:
        child.wait()
    standings = Standings(PREFIX, {"stream": Standing(weight=1000, oom_score_adj=-500)})
    assert standings.give("stream", child.pid)
    standings.close()


@pytest.mark.root
async def test_up_puts_the_streams_first_and_down_takes_the_groups_away(tclone_up: Tclone, place: Path) -> None:
    assert (await tclone_up("up", "-d", timeout=120)).status == 0
    log = place / "data" / "log" / "supervisor.log"
    root, name, unit = (cgroups.ROOT, "cpu.weight", 1.0) if cgroups.layout() == "v2" else (cgroups.ROOT / "cpu", "cpu.shares", 10.24)
    prefix = parent_of(place / "run")
    found = {}
    for process in psutil.process_iter():
        for service in ("control", "stream"):
            group = root / f"{prefix}-{service}"
            if group.exists() and str(process.pid) in (group / "cgroup.procs").read_text().split():
                found[process.cmdline()[-1]] = (int((group / name).read_text()), int(Path(f"/proc/{process.pid}/oom_score_adj").read_text()))
    expected = {
        f"portal.{service}": (int(standing.weight * unit), standing.oom_score_adj) for service, standing in services.STANDINGS.items()
    }
    if found["portal.stream"][1] == 0:
        # This host gives root no right to protect processes (no CAP_SYS_RESOURCE): then the log says so.
        assert "stream is not protected when memory runs out (oom_score_adj -500)" in await asyncio.to_thread(log.read_text)
        expected["portal.stream"] = (expected["portal.stream"][0], 0)
    assert found == expected
    assert (await tclone_up("down", timeout=90)).status == 0
    assert not [path for path in root.glob(f"{prefix}-*") if path.name.removeprefix(f"{prefix}-") in services.STANDINGS]
