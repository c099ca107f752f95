"""Negative tests: what a workspace must not be able to do, tried from inside, by its root and by its user, in a source and in a branch."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.client import EngineClient
from tests.engine.support import Engine
from tests.security.conftest import Inside

WORD = b"secret of the host"
# Who tries: root of the workspace, and its ordinary user.
USERS = (None, "user")


async def refused_everywhere(inside: Inside, name: str, *arguments: str, expected: set[int] | None = None) -> None:
    """The attempt fails for each user in each place, with one of the `expected` errors when given."""
    for where, ref in inside.places.items():
        for user in USERS:
            said = await inside.attempt(ref, user, name, *arguments)
            assert said.startswith("refused "), f"{user or 'root'} of the {where}: {name} {arguments} {said}"
            number = int(said.split()[1])
            assert expected is None or number in expected, f"{name}: {errno.errorcode.get(number)}"


def init_of(engine: Engine, ref: str) -> int:
    """The host's pid of a workspace's pid 1, from the engine's own records."""
    with contextlib.closing(sqlite3.connect(f"file:{engine.config.database}?mode=ro", uri=True)) as records:
        (record,) = records.execute("SELECT record FROM workspaces WHERE id = ?", (ref,)).fetchone()
    return json.loads(record)["pid"]


async def test_files_of_the_host_are_not_there(inside: Inside, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(WORD)
    tmp_path.chmod(0o755)
    await refused_everywhere(inside, "host_file", str(secret))
    await refused_everywhere(inside, "host_file", "/etc/shadow")
    await refused_everywhere(inside, "handle_of_host", expected={errno.EPERM})


async def test_nothing_is_mounted_or_made_writable(inside: Inside) -> None:
    await refused_everywhere(inside, "mount", expected={errno.EPERM})
    await refused_everywhere(inside, "remount", expected={errno.EPERM})
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/kernel/modprobe", "/sys/kernel/uevent_helper"):
        await refused_everywhere(inside, "write", path, expected={errno.EROFS, errno.EACCES, errno.ENOENT})


def disks() -> list[tuple[str, str, str]]:
    """The host's block devices."""
    numbers = [path.read_text().strip().split(":") for path in Path("/sys/block").glob("*/dev")]
    return [("b", major, minor) for major, minor in numbers]


async def test_devices_of_the_host_are_not_opened(inside: Inside) -> None:
    """Memory, ports, the kernel's log, the console, loop control, KVM, and the disks; a root may make nodes, and can open none of these."""
    assert disks(), "a host without disks would prove little"
    for device in [*disks()[:4], ("c", "1", "1"), ("c", "1", "4"), ("c", "1", "11"), ("c", "5", "1"), ("c", "10", "237"), ("c", "10", "232")]:
        await refused_everywhere(inside, "device", *device, expected={errno.EPERM, errno.EACCES})
    await refused_everywhere(inside, "device_by_any_call", "5", "1", expected={errno.EPERM, errno.EACCES, errno.ENOSYS})
    # What programs need is there, by a node of one's own, too.
    for ref in inside.places.values():
        assert await inside.attempt(ref, None, "device", "c", "1", "3") == "done"
        assert await inside.attempt(ref, None, "device_by_any_call", "1", "3") == "done"


async def test_processes_outside_are_out_of_reach(inside: Inside, engine: Engine) -> None:
    sleeper = await asyncio.create_subprocess_exec("sleep", "1000")
    try:
        for pid in (sleeper.pid, os.getpid(), init_of(engine, inside.sibling)):
            for attempt in ("trace", "read_memory", "signal"):
                await refused_everywhere(inside, attempt, str(pid), expected={errno.ESRCH})
            await refused_everywhere(inside, "enter", str(pid), expected={errno.ENOENT})
    finally:
        sleeper.kill()
        await sleeper.wait()


@pytest.mark.parametrize("attempt", ["module", "kexec", "restart", "swap", "set_clock", "kernel_log"])
async def test_the_machine_is_not_the_workspaces_to_command(inside: Inside, attempt: str) -> None:
    """ENOSYS: a kernel that has no such call at all."""
    await refused_everywhere(inside, attempt, expected={errno.EPERM, errno.ENOSYS})


@pytest.mark.parametrize("attempt", ["add_key", "user_keyring", "request_key"])
async def test_keyrings_of_the_host_are_closed(inside: Inside, attempt: str) -> None:
    """They have no namespace: a key of one workspace's root would be every other one's and the host's."""
    await refused_everywhere(inside, attempt, expected={errno.EPERM})


@pytest.mark.parametrize("attempt", ["trace_kernel", "watch_machine"])
async def test_the_kernel_is_not_traced(inside: Inside, attempt: str) -> None:
    await refused_everywhere(inside, attempt, expected={errno.EPERM, errno.EACCES})


async def test_the_kernels_own_faults_are_not_held_up(inside: Inside) -> None:
    """userfaultfd with faults of the kernel is what exploits pause it by. Where the host's operator has opened it to everybody, it is open."""
    assert Path("/proc/sys/vm/unprivileged_userfaultfd").read_text().strip() == "0", "this host lets every process do it"
    await refused_everywhere(inside, "kernel_faults", expected={errno.EPERM})


async def test_io_uring_is_said_not_to_exist(inside: Inside) -> None:
    await refused_everywhere(inside, "ring", expected={errno.ENOSYS})


@pytest.fixture
async def server() -> AsyncIterator[int]:
    """A server on every address of the host that says the word to whoever comes; its port. A workspace must not come."""
    visitors: list[object] = []

    def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visitors.append(writer.get_extra_info("peername"))
        writer.write(WORD)
        writer.close()

    listening = await asyncio.start_server(greet, "0.0.0.0", 0)
    yield listening.sockets[0].getsockname()[1]
    listening.close()
    assert visitors == []


def addresses_of_the_host() -> list[str]:
    """Its addresses in the networks that it is in."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return []
        return [probe.getsockname()[0]]


async def test_servers_of_the_host_and_the_metadata_address_are_not_reached(inside: Inside, server: int) -> None:
    for address in ("127.0.0.1", "169.254.169.254", *addresses_of_the_host()):
        await refused_everywhere(inside, "reach", address, str(server))
    await refused_everywhere(inside, "reach", "169.254.169.254", "80")


async def test_servers_of_a_sibling_are_not_reached(inside: Inside) -> None:
    """Every workspace has the same addresses, so what is at them is one's own; the desktop's port of another one is nowhere."""
    script = "while true; do echo secret of a sibling | nc -l -p 3000; done"
    serving = asyncio.create_task(inside.client.run(inside.sibling, ["sh", "-c", script]))
    try:
        # The sibling itself reaches it: the server is there.
        status, out, _ = await inside.client.run(inside.sibling, ["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do nc 127.0.0.1 3000 </dev/null | grep secret && exit 0; sleep 0.3; done; exit 1"])
        assert status == 0 and b"secret of a sibling" in out
        status, out, _ = await inside.client.run(inside.places["source"], ["sh", "-c", "cat /proc/net/fib_trie"])
        words = out.decode().split()
        addresses = sorted({word for word in words if word.count(".") == 3 and not word.endswith((".0", ".255")) and word != "0.0.0.0"})
        assert addresses
        for address in addresses:
            await refused_everywhere(inside, "reach", address, "3000")
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_a_fork_bomb_stays_in_its_workspace(client: EngineClient, inside: Inside) -> None:
    bomb = (await client.launch("tiny", name="bomb", pids=200, wait=True))["id"]
    burst = asyncio.create_task(client.run(bomb, ["sh", "-c", "f() { f | f & f; }; f"]))
    await asyncio.sleep(3)
    stats = await client.stats(bomb)
    assert stats["processes"] <= 200
    status, out, _ = await client.run(inside.sibling, ["echo", "alive"])
    assert (status, out) == (0, b"alive\n")
    await client.remove(bomb)
    burst.cancel()
    await asyncio.gather(burst, return_exceptions=True)
