"""Forks that are told what an earlier run found out about the kernel, nothing, or something that is not true of it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from engine.learnt import Learnt
from tests.fidelity import programs
from tests.fidelity.apart import run_apart
from tests.fidelity.harness import Harness, finish, own_mount_namespace, start_programs

pytestmark = [pytest.mark.root]

_PROGRAMS = ["memory_advice", "memory_locked", "memory_guard"]


def _told(known: Learnt, how: str) -> Learnt:
    told = Learnt()
    told.fds = list(known.fds)
    number, _, facts = known.arguments[1].partition(":")
    program, _, bits = facts.partition(",")
    told.arguments = {
        "all": known.arguments,
        "nothing": [],
        # No bit stands for anything any more: believed, it would lose every attribute.
        "other program": ["--learnt", f"{number}:{program[:-1]}{'0' if program[-1] != '0' else '1'}," + ",".join("0" for _ in bits.split(","))],
        "a part": ["--learnt", f"{number}:{facts.rpartition(',')[0]}"],
        "no descriptor": ["--learnt", f"4000:{facts}"],
        "no text": ["--learnt", number],
    }[how]
    return told


async def _fork(how: str, directory: Path) -> None:
    async with Harness(directory) as harness:
        known = harness.learnt
        assert known.arguments, "this kernel tells nothing cheaply"
        harness.learnt = _told(known, how)
        try:
            source = await start_programs(harness, _PROGRAMS, programs.BUILT)
            result = await harness.fork(source)
            assert await finish(result.branches[0], _PROGRAMS, "branch") == dict.fromkeys(_PROGRAMS, "pass")
            assert await finish(source, _PROGRAMS, "source") == dict.fromkeys(_PROGRAMS, "pass")
        finally:
            harness.learnt = known


@pytest.mark.parametrize("how", ["all", "nothing", "other program", "a part", "no descriptor", "no text"])
def test_memory_keeps_its_attributes_whatever_a_fork_is_told(how: str, tmp_path: Path) -> None:
    run_apart("tests.fidelity.test_learnt", how, tmp_path)


if __name__ == "__main__":
    own_mount_namespace()
    asyncio.run(_fork(sys.argv[1], Path(sys.argv[2])))
