"""Commands in a workspace: streams, status, terminal, users, and what they may not hold."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from engine import process
from engine.client import EngineClient, ExecSession
from engine.errors import BadRequest, Internal, NotFound
from engine.waiting import together
from tests.engine.support import IMAGE, PATIENCE, Engine, eventually, pids_of, unseen_errors


@pytest.fixture
async def workspace(client: EngineClient) -> str:
    return (await client.launch(IMAGE, env={"GREETING": "hello"}, wait=True))["id"]


async def test_streams_and_status(client: EngineClient, workspace: str) -> None:
    assert await client.run(workspace, ["sh", "-c", "cat; echo err >&2; exit 7"], stdin=b"in") == (7, b"in", b"err\n")


@pytest.mark.parametrize(
    ("argv", "status"),
    [(["sh", "-c", "kill -9 $$"], 137), (["no-such-program"], 127), (["/etc/passwd"], 126)],
)
async def test_status_of_commands_that_die_or_cannot_start(
    client: EngineClient, workspace: str, argv: list[str], status: int
) -> None:
    code, out, err = await client.run(workspace, argv)
    assert (code, out) == (status, b"")
    assert status == 137 or err


async def test_a_terminal_of_the_workspace_itself(client: EngineClient, workspace: str) -> None:
    code, out, _ = await client.run(workspace, ["sh", "-c", "tty; stty size"], tty=True, rows=33, cols=99)
    assert (code, out) == (0, b"/dev/pts/0\r\n33 99\r\n")


async def test_a_terminal_has_its_size_before_the_command_runs(client: EngineClient, workspace: str) -> None:
    """A command that asks at once: `sh` would take longer to ask than the engine takes to tell."""
    for _ in range(12):
        code, out, _ = await client.run(workspace, ["/bin/busybox", "stty", "size"], tty=True, rows=33, cols=99)
        assert (code, out) == (0, b"33 99\r\n")


@pytest.mark.parametrize(("program", "status"), [("no-such-program", 127), ("/etc/passwd", 126)])
async def test_a_command_that_cannot_start_in_a_terminal_says_so(client: EngineClient, workspace: str, program: str, status: int) -> None:
    code, out, err = await client.run(workspace, [program], tty=True)
    assert code == status and program.encode() in out + err


async def test_the_terminal_can_be_resized(client: EngineClient, workspace: str) -> None:
    async with client.exec(workspace, ["sh", "-c", "read line; stty size"], tty=True) as session:
        await session.resize(50, 120)
        await session.write(b"\n")
        out = b"".join([data async for _, data in session.output()])
    assert out.endswith(b"50 120\r\n")


async def test_users_environment_and_directory(client: EngineClient, workspace: str) -> None:
    _, out, _ = await client.run(workspace, ["sh", "-c", "id -u; id -g; id -G; echo $HOME $USER $GREETING $X; pwd"], user="user", env={"X": "1"})
    assert out.decode().split("\n") == ["1000", "1000", "1000 29", "/tmp user hello 1", "/tmp", ""]
    with pytest.raises(BadRequest, match="no user 'ghost'"):
        await client.run(workspace, ["true"], user="ghost")
    with pytest.raises(NotFound):
        await client.run("nowhere", ["true"])


async def test_a_command_holds_three_descriptors_and_no_more_rights_than_the_workspace(client: EngineClient, workspace: str) -> None:
    _, out, _ = await client.run(workspace, ["ls", "/proc/self/fd"])
    assert out.split() == [b"0", b"1", b"2", b"3"]  # 3 is the directory that ls itself opened
    _, out, _ = await client.run(workspace, ["sh", "-c", "cat /proc/self/status /proc/1/status | grep -E 'Cap(Eff|Bnd)|^Seccomp:'"])
    if not out:  # no grep among the applets
        _, out, _ = await client.run(workspace, ["cat", "/proc/self/status", "/proc/1/status"])
    rows = [line.split() for line in out.decode().splitlines() if line.startswith(("CapEff", "CapBnd", "Seccomp:"))]
    assert rows[: len(rows) // 2] == rows[len(rows) // 2 :]
    assert ["Seccomp:", "2"] in rows


async def test_a_command_ends_with_its_connection(engine: Engine, client: EngineClient, workspace: str) -> None:
    before = set(pids_of(engine, workspace))
    async with client.exec(workspace, ["sleep", "1000"]):
        await eventually(lambda: len(pids_of(engine, workspace)) > len(before))
    await eventually(lambda: set(pids_of(engine, workspace)) == before)


async def test_a_client_that_goes_away_is_no_error_in_the_log(engine: Engine, client: EngineClient, workspace: str) -> None:
    """Every closed terminal of a browser is one: nobody shall look for a defect there."""
    for command in (["sleep", "1000"], ["yes"], ["sh", "-c", "sleep 1000 & exec sleep 1000"]):
        for tty in (False, True):
            async with client.exec(workspace, command, tty=tty):
                await asyncio.sleep(0.3)
    # What was left behind without a look is told when it is collected.
    assert (await client.run(workspace, ["true"]))[0] == 0
    assert await engine.stop() == 0
    assert "Traceback" not in engine.log.read_text() and "ERROR" not in engine.log.read_text()
    await engine.start()


@pytest.mark.parametrize("tty", [False, True])
async def test_clients_that_go_in_the_midst_leave_no_word_in_the_log(engine: Engine, client: EngineClient, workspace: str, tty: bool) -> None:
    """What they left is waited for: else Python logs a traceback for each, when its memory is collected."""

    async def cut_off() -> None:
        async with client.exec(workspace, ["yes"], tty=tty) as session:
            await anext(session.output())
            session._socket._conn.transport.abort()

    before = set(pids_of(engine, workspace))
    for _ in range(3):
        await asyncio.gather(*(cut_off() for _ in range(4)), return_exceptions=True)
    await eventually(lambda: set(pids_of(engine, workspace)) == before)
    assert await engine.stop() == 0
    assert unseen_errors(engine.log) == []


async def test_a_slow_reader_does_not_fill_the_engines_memory(engine: Engine, client: EngineClient, workspace: str) -> None:
    import psutil

    assert engine.process is not None
    process = psutil.Process(engine.process.pid)
    async with client.exec(workspace, ["yes"]):
        await asyncio.sleep(0.3)
        before = process.memory_info().rss
        await asyncio.sleep(1.0)
        assert process.memory_info().rss - before < 32 << 20


async def test_many_at_once(client: EngineClient, workspace: str) -> None:
    results = await asyncio.gather(*(client.run(workspace, ["echo", str(number)]) for number in range(12)))
    assert [out for _, out, _ in results] == [f"{number}\n".encode() for number in range(12)]


async def test_output_of_what_stays_in_the_background_does_not_hold_the_command_up(client: EngineClient, workspace: str) -> None:
    """The command has ended, and what it left behind holds its output open and is silent: the status comes all the same, after the output."""
    started = time.monotonic()
    status, out, err = await client.run(workspace, ["sh", "-c", "sleep 1000 & echo begun; echo told >&2; exit 5"])
    assert (status, out, err) == (5, b"begun\n", b"told\n")
    assert time.monotonic() - started < 5
    # What it writes while the engine still listens is passed on whole, and does not keep it listening for ever.
    script = "(i=0; while [ $i -lt 20 ]; do echo tick; sleep 0.05; i=$((i+1)); done; exec sleep 1000) & exit 0"
    # How long it listens is a matter of pauses: a machine that stands still between two ticks may cut them short, but not every time.
    for _ in range(5):
        status, out, _ = await client.run(workspace, ["sh", "-c", script])
        ticks = out.count(b"tick\n")
        assert status == 0 and ticks >= 1 and out == b"tick\n" * ticks
        if ticks == 20:
            break
    assert ticks == 20
    # Through a terminal: its last reader's end is the end of the output.
    status, out, _ = await client.run(workspace, ["sh", "-c", "sleep 1000 & echo begun"], tty=True)
    assert (status, out) == (0, b"begun\r\n")


@pytest.mark.parametrize("flood", ["exec yes", "exec yes >&2", "while :; do echo x; sleep 0.05; done"])
async def test_what_stays_in_the_background_and_writes_for_ever_does_not_hold_the_command_up(client: EngineClient, workspace: str, flood: str) -> None:
    started = time.monotonic()
    status, out, err = await client.run(workspace, ["sh", "-c", f"echo begun; echo told >&2; ({flood}) & exit 5"])
    assert status == 5 and out.startswith(b"begun\n") and err.startswith(b"told\n")
    # What a pipe can hold, and no more of what came after the end.
    assert len(out) + len(err) < 4 << 20
    assert time.monotonic() - started < 20


async def test_the_client_of_a_command_does_not_notice_forks_of_its_workspace(client: EngineClient, workspace: str) -> None:
    """An interactive session stays open across twenty forks: nothing is lost, doubled or closed, and no branch has it."""
    echo = 'stty -echo; echo ready; while read line; do echo "<$line>"; done; echo over'
    loop = "i=0; while true; do echo $i; i=$((i+1)); sleep 0.01; done"
    async with client.exec(workspace, ["sh", "-c", echo], tty=True) as session, client.exec(workspace, ["sh", "-c", loop]) as counting:
        received, numbers = bytearray(), bytearray()

        async def collect(source: ExecSession, into: bytearray) -> None:
            async for _, data in source.output():
                into += data

        tasks = [asyncio.ensure_future(collect(session, received)), asyncio.ensure_future(collect(counting, numbers))]
        await eventually(lambda: b"ready\r\n" in received, what="the shell")
        for number in range(20):
            await session.write(f"before {number}\n".encode())
            forking = asyncio.ensure_future(client.fork(workspace))
            await session.write(f"during {number}\n".encode())
            (branch,) = (await forking)["branches"]
            assert branch["error"] is None
            await session.write(f"after {number}\n".encode())
            await eventually(lambda: f"<after {number}>".encode() in received, what=f"the answer after fork {number}")  # noqa: B023
            if number % 10 == 0:
                _, out, _ = await client.run(branch["id"], ["ps"])
                assert b"read line" not in out and b"sleep 0.01" not in out
            await client.remove(branch["id"])
        assert not any(task.done() for task in tasks)
        await session.close_stdin()
        await asyncio.wait_for(tasks[0], 30)
        assert session.exit_code() == 0
        tasks[1].cancel()
    wanted = "".join(f"<{when} {number}>\r\n" for number in range(20) for when in ("before", "during", "after"))
    assert received.decode() == f"ready\r\n{wanted}over\r\n"
    counted = [int(word) for word in numbers.split()[:-1]]
    assert counted == list(range(len(counted))) and len(counted) > 100


async def test_a_flood_is_refused_at_once() -> None:
    def written(count: int) -> asyncio.StreamReader:
        stream = asyncio.StreamReader()
        stream.feed_data(b"x" * count)
        return stream

    full = written(1 << 20)
    full.feed_eof()
    assert len(await process._read_all(full)) == 1 << 20
    # Neither has ended: who is refused does not wait for that.
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(process._TooMuch):
            await together(process._read_all(written((1 << 20) + 1)), process._read_all(asyncio.StreamReader()))


async def test_what_the_engine_runs_for_itself_is_ended_when_it_floods(monkeypatch: pytest.MonkeyPatch) -> None:
    class Flood:
        stdout, stderr, killed = asyncio.StreamReader(), asyncio.StreamReader(), False

        def close_stdin(self) -> None:
            pass

        async def kill(self) -> None:
            self.killed = True

    session = Flood()
    session.stderr.feed_data(b"x" * (2 << 20))

    async def start(*_: object) -> Flood:
        return session

    monkeypatch.setattr(process.Executor, "start", start)
    executor = object.__new__(process.Executor)
    with pytest.raises(Internal, match="yes in ws-1 wrote more than 1 MiB"):
        await executor.run(SimpleNamespace(id="ws-1"), process.Command(["yes"]), PATIENCE)  # type: ignore[arg-type]
    assert session.killed
