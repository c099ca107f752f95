"""Workspaces that work against the engine: their paths lead nowhere outside, their processes are as large and as oddly named as they like."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

import psutil
import pytest

from engine.client import EngineClient
from engine.errors import BadRequest, EngineError, Internal, LimitReached
from tests.engine import guest
from tests.engine.support import IMAGE, Engine, eventually

SECRET = b"a line of the host's own file"
RACE_SECONDS = 12.0


@pytest.fixture
async def workspace(client: EngineClient) -> str:
    return (await client.launch(IMAGE, name="src", memory=3 << 30, pids=8000, wait=True))["id"]


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A directory of the host that has what the engine looks for inside workspaces."""
    directory = tmp_path / "canary"
    for name in ("notify.d", "fork.d", "tclone"):
        (directory / name).mkdir(parents=True)
    (directory / "passwd").write_text("canary:x:4242:4242::/:/bin/sh\nroot:x:0:0::/canary:/bin/sh\n")
    (directory / "group").write_text("canary:x:4242:\n")
    (directory / "hosts").write_bytes(SECRET)
    (directory / "console.log").write_bytes(SECRET + b"\n")
    return directory


def picture(directory: Path) -> list[tuple[str, int, int, bytes]]:
    """Every entry with its mode, change time and content."""
    found = []
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        found.append((str(path), status.st_mode, status.st_ctime_ns, path.read_bytes() if path.is_file() else b""))
    return found


async def test_directories_that_turn_into_links_lead_nowhere_outside(
    engine: Engine, client: EngineClient, workspace: str, canary: Path, tmp_path: Path
) -> None:
    before = picture(canary)
    # Directories of the image cannot be exchanged on an overlay; made anew they can.
    script = "cp -r /etc /etc2 && rm -r /etc && mv /etc2 /etc; mkdir -p /etc/tclone/fork.d; mkdir -p /var/lib/dbus; echo x > /etc/machine-id"
    assert (await client.run(workspace, ["sh", "-c", script]))[0] == 0
    program = guest.build("swap", tmp_path)
    await guest.start(client, workspace, program, str(canary), "/etc", "/run/tclone", "/var/log/tclone", "/etc/tclone", "/run/tclone/notify.d")
    attempts = dict.fromkeys(("exec", "stranger", "logs", "fork", "stats", "doctor"), 0)
    end = time.monotonic() + RACE_SECONDS

    async def one(what: str) -> None:
        if what == "exec":
            status, out, _ = await client.run(workspace, ["/bin/busybox", "id", "-u"], user="user")
            assert (status, out) == (0, b"1000\n")
        elif what == "stranger":
            with pytest.raises(BadRequest, match="no user"):
                await client.run(workspace, ["/bin/true"], user="canary")
        elif what == "logs":
            text = b"".join([chunk async for chunk in client.logs(workspace)])
            assert SECRET not in text
        elif what == "fork":
            result = await client.fork(workspace, copies=2, hostname="box", new_machine_id=True)
            for branch in result["branches"]:
                await client.remove(branch["id"])
        elif what == "stats":
            await client.stats(workspace)
        else:
            found = await client.examine(workspace)
            assert found["ok"], found

    async def again_and_again(what: str) -> None:
        while time.monotonic() < end:
            try:
                await one(what)
                attempts[what] += 1
            except EngineError as error:
                # What the workspace spoils for itself is refused in words, and is no defect of the engine's.
                assert not isinstance(error, Internal), error.message
            await asyncio.sleep(0.02)

    await asyncio.gather(*(again_and_again(what) for what in attempts))
    assert all(attempts[what] > 0 for what in attempts if what != "fork"), attempts
    assert picture(canary) == before
    assert (await client.run(workspace, ["/bin/busybox", "killall", "swap"]))[0] == 0

    async def settled() -> bool:
        return (await client.run(workspace, ["/bin/busybox", "pidof", "swap"]))[0] != 0

    await eventually(settled)
    assert (await client.fork(workspace))["branches"][0]["error"] is None
    assert picture(canary) == before


