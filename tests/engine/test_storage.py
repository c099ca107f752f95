"""The pool goes away when it is closed, whoever has a copy of its mount."""

from __future__ import annotations

import subprocess
from pathlib import Path

from engine.storage import Storage
from tests.engine.support import eventually
from tests.leaks import loop_devices


async def test_no_private_mount_namespace_keeps_a_closed_pool(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.open()
    image = str(storage.image)
    with subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 1000"], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None and other.stdout.read(1) == b"\n"
            mounts = Path(f"/proc/{other.pid}/mountinfo")
            assert str(storage.pool) in mounts.read_text() and image in loop_devices().values()
            storage.close()
            assert str(storage.pool) not in mounts.read_text()
            await eventually(lambda: image not in loop_devices().values(), what="the end of the loop device")
            storage.open()
            assert (storage.pool / "workspaces").is_dir()
        finally:
            storage.close()
            other.kill()
    await eventually(lambda: image not in loop_devices().values(), what="the end of the loop device")
