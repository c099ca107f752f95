"""Files by the API: what goes in comes out, whose it is, and that nothing a workspace puts there leads out or holds the engine up."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import unquote_to_bytes

import aiohttp
import pytest

from engine import files
from engine.client import EngineClient
from engine.errors import BadRequest, Conflict, EngineError, Internal, LimitReached, NotFound
from tests.engine import guest
from tests.engine.support import IMAGE, Engine

SECRET = b"a line of the host's own file"


@pytest.fixture
async def workspace(client: EngineClient) -> str:
    return (await client.launch(IMAGE, wait=True))["id"]


async def sh(client: EngineClient, ref: str, script: str) -> str:
    status, out, err = await client.run(ref, ["sh", "-c", script])
    assert status == 0, err
    return out.decode()


async def read(client: EngineClient, ref: str, path: bytes | str, **headers: str) -> tuple[int, bytes]:
    async with client.read_file(ref, path, headers=headers) as answer:
        return answer.status, await answer.read()


async def test_what_is_written_is_read_and_belongs_to_the_desktops_user(client: EngineClient, workspace: str) -> None:
    data = os.urandom(3_000_001)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 100_000):
            yield data[start : start + 100_000]

    entry = await client.write_file(workspace, "/tmp/a b%41?.bin", pieces(), size=len(data))
    assert entry["kind"] == "file" and entry["size"] == len(data) and (entry["uid"], entry["gid"]) == (1000, 1000)
    assert await sh(client, workspace, "stat -c '%u %g %a %s' '/tmp/a b%41?.bin'") == f"1000 1000 644 {len(data)}\n"
    assert await read(client, workspace, "/tmp/a b%41?.bin") == (200, data)
    assert await read(client, workspace, "/tmp/a b%41?.bin", Range="bytes=10-19") == (206, data[10:20])
    assert await read(client, workspace, "/tmp/a b%41?.bin", Range="bytes=-5") == (206, data[-5:])
    with pytest.raises(EngineError, match="3000001 bytes"):
        await read(client, workspace, "/tmp/a b%41?.bin", Range=f"bytes={len(data)}-")
    async with client.read_file(workspace, "/tmp/a b%41?.bin") as answer:
        tag = answer.headers["ETag"]
    assert await read(client, workspace, "/tmp/a b%41?.bin", **{"If-None-Match": tag}) == (304, b"")
    await client.write_file(workspace, "/tmp/empty", b"")
    assert await read(client, workspace, "/tmp/empty") == (200, b"")


async def test_a_file_is_replaced_only_when_asked_and_keeps_its_owner_and_mode(client: EngineClient, workspace: str) -> None:
    await sh(client, workspace, "echo old > /etc/thing; chmod 640 /etc/thing")
    with pytest.raises(Conflict, match="exists already"):
        await client.write_file(workspace, "/etc/thing", b"new")
    assert await read(client, workspace, "/etc/thing") == (200, b"old\n")
    entry = await client.write_file(workspace, "/etc/thing", b"new", overwrite=True)
    assert (entry["uid"], entry["mode"]) == (0, 0o640)
    assert await sh(client, workspace, "cat /etc/thing; ls -A /etc | grep -c tclone- || true") == "new0\n"
    with pytest.raises(NotFound, match="/nowhere/x"):
        await client.write_file(workspace, "/nowhere/x", b"")


async def test_an_upload_that_breaks_off_leaves_nothing(engine: Engine, client: EngineClient, workspace: str) -> None:
    before = await sh(client, workspace, "ls -a /tmp")
    reader, writer = await asyncio.open_unix_connection(engine.config.socket)
    writer.write(f"PUT /v1/workspaces/{workspace}/file?path=/tmp/half HTTP/1.1\r\nHost: e\r\nContent-Length: 1000000\r\n\r\n".encode())
    writer.write(b"x" * 300_000)
    await writer.drain()
    await asyncio.sleep(0.3)
    writer.close()
    await writer.wait_closed()
    await asyncio.sleep(0.3)
    assert await sh(client, workspace, "ls -a /tmp") == before
    await client.write_file(workspace, "/tmp/half", b"whole")
    assert await read(client, workspace, "/tmp/half") == (200, b"whole")
    assert "failed" not in engine.log.read_text()


async def test_directories_are_listed_made_and_removed(client: EngineClient, workspace: str) -> None:
    await sh(client, workspace, "mkdir -p /tmp/d/sub; echo hi > /tmp/d/file; ln -s sub /tmp/d/way; ln -s /none /tmp/d/lost; mkfifo /tmp/d/pipe")
    made = await client.make_directory(workspace, "/tmp/d/made")
    assert (made["kind"], made["uid"], made["gid"], made["mode"]) == ("directory", 1000, 1000, 0o755)
    with pytest.raises(Conflict, match="exists already"):
        await client.make_directory(workspace, "/tmp/d/made")
    found = await client.list_files(workspace, "/tmp/d")
    kinds = {entry["name"]: (entry["kind"], entry.get("target"), entry.get("leads_to")) for entry in found["entries"]}
    assert kinds == {
        "sub": ("directory", None, None), "file": ("file", None, None), "way": ("link", "sub", "directory"),
        "lost": ("link", "/none", None), "pipe": ("fifo", None, None), "made": ("directory", None, None),
    }  # fmt: skip
    for entry in found["entries"]:
        assert await client.entry(workspace, f"/tmp/d/{entry['name']}") == entry
    assert not found["truncated"] and found["home"] == "/tmp" and found["path"] == "/tmp/d"
    assert [entry["name"] for entry in (await client.list_files(workspace, "/tmp/d/way"))["entries"]] == []
    with pytest.raises(Conflict, match="not empty"):
        await client.remove_file(workspace, "/tmp/d")
    await client.remove_file(workspace, "/tmp/d/pipe")
    await client.remove_file(workspace, "/tmp/d/way")
    await client.remove_file(workspace, "/tmp/d", recursive=True)
    with pytest.raises(NotFound):
        await client.list_files(workspace, "/tmp/d")
    with pytest.raises(NotFound, match="there is no /tmp/d"):
        await client.entry(workspace, "/tmp/d")
    root = {entry["name"]: entry["kind"] for entry in (await client.list_files(workspace, "/"))["entries"]}
    assert root["proc"] == root["dev"] == "mount" and root["etc"] == "directory"


@pytest.mark.parametrize("home", ["", "relative", "/" + "x" * 5000, "/ho\udcffme"])
async def test_the_home_that_is_told_is_one_that_can_be_asked_for(client: EngineClient, workspace: str, home: str) -> None:
    line = f"user:x:1000:1000::{home}:/bin/sh\n".encode(errors="surrogateescape")
    await client.write_file(workspace, "/etc/passwd", line, overwrite=True)
    found = (await client.list_files(workspace, "/"))["home"]
    assert found == ("/ho%EF%BF%BDme" if "\udcff" in home else "/")


async def test_special_files_and_other_mounts_are_refused_at_once(client: EngineClient, workspace: str) -> None:
    await sh(client, workspace, "mkfifo /tmp/pipe; ln -s pipe /tmp/to-pipe")
    started = time.monotonic()
    for path in ("/tmp/pipe", "/tmp/to-pipe", "/tmp"):
        with pytest.raises(Conflict, match="only regular files"):
            await read(client, workspace, path)
    with pytest.raises(Conflict, match="only a regular file can be replaced"):
        await client.write_file(workspace, "/tmp/pipe", b"x", overwrite=True)
    for path in ("/proc/1/environ", "/dev/null", "/dev/shm/x", "/sys/kernel/mm"):
        with pytest.raises(BadRequest, match="another mount"):
            await read(client, workspace, path)
        with pytest.raises(BadRequest, match="another mount"):
            await client.write_file(workspace, path, b"x", overwrite=True)
    for call in (client.list_files(workspace, "/proc"), client.entry(workspace, "/proc/1")):
        with pytest.raises(BadRequest, match="another mount"):
            await call
    with pytest.raises((BadRequest, Conflict)):
        await client.remove_file(workspace, "/dev", recursive=True)
    assert await sh(client, workspace, "test -c /dev/null && echo there") == "there\n"
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("path", ["", "relative", "/a\0b", "/" + "x" * 5000])
async def test_paths_that_are_none(client: EngineClient, workspace: str, path: str) -> None:
    for call in (client.list_files(workspace, path), client.entry(workspace, path), client.write_file(workspace, path, b""), client.make_directory(workspace, path)):
        with pytest.raises(BadRequest):
            await call


@pytest.mark.parametrize("path", ["/", "/tmp/..", "/tmp/."])
async def test_paths_without_a_name_cannot_be_written_or_removed(client: EngineClient, workspace: str, path: str) -> None:
    for call in (client.write_file(workspace, path, b"", overwrite=True), client.remove_file(workspace, path, recursive=True)):
        with pytest.raises(BadRequest, match="name"):
            await call


@pytest.mark.parametrize("name", [b"\xff\xfe\x80", b"two\nlines", b"\x1b[2J", "é\N{RIGHT-TO-LEFT OVERRIDE}".encode(), b"a+b&c=d#e?f%2Fg", b"-rf", b"x" * 255])
async def test_names_are_bytes(client: EngineClient, workspace: str, name: bytes) -> None:
    path = b"/tmp/names/" + name
    await client.make_directory(workspace, "/tmp/names")
    await client.write_file(workspace, path, name)
    (entry,) = (await client.list_files(workspace, "/tmp/names"))["entries"]
    assert await client.entry(workspace, path) == entry
    assert entry["name"].isprintable() and entry["encoded"].isascii()
    assert unquote_to_bytes(entry["encoded"]) == name
    assert await read(client, workspace, path) == (200, name)
    raw = await client.run(workspace, ["sh", "-c", "cat /tmp/names/*"])
    assert raw[1] == name
    await client.remove_file(workspace, path)
    assert (await client.list_files(workspace, "/tmp/names"))["entries"] == []


async def test_links_lead_nowhere_outside(client: EngineClient, workspace: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(SECRET)
    before = sorted(path.name for path in outside.iterdir())
    script = f"ln -s {outside} /tmp/abs; ln -s ../../../../../../../..{outside} /tmp/rel; ln -s /proc/1/root{outside} /tmp/magic; ln -s loop /tmp/loop"
    await sh(client, workspace, script)
    for link in ("abs", "rel", "magic", "loop"):
        with pytest.raises(EngineError) as refused:
            await read(client, workspace, f"/tmp/{link}/secret")
        assert not isinstance(refused.value, Internal)
        for call in (
            client.write_file(workspace, f"/tmp/{link}/new", b"x"), client.make_directory(workspace, f"/tmp/{link}/new"),
            client.remove_file(workspace, f"/tmp/{link}/secret"), client.list_files(workspace, f"/tmp/{link}"), client.entry(workspace, f"/tmp/{link}/secret"),
        ):  # fmt: skip
            with pytest.raises(EngineError):
                await call
    assert sorted(path.name for path in outside.iterdir()) == before
    # A link's own name is replaced and removed as a name; what it leads to is not touched.
    await sh(client, workspace, "echo kept > /tmp/kept; ln -s /tmp/kept /tmp/to-kept")
    with pytest.raises(Conflict, match="is a link"):
        await client.write_file(workspace, "/tmp/to-kept", b"x", overwrite=True)
    await client.remove_file(workspace, "/tmp/to-kept", recursive=True)
    assert await read(client, workspace, "/tmp/kept") == (200, b"kept\n")


async def test_directories_that_turn_into_links_meanwhile_lead_nowhere_outside(client: EngineClient, workspace: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "passwd").write_bytes(SECRET)
    await sh(client, workspace, "mkdir -p /tmp/race; echo mine > /tmp/race/passwd")
    await guest.start(client, workspace, guest.build("swap", tmp_path), str(outside), "/tmp/race")
    end = time.monotonic() + 6
    done = dict.fromkeys(("read", "write", "list", "look", "make", "remove"), 0)
    size = len("mine\n")

    async def one(what: str, number: int) -> None:
        if what == "read":
            assert SECRET not in (await read(client, workspace, "/tmp/race/passwd"))[1]
        elif what == "write":
            await client.write_file(workspace, f"/tmp/race/w{number}", b"x")
        elif what == "list":
            await client.list_files(workspace, "/tmp/race")
        elif what == "look":
            assert (await client.entry(workspace, "/tmp/race/passwd"))["size"] == size != len(SECRET)
        elif what == "make":
            await client.make_directory(workspace, f"/tmp/race/d{number}")
        else:
            await client.remove_file(workspace, f"/tmp/race/d{number - 1}", recursive=True)

    async def again_and_again(what: str) -> None:
        number = 0
        while time.monotonic() < end:
            number += 1
            try:
                await one(what, number)
                done[what] += 1
            except EngineError as error:
                assert not isinstance(error, Internal), error.message

    await asyncio.gather(*(again_and_again(what) for what in done))
    assert all(done[what] for what in ("read", "write", "list", "look", "make")), done
    assert [(path.name, path.read_bytes()) for path in outside.iterdir()] == [("passwd", SECRET)]


async def test_huge_and_deep_directories_take_bounded_time(client: EngineClient, workspace: str) -> None:
    more = files.MOST_ENTRIES + 500
    await sh(client, workspace, f"mkdir /tmp/many; cd /tmp/many; i=0; while [ $i -lt {more} ]; do : > f$i; i=$((i+1)); done")
    await sh(client, workspace, "mkdir /tmp/deep; cd /tmp/deep; i=0; while [ $i -lt 300 ]; do mkdir d; cd d; i=$((i+1)); done; : > bottom")
    started = time.monotonic()
    found = await client.list_files(workspace, "/tmp/many")
    listed = {entry["name"] for entry in found["entries"]}
    beyond = next(name for name in (f"f{number}" for number in range(more)) if name not in listed)
    assert (await client.entry(workspace, f"/tmp/many/{beyond}"))["kind"] == "file"
    assert len(found["entries"]) == files.MOST_ENTRIES and found["truncated"]
    await client.remove_file(workspace, "/tmp/many", recursive=True)
    await client.remove_file(workspace, "/tmp/deep", recursive=True)
    assert time.monotonic() - started < 30
    assert await sh(client, workspace, "ls /tmp") == ""


async def test_a_removed_workspace_ends_its_transfers(client: EngineClient, workspace: str) -> None:
    await sh(client, workspace, "dd if=/dev/zero of=/tmp/big bs=1 count=0 seek=8G 2> /dev/null")
    async with client.read_file(workspace, "/tmp/big") as answer:
        assert len(await answer.content.readexactly(1 << 20)) == 1 << 20
        await client.remove(workspace)
        with pytest.raises(aiohttp.ClientError):
            async for _ in answer.content.iter_any():
                pass


async def test_too_many_transfers_of_one_workspace_are_refused(client: EngineClient, workspace: str) -> None:
    await sh(client, workspace, "dd if=/dev/zero of=/tmp/big bs=1 count=0 seek=1G 2> /dev/null")
    held = [client.read_file(workspace, "/tmp/big") for _ in range(16)]
    answers = [await one.__aenter__() for one in held]
    with pytest.raises(LimitReached):
        await read(client, workspace, "/tmp/big")
    for answer in answers:
        answer.close()
    for one in held:
        await one.__aexit__(None, None, None)


async def test_a_stopped_workspace_has_no_files_to_reach(client: EngineClient) -> None:
    made = await client.launch(IMAGE, command=["/bin/sleep", "0.5"])
    async with asyncio.timeout(20):
        while (await client.get(made["id"]))["state"] != "stopped":
            await asyncio.sleep(0.1)
    with pytest.raises(Conflict, match="stopped"):
        await client.list_files(made["id"], "/")
