"""exec, shell and logs: bytes, exit status, terminal."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import signal
import struct
import termios
import time
from pathlib import Path

from tests.cli.conftest import Tclone
from tests.cli.fake_engine import FakeEngine


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for this signal."""
    caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0]
    return bool(int(caught, 16) >> (number - 1) & 1)


def _first(engine: FakeEngine) -> dict:
    return next(body for method, _, body in engine.requests if method == "EXEC")


async def test_the_exit_status_is_passed_on(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk")
    for status in (0, 1, 42, 137):
        assert (await tclone("exec", "desk", "--", "exit", str(status))).status == status


async def test_both_streams_go_where_they_belong(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk")
    done = await tclone("exec", "desk", "--", "both")
    assert (done.status, done.out, done.err) == (3, "to stdout\n", "to stderr\n")


async def test_options_reach_the_engine(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk")
    await tclone(*"exec -u desktop -w /srv -e A=1 desk -- exit 0".split())
    sent = _first(engine)
    assert (sent["argv"], sent["user"], sent["cwd"], sent["env"], sent["tty"]) == (["exit", "0"], "desktop", "/srv", {"A": "1"}, False)


async def test_stdin_is_passed_on_to_its_end_only_when_asked_for(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk")
    content = os.urandom(40_000).hex().encode()
    assert (await tclone("exec", "-i", "desk", "--", "cat", stdin=content)).out.encode() == content
    assert (await tclone("exec", "desk", "--", "cat", stdin=content)).out == ""


async def test_stdin_may_be_a_regular_file(engine: FakeEngine, tclone: Tclone, tmp_path) -> None:
    engine.add("desk")
    file = tmp_path / "in"
    file.write_bytes(b"from a file")
    with file.open("rb") as stdin:
        process = await asyncio.create_subprocess_exec(
            *tclone.argv("exec", "-i", "desk", "--", "cat"), stdin=stdin, stdout=asyncio.subprocess.PIPE, env=tclone.environment
        )
        out, _ = await process.communicate()
    assert (process.returncode, out) == (0, b"from a file")


async def test_a_command_that_ends_does_not_wait_for_our_stdin(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk")
    process = await asyncio.create_subprocess_exec(
        *tclone.argv("exec", "-i", "desk", "--", "exit", "7"), stdin=asyncio.subprocess.PIPE, env=tclone.environment
    )
    assert await asyncio.wait_for(process.wait(), 30) == 7
    assert process.stdin is not None
    process.stdin.close()


async def test_much_output_is_complete(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk")
    done = await tclone("exec", "desk", "--", "flood", str(32 << 20))
    assert (done.status, len(done.out)) == (0, 32 << 20)


async def test_a_lost_engine_is_not_a_success(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk")
    done = await tclone("exec", "desk", "--", "hang")
    assert done.status == 9 and "ended while the command ran" in done.err


async def test_unknown_workspace_and_unknown_command(engine: FakeEngine, tclone: Tclone) -> None:
    done = await tclone("exec", "nobody", "--", "ls")
    assert done.status == 4 and "no workspace nobody" in done.err
    engine.add("desk")
    done = await tclone("exec", "desk", "--", "nonesuch")
    assert done.status == 4 and "no command nonesuch" in done.err


async def test_tty_without_a_terminal_is_refused_with_the_way_out(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk")
    done = await tclone("exec", "-t", "desk", "--", "cat")
    assert done.status == 2 and "leave out -t" in done.err


async def test_the_terminal_is_raw_meanwhile_resizes_and_comes_back(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk")
    master, slave = pty.openpty()
    try:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
        before = termios.tcgetattr(slave)
        process = await asyncio.create_subprocess_exec(
            *tclone.argv("exec", "-it", "desk", "--", "size"), stdin=slave, stdout=slave, stderr=slave, env=tclone.environment,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        deadline = time.monotonic() + 30
        while not any(method == "EXEC" for method, _, _ in engine.requests):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        while termios.tcgetattr(slave)[3] & termios.ICANON:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        sent = _first(engine)
        assert (sent["tty"], sent["rows"], sent["cols"], sent["env"]["TERM"]) == (True, 33, 101, "xterm")
        while not _catches(process.pid, signal.SIGWINCH):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
        assert await asyncio.wait_for(process.wait(), 30) == 0
        assert json.loads(os.read(master, 1000)) == {"resize": [50, 120]}
        assert termios.tcgetattr(slave) == before
    finally:
        os.close(master)
        os.close(slave)


async def test_shell_reads_commands_from_a_pipe(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk")
    await tclone("shell", "-u", "desktop", "desk", stdin=b"ls\n")
    sent = _first(engine)
    assert (sent["tty"], sent["user"], sent["argv"][0]) == (False, "desktop", "/bin/sh")


async def test_logs(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk")
    assert (await tclone("logs", "desk")).out == "last 200\n"
    assert (await tclone("logs", "-f", "-n", "5", "desk")).out == "last 5\nline 0\nline 1\nline 2\n"
    assert (await tclone("logs", "nobody")).status == 4
