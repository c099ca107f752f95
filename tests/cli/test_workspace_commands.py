"""run, fork, ls, inspect, port, stats, rm: what they send, print and return."""

from __future__ import annotations

import asyncio

import pytest

from tests.cli.conftest import Tclone
from tests.cli.fake_engine import FakeEngine


async def test_run_prints_the_id_alone_on_stdout(engine: FakeEngine, tclone: Tclone) -> None:
    done = await tclone("run", "workspace", "--name", "desk")
    assert (done.status, done.out) == (0, "ws-1\n")
    assert "run workspace: network" in done.err


async def test_run_sends_every_option(engine: FakeEngine, tclone: Tclone) -> None:
    done = await tclone(
        *"run workspace --name desk -p 3000 -p 8080:80 -e A=b=c --memory 1.5g --cpus 0.5 --pids 300 --network none --json".split(),
        *("--", "python3", "-m", "http.server", "--", "-x"),
    )
    assert done.status == 0
    assert done.json()["ports"] == {"3000": 40000, "80": 8080}
    [(_, path, body)] = [request for request in engine.requests if request[0] == "POST"]
    assert path == "/v1/workspaces?wait=ready"
    assert body.pop("request_id")
    assert body == {
        "image": "workspace",
        "name": "desk",
        "ports": [{"container": 3000, "host": None}, {"container": 80, "host": 8080}],
        "env": {"A": "b=c"},
        "memory": 3 << 29,
        "cpus": 0.5,
        "pids": 300,
        "network": "none",
        "command": ["python3", "-m", "http.server", "--", "-x"],
    }


async def test_run_no_wait_does_not_wait(engine: FakeEngine, tclone: Tclone) -> None:
    done = await tclone("run", "workspace", "--no-wait", "--json")
    assert done.json()["state"] == "starting"


