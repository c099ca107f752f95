"""The options of the host's v2 tree of cgroups (nsdelegate, memory_recursiveprot) are its own: no engine, workspace or fork changes them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cgroups import HYBRID_V2, ROOT, layout
from engine.client import EngineClient
from tests.engine.support import IMAGE, Engine

_TREE = ROOT if layout() == "v2" else HYBRID_V2
# Of no effect beside v1, where memory belongs to another tree; on a v2 host it is what is usual.
_OPTION = "memory_recursiveprot"
# What an engine does on a host where the tree is mounted nowhere that it can see; it prints whether it sees the whole tree.
_NOWHERE = """
import os, sys
from engine import cgroups, syscalls
syscalls.unshare(syscalls.CLONE_NEWNS)
syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
syscalls.umount(sys.argv[1])
assert cgroups.layout() == "v1", cgroups.layout()
groups = cgroups.Cgroups("tclone-nowhere")
groups.open()
print(sys.argv[2] in os.listdir(groups._beside_root()))
"""


def _options() -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return next(kind.split(" ")[2].split(",") for line in lines if (kind := line.partition(" - ")[2]).startswith("cgroup2 "))


def _set_options(options: list[str]) -> None:
    subprocess.run(["mount", "-o", ",".join(["remount", *options]), str(_TREE)], check=True)


@pytest.fixture
def marked_tree() -> Iterator[list[str]]:
    """The host's tree with one option more than it had; it gets back what it had."""
    before = [option for option in _options() if option not in ("rw", "ro")]
    _set_options([*before, _OPTION])
    try:
        yield sorted({*before, "rw", _OPTION})
    finally:
        _set_options(before)


async def test_an_engine_its_workspaces_and_forks_leave_them_alone(engine: Engine, client: EngineClient, marked_tree: list[str]) -> None:
    await engine.stop()
    await engine.start()
    source = (await client.launch(IMAGE, name="src", wait=True))["id"]
    branch = (await client.fork(source))["branches"][0]
    assert branch["error"] is None
    for ref in (branch["id"], source):
        await client.remove(ref)
    assert sorted(_options()) == marked_tree


@pytest.mark.skipif(layout() != "hybrid", reason="elsewhere there is one place where the tree can be")
def test_nor_does_one_that_finds_the_tree_nowhere(marked_tree: list[str]) -> None:
    group = HYBRID_V2 / "tclone-somebody"
    group.mkdir()
    try:
        done = subprocess.run([sys.executable, "-c", _NOWHERE, str(HYBRID_V2), group.name], capture_output=True, text=True, check=False)
    finally:
        group.rmdir()
    assert (done.stdout, done.stderr) == ("True\n", "")
    assert sorted(_options()) == marked_tree
