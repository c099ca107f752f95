"""Setuid programs work in workspaces as on any Linux, so that `sudo` can be added to one (docs/how-to/osworld.md), and a fork carries over what they have begun."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from engine.client import EngineClient
from tests.engine.support import IMAGE, eventually

pytestmark = [pytest.mark.root]

SOURCE = Path(__file__).parent / "guest/become_root.c"
PROGRAM = "/root-by-mode"


@pytest.fixture
async def workspace(client: EngineClient, tmp_path: Path) -> str:
    subprocess.run(["gcc", "-static", "-O1", "-Wall", "-Werror", "-o", tmp_path / "program", SOURCE], check=True)
    made = (await client.launch(IMAGE, wait=True))["id"]
    async with client.exec(made, ["sh", "-c", f"cat >{PROGRAM}"]) as session:
        await session.write((tmp_path / "program").read_bytes())
        await session.close_stdin()
        async for _ in session.output():
            pass
        assert session.exit_code() == 0
    assert (await client.run(made, ["busybox", "chmod", "4755", PROGRAM]))[0] == 0
    return made


async def test_a_user_becomes_root_by_it_and_only_by_it(client: EngineClient, workspace: str) -> None:
    assert await client.run(workspace, ["id", "-u"], user="user") == (0, b"1000\n", b"")
    assert await client.run(workspace, [PROGRAM, "id", "-u"], user="user") == (0, b"0\n", b"")
    assert (await client.run(workspace, [PROGRAM, "sh", "-c", "exit 7"], user="user"))[0] == 7
    # Root by it has what a workspace's root has, and no more.
    status = "grep -E '^(Cap(Prm|Eff|Bnd)|NoNewPrivs|Seccomp):' /proc/self/status"
    by_mode, by_engine = [await client.run(workspace, [*first, "sh", "-c", status], user=user) for first, user in (([PROGRAM], "user"), ([], "root"))]
    assert by_mode == by_engine and b"NoNewPrivs:\t0\n" in by_mode[1]
    assert (await client.run(workspace, ["busybox", "chmod", "755", PROGRAM]))[0] == 0
    assert (await client.run(workspace, [PROGRAM, "id", "-u"], user="user"))[0] == 99


async def test_what_it_has_begun_goes_on_in_a_branch(client: EngineClient, workspace: str) -> None:
    waits = "while [ ! -e /tmp/go ]; do sleep 0.1; done; id -u >/root/done"
    begin = f"busybox setsid {PROGRAM} sh -c 'echo >/root/begun; {waits}' </dev/null >/dev/null 2>&1 &"
    assert (await client.run(workspace, ["sh", "-c", begin], user="user"))[0] == 0

    async def content(where: str, path: str) -> bytes:
        return (await client.run(where, ["cat", path]))[1]

    await eventually(lambda: content(workspace, "/root/begun"))
    branch = (await client.fork(workspace))["branches"][0]["id"]
    for one in (branch, workspace):
        assert await content(one, "/root/done") == b""
        await client.run(one, ["sh", "-c", "echo >/tmp/go"], user="user")
        assert await eventually(lambda one=one: content(one, "/root/done")) == b"0\n"
    # Also in a branch the mode of a file does it.
    assert await client.run(branch, [PROGRAM, "id", "-u"], user="user") == (0, b"0\n", b"")