async def test_fork_prints_ids_one_per_line_in_order(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk")
    done = await tclone("fork", "desk", "--copies", "3")
    assert (done.status, done.out) == (0, "ws-2\nws-3\nws-4\n")
    assert [workspace["name"] for workspace in engine.workspaces.values()] == ["desk", "desk-clone-0", "desk-clone-1", "desk-clone-2"]


async def test_fork_json_is_the_engines_result(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk")
    done = await tclone(*"fork desk --name try --tcp-close --ghost-limit 2m --json".split())
    result = done.json()
    assert {"batch", "source", "mode", "processes", "threads", "bytes_copied", "ms", "branches"} == set(result)
    assert result["branches"] == [{"id": "ws-2", "name": "try", "ports": {"3000": 41000}, "error": None}]
    body = next(body for method, _, body in engine.requests if method == "POST")
    assert body.pop("request_id")
    assert body == {"copies": 1, "name": "try", "tcp_close": True, "ghost_limit": 2 << 20}


async def test_fork_tells_of_a_branch_that_failed_and_prints_the_others(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk")
    engine.failed_branch = 1
    done = await tclone("fork", "desk", "--copies", "3")
    assert (done.status, done.out) == (1, "ws-2\nws-3\n")
    assert "tclone: desk-clone-1: memory limit hit mid-copy" in done.err


@pytest.mark.parametrize(
    ("http", "code", "status"),
    [
        (400, "bad_request", 2),
        (404, "not_found", 4),
        (409, "conflict", 5),
        (422, "unsupported", 6),
        (429, "limit", 7),
        (507, "no_space", 8),
        (503, "unavailable", 9),
        (500, "internal", 1),
    ],
)
async def test_each_error_has_its_exit_status(engine: FakeEngine, tclone: Tclone, http: int, code: str, status: int) -> None:
    engine.add("desk")
    engine.errors["POST /v1/workspaces/desk/fork"] = (http, code, "desk is not to be forked; wait\npid 7: io_uring")
    done = await tclone("fork", "desk")
    assert (done.status, done.out) == (status, "")
    assert "tclone: desk is not to be forked; wait\n  pid 7: io_uring\n" in done.err


async def test_without_an_engine_the_next_step_is_named(tclone: Tclone) -> None:
    done = await tclone("ls")
    assert (done.status, done.out) == (9, "")
    assert done.err == "tclone: the engine is not running; start it with `tclone up`\n"


async def test_ls_is_a_tree_in_a_table(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk", ports={"8000": 42000, "3000": 43827})
    engine.add("other")
    engine.add("desk-clone", kind="branch", parent="ws-1")
    engine.add("desk-clone-clone", kind="branch", parent="ws-3")
    engine.add("orphan", kind="branch", parent="ws-99")
    done = await tclone("ls")
    lines = done.out.splitlines()
    assert lines[0].split() == ["ID", "NAME", "KIND", "STATE", "IMAGE", "FROM", "PORTS", "AGE"]
    assert [line.split("source")[0].split("branch")[0].rstrip() for line in lines[1:]] == [
        "ws-1  desk",
        "ws-3    desk-clone",
        "ws-4      desk-clone-clone",
        "ws-2  other",
        "ws-5  orphan",
    ]
    assert "3000->43827, 8000->42000" in lines[1]
    # A branch whose source is gone is no child of what stands above it.
    assert [" ws-1 " in lines[2], " ws-3 " in lines[3], "ws-99 (gone)" in lines[5]] == [True] * 3


async def test_ls_tells_a_paused_workspace_from_one_that_runs(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk")
    engine.add("other")
    assert (await tclone("pause", "desk")).status == 0
    assert [line.split()[3] for line in (await tclone("ls")).out.splitlines()[1:]] == ["paused", "ready"]
    assert [(one["state"], one["paused"]) for one in (await tclone("ls", "--json")).json()] == [("ready", True), ("ready", False)]
    assert (await tclone("resume", "desk")).status == 0
    assert [line.split()[3] for line in (await tclone("ls")).out.splitlines()[1:]] == ["ready", "ready"]


async def test_ls_json_has_the_documented_fields(engine: FakeEngine, tclone: Tclone) -> None:
    assert (await tclone("ls", "--json")).json() == []
    engine.add("desk")
    [one] = (await tclone("ls", "--json")).json()
    assert set(one) == {"id", "name", "kind", "state", "paused", "parent", "image", "ports", "created"}


async def test_a_name_cannot_write_escapes_to_the_terminal(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk\x1b[2J\x1b]0;owned\x07", error="boom\x1b[31m")
    done = await tclone("ls")
    assert "\x1b" not in done.out and "\x07" not in done.out
    engine.errors["GET /v1/workspaces"] = (500, "internal", "bad \x1b]52;c;AAAA\x07 name")
    done = await tclone("ls")
    assert "\x1b" not in done.err


async def test_inspect_prints_all_fields_of_each(engine: FakeEngine, tclone: Tclone) -> None:
    first, second = engine.add("a"), engine.add("b")
    assert (await tclone("inspect", "b", "ws-1")).json() == [second, first]


async def test_port(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk", ports={"8000": 42000, "3000": 43827})
    assert (await tclone("port", "desk")).out == "3000 -> localhost:43827\n8000 -> localhost:42000\n"
    assert (await tclone("port", "desk", "8000")).out == "42000\n"
    assert (await tclone("port", "desk", "--json")).json() == {"8000": 42000, "3000": 43827}
    assert (await tclone("port", "desk", "4000", "--publish")).out == "45000\n"
    assert (await tclone("port", "desk", "8000", "--unpublish")).out == ""
    assert (await tclone("port", "desk", "--json")).json() == {"4000": 45000, "3000": 43827}
    assert (await tclone("port", "desk", "--publish")).status == 2
    missing = await tclone("port", "desk", "22")
    assert missing.status == 4 and "ws-1 does not publish port 22" in missing.err


async def test_stats(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("desk")
    done = await tclone("stats")
    assert done.out.splitlines()[1].split("  ")[:2] == ["ws-1", "desk"]
    assert "3.0 MiB" in done.out and "1.2 s" in done.out
    assert (await tclone("stats", "desk", "--json")).json()[0]["threads"] == 5


async def test_stats_of_all_leaves_out_one_that_goes_meanwhile(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("a")
    engine.add("b")
    engine.errors["GET /v1/workspaces/ws-1/stats"] = (404, "not_found", "no workspace ws-1")
    done = await tclone("stats", "--json")
    assert [one["id"] for one in done.json()] == ["ws-2"]
    assert (await tclone("stats", "a")).status == 4


async def test_rm_removes_all_it_can_and_reports_the_rest(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("a")
    engine.add("b")
    done = await tclone("rm", "a", "nobody", "b", "a")
    assert (done.status, done.out) == (4, "a\nb\n")
    assert "no workspace nobody; `tclone ls` lists them" in done.err
    assert engine.workspaces == {}


async def test_rm_all(engine: FakeEngine, tclone: Tclone) -> None:
    engine.add("a")
    engine.add("b")
    done = await tclone("rm", "--all")
    assert (done.status, done.out) == (0, "ws-1\nws-2\n")


@pytest.mark.parametrize(
    "words",
    [
        "",
        "nonsense",
        "run",
        "run ../../etc",
        "run workspace --name -x",
        "run workspace --name UPPER",
        "run workspace -p 0",
        "run workspace -p 70000",
        "run workspace -p 80:",
        "run workspace -p 1:2:3",
        "run workspace -p ٣",
        "run workspace --memory lots",
        "run workspace --cpus some",
        "run workspace --cpus -1",
        "run workspace --memory -2g",
        "run workspace -e novalue",
        "fork",
        "fork desk --copies 0",
        "fork desk --copies 9",
        "fork desk --copies two",
        "fork desk --name a_b",
        "fork ..",
        "ls --jso",
        "exec desk ls",
        "exec desk --",
        "rm",
        "rm a --all",
        "rm a/../b",
        "port desk http",
        "logs desk -n 0",
        "image",
        "image build ../x",
        "image import ./x",
        "up --port 0",
    ],
)
async def test_wrong_usage_is_2_and_reaches_no_engine(engine: FakeEngine, tclone: Tclone, words: str) -> None:
    engine.add("desk")
    done = await tclone(*words.split())
    assert (done.status, done.out) == (2, "")
    assert "usage: tclone" in done.err and "Traceback" not in done.err
    assert engine.requests == []


async def test_a_reader_that_leaves_ends_the_command_quietly(engine: FakeEngine, tclone: Tclone) -> None:
    for number in range(2000):
        engine.add(f"desk-{number}", image="i" * 100)
    process = await asyncio.create_subprocess_exec(
        *tclone.argv("ls"), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=tclone.environment, limit=1024
    )
    assert process.stdout is not None and process.stderr is not None
    await process.stdout.readline()
    process.stdout._transport.close()  # type: ignore[attr-defined]
    error = await process.stderr.read()
    assert (await process.wait(), error) == (141, b"")


async def test_help_names_every_command(tclone: Tclone) -> None:
    done = await tclone("--help")
    assert done.status == 0
    for command in "up down doctor run fork ls inspect exec shell logs port stats rm image passwd ca engine version".split():
        assert f"\n    {command} " in done.out
        shown = await tclone(command, "--help")
        assert shown.status == 0 and "usage: tclone" in shown.out
