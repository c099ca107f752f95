"""A lane that does not come to its first fault leaves nothing on the host either."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.faults.lane import Lane
from tests.fidelity.apart import run_apart
from tests.fidelity.harness import own_mount_namespace
from tests.leaks import cgroups

pytestmark = [pytest.mark.root, pytest.mark.slow]


class _Broken(Lane):
    async def _count(self, kind: str) -> int:
        assert self.source.alive
        raise RuntimeError(f"nothing to count of {kind}")


async def _begin(directory: Path) -> None:
    lane = _Broken(directory)
    with pytest.raises(RuntimeError, match="nothing to count of errno"):
        async with lane:
            pass
    assert not lane.source.alive
    assert [path for path in cgroups() if f"tclone-harness-{os.getpid()}" in path] == []


def test_what_was_begun_is_removed_when_the_rest_fails(tmp_path: Path) -> None:
    run_apart("tests.faults.test_beginning", tmp_path / "lane")


if __name__ == "__main__":
    own_mount_namespace()
    asyncio.run(_begin(Path(sys.argv[1])))
