"""Mounts that the host made in a workspace's own mount namespace, where its programs may make none: a branch has its own of each."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fidelity.apart import run_apart
from tests.fidelity.harness import Harness, own_mount_namespace
from tests.fidelity.livefork import Container

pytestmark = [pytest.mark.root]

_MOUNTS = (
    ("tmpfs of the host", ("-t", "tmpfs", "-o", "size=1m,mode=750", "memory", "/mnt")),
    ("a tmpfs inside it", ("-t", "tmpfs", "-o", "ro", "inner", "/mnt/inner")),
    ("a bind mount", ("--bind", "/etc", "/mnt/etc")),
    ("a mount that hides another", ("-t", "tmpfs", "over", "/mnt/inner")),
)


def _inside(container: Container, *argv: str) -> str:
    command = ["nsenter", "-t", str(container.pid), "-m", "--", "/bin/busybox", *argv]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _described(container: Container) -> list[str]:
    """Place, root and flags of each mount; device numbers and the layers of the root differ."""
    lines = Path(f"/proc/{container.pid}/mountinfo").read_text().splitlines()
    return sorted(" ".join([*line.split()[3:6], line.partition(" - ")[2].split()[0]]) for line in lines)


async def _fork(directory: Path) -> None:
    async with Harness(directory) as harness:
        image = harness.import_root(None, [])
        source = await harness.launch(image, ["/bin/busybox", "sleep", "1000"])
        for path in ("/mnt", "/etc/sub"):
            _inside(source, "mkdir", "-p", path)
        for number, (_, arguments) in enumerate(_MOUNTS):
            _inside(source, "mount", *arguments)
            if number == 0:
                _inside(source, "mkdir", "/mnt/inner", "/mnt/etc")
                _inside(source, "sh", "-c", "echo content >/mnt/file")
        assert all(place in "\n".join(_described(source)) for place in ("/mnt/inner", "/mnt/etc"))
        branch = (await harness.fork(source)).branches[0]
        assert _described(branch) == _described(source)
        assert _inside(branch, "cat", "/mnt/file") == "content\n"
        assert _inside(branch, "ls", "/mnt/etc") == _inside(source, "ls", "/mnt/etc")
        _inside(branch, "sh", "-c", "echo branch >/mnt/file")
        _inside(branch, "umount", "/mnt/inner")
        assert _inside(source, "cat", "/mnt/file") == "content\n"
        inner = [line for line in Path(f"/proc/{branch.pid}/mountinfo").read_text().splitlines() if " /mnt/inner " in line]
        assert len(inner) == 1 and " - tmpfs inner ro" in inner[0], inner
        again = (await harness.fork(branch)).branches[0]
        assert _inside(again, "cat", "/mnt/file") == "branch\n"


def test_what_the_host_mounted_is_in_the_branch_and_apart(tmp_path: Path) -> None:
    run_apart("tests.fidelity.test_mounts", tmp_path / "harness")


if __name__ == "__main__":
    own_mount_namespace()
    asyncio.run(_fork(Path(sys.argv[1])))