@pytest.mark.parametrize("name", ["a) R 1 (b", "two\nlines", "\x1b[2J\x1b]0;x\x07", "\udcff\udcfe"])
async def test_processes_may_be_called_anything_and_have_endless_arguments(
    client: EngineClient, workspace: str, tmp_path: Path, name: str
) -> None:
    program = guest.build("refused", tmp_path)
    long = ["x\n" * 50_000] * 19  # 1.9 MB; the kernel allows 2 MiB in all, 128 KiB each
    await guest.start(client, workspace, program, f"name={name}", "perf", "landlock")
    script = f'exec /root/refused "name={name}" "$@" > /dev/null 2>&1 < /dev/null &'
    await client.run(workspace, ["sh", "-c", script, "sh", *long[:9]])
    started = time.monotonic()
    found = await client.examine(workspace)
    text = repr(found)
    with contextlib.suppress(EngineError):
        await client.fork(workspace)
    stats = await client.stats(workspace)
    assert time.monotonic() - started < 10
    assert stats["processes"] >= 3 and len(text) < 20_000
    for blocker in found["blockers"]:
        assert blocker["message"].isprintable() and blocker["command"].isprintable()
    assert (await client.get(workspace))["state"] == "ready"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [(["descriptors=6000", "more=1"], 30), (["maps=60000"], 60), (["threads=1000"], 30)],
)
async def test_large_processes_are_forked_in_bounded_time_and_memory(
    engine: Engine, client: EngineClient, workspace: str, tmp_path: Path, arguments: list[str], seconds: float
) -> None:
    program = guest.build("heavy", tmp_path)
    await guest.start(client, workspace, program, *arguments)
    assert (await client.examine(workspace))["ok"]
    before = resident(engine)
    started = time.monotonic()
    result = await client.fork(workspace)
    assert time.monotonic() - started < seconds
    assert resident(engine) - before < 64 << 20
    branch = result["branches"][0]["id"]
    beats = []
    for ref in (workspace, branch):

        async def beat(ref: str = ref, last: str = "") -> str:
            _, out, _ = await client.run(ref, ["cat", "/tmp/beat"])
            return out.decode()

        first = await beat()
        beats.append(await eventually(lambda: changed(beat, first), what="a beat", seconds=20))
    assert all(beat.endswith(" 1\n") for beat in beats), beats


async def changed(read, before: str) -> str:
    now = await read()
    return now if now not in ("", before) else ""


def resident(engine: Engine) -> int:
    assert engine.process is not None
    return int(Path(f"/proc/{engine.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.slow
async def test_thirty_thousand_descriptors_are_forked(engine: Engine, client: EngineClient, workspace: str, tmp_path: Path) -> None:
    """A host whose hard limit of open files is lower than what a fork needs, and may not be raised, says so; the source runs on."""
    assert engine.process is not None
    room = psutil.Process(engine.process.pid).rlimit(psutil.RLIMIT_NOFILE)[1]
    await guest.start(client, workspace, guest.build("heavy", tmp_path), "descriptors=15000", "more=1")
    started = time.monotonic()
    if room >= 65536:
        result = await client.fork(workspace)
        assert result["branches"][0]["error"] is None
    else:
        with pytest.raises(LimitReached, match="descriptors"):
            await client.fork(workspace)
    assert time.monotonic() - started < 60
    _, out, _ = await client.run(workspace, ["cat", "/tmp/beat"])
    assert out.endswith(b" 1\n")


async def test_too_much_is_refused_in_words(client: EngineClient, workspace: str, tmp_path: Path) -> None:
    program = guest.build("heavy", tmp_path)
    out = await client.run(workspace, ["sh", "-c", "cat /proc/sys/vm/max_map_count"])
    if int(out[1]) <= 70_000:
        # The kernel's own limit for one process lies below ours: ask for what is just possible.
        await guest.start(client, workspace, program, f"maps={int(out[1]) - 200}")
        assert (await client.examine(workspace))["ok"]
    else:
        await guest.start(client, workspace, program, "maps=71000")
        with pytest.raises(EngineError, match="mappings"):
            await client.fork(workspace)
