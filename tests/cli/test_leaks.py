"""The leak counters themselves: each kind of leftover is seen, and an honest test passes."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.leaks import LeakCounter

pytestmark = pytest.mark.root


@pytest.fixture
def counter(tmp_path: Path) -> LeakCounter:
    found = LeakCounter(whole_host=False)
    found.own(tmp_path)
    found.start()
    return found


@contextmanager
def _undone_by(*argv: str | Path) -> Iterator[None]:
    try:
        yield
    finally:
        subprocess.run([str(word) for word in argv], check=True)


def test_nothing_done_is_no_leak(counter: LeakCounter, tmp_path: Path) -> None:
    subprocess.run(["true"], check=True)
    (tmp_path / "file").write_text("x")
    counter.check(within=0)


def test_a_daemon_that_left_its_session_is_seen(counter: LeakCounter) -> None:
    starter = subprocess.run(
        ["sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & echo $!"], check=True, capture_output=True, text=True
    )
    pid = int(starter.stdout)
    try:
        while Path(f"/proc/{pid}/comm").read_text() != "sleep\n":
            time.sleep(0.01)
        with pytest.raises(AssertionError, match=f"process {pid} sleep"):
            counter.check(within=0)
    finally:
        os.kill(pid, 9)
    counter.check(within=20)


def test_a_mount_is_seen(counter: LeakCounter, tmp_path: Path) -> None:
    target = tmp_path / "mounted"
    target.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tclone-test", str(target)], check=True)
    with _undone_by("umount", target), pytest.raises(AssertionError, match=f"mount {target} <- tmpfs"):
        counter.check(within=0)
    counter.check(within=20)


def test_a_network_namespace_held_only_by_a_mount_is_seen(counter: LeakCounter, tmp_path: Path) -> None:
    target = tmp_path / "netns"
    target.touch()
    subprocess.run(["unshare", f"--net={target}", "true"], check=True)
    with _undone_by("umount", target), pytest.raises(AssertionError, match=r"network namespace net:\[\d+\], held by"):
        counter.check(within=0)
    counter.check(within=20)


def test_a_loop_device_is_seen(counter: LeakCounter, tmp_path: Path) -> None:
    backing = tmp_path / "disk.img"
    backing.write_bytes(b"\0" * 4096)
    device = subprocess.run(
        ["losetup", "--find", "--show", str(backing)], check=True, capture_output=True, text=True
    ).stdout.strip()
    with _undone_by("losetup", "-d", device), pytest.raises(AssertionError, match="loop device"):
        counter.check(within=0)
    counter.check(within=20)


def test_a_listening_port_is_seen(counter: LeakCounter) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with pytest.raises(AssertionError, match=f"listening port {server.getsockname()[1]}"):
            counter.check(within=0)
    counter.check(within=20)


def test_a_descriptor_is_seen(counter: LeakCounter) -> None:
    extra = os.open("/dev/null", os.O_RDONLY)
    try:
        with pytest.raises(AssertionError, match="1 descriptors of process .*/dev/null"):
            counter.check(within=0)
    finally:
        os.close(extra)
    counter.check(within=0)


def test_what_others_on_the_host_make_is_not_ours(counter: LeakCounter, tmp_path_factory: pytest.TempPathFactory) -> None:
    foreign = tmp_path_factory.mktemp("elsewhere")
    subprocess.run(["mount", "-t", "tmpfs", "tclone-test", str(foreign)], check=True)
    with _undone_by("umount", foreign):
        counter.check(within=0)
