"""Bad input: each is refused with its documented code and a message that names it, and leaves nothing."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess

import aiohttp
import pytest

from engine.client import EngineClient
from engine.errors import BadRequest, Conflict, NotFound, Unavailable
from tests.engine.support import IMAGE, Engine

_BAD_LAUNCHES = [
    ({}, "image"),
    ({"image": IMAGE, "name": "Not-Good"}, "Not-Good"),
    ({"image": IMAGE, "name": "../x"}, "../x"),
    ({"image": IMAGE, "name": "a" * 42}, "aaa"),
    ({"image": IMAGE, "name": "ws-1"}, "looks like an id"),
    ({"image": IMAGE, "name": 7}, "7"),
    ({"image": IMAGE, "ports": [{"container": 0}]}, "port 0"),
    ({"image": IMAGE, "ports": [{"container": 70000}]}, "70000"),
    ({"image": IMAGE, "ports": [{"container": True}]}, "True"),
    ({"image": IMAGE, "ports": [{"container": 80}, {"container": 80}]}, "twice"),
    ({"image": IMAGE, "ports": "80"}, "ports"),
    ({"image": IMAGE, "env": {"A=B": "x"}}, "A=B"),
    ({"image": IMAGE, "env": {"A": "x\0y"}}, "NUL"),
    ({"image": IMAGE, "memory": 5}, "memory"),
    ({"image": IMAGE, "memory": "1g"}, "memory"),
    ({"image": IMAGE, "pids": 0}, "pids"),
    ({"image": IMAGE, "network": "some"}, "network"),
    ({"image": IMAGE, "command": []}, "command"),
    ({"image": IMAGE, "surprise": 1}, "surprise"),
]


async def _post(engine: Engine, path: str, data: bytes | str) -> tuple[int, dict]:
    connector = aiohttp.UnixConnector(str(engine.config.socket))
    async with aiohttp.ClientSession(connector=connector) as session, session.post("http://e" + path, data=data) as answer:
        return answer.status, json.loads(await answer.text())


async def test_launches_that_are_refused(serving: Engine, client: EngineClient) -> None:
    for body, named in _BAD_LAUNCHES:
        status, answer = await _post(serving, "/v1/workspaces", json.dumps(body))
        assert status == 400, (body, answer)
        assert answer["error"]["code"] == "bad_request" and named in answer["error"]["message"], (body, answer)
    assert await client.list() == []


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff\xfe", b'"x"', b"{" * 5000])
async def test_bodies_that_are_not_objects(serving: Engine, body: bytes) -> None:
    status, answer = await _post(serving, "/v1/workspaces", body)
    assert status == 400 and answer["error"]["code"] == "bad_request"


async def test_unknown_things(serving: Engine, client: EngineClient) -> None:
    with pytest.raises(NotFound, match="no image nothing"):
        await client.launch("nothing")
    for call in (client.get("ws-99"), client.remove("ws-99"), client.fork("ws-99"), client.stats("ws-99")):
        with pytest.raises(NotFound, match="ws-99"):
            await call
    with pytest.raises(BadRequest):
        await client.get("..%2f..")
    status, answer = await _post(serving, "/v1/nothing", b"{}")
    assert status == 404 and answer["error"]["code"] == "not_found"


async def test_names_and_host_ports_are_taken_once(client: EngineClient) -> None:
    first = await client.launch(IMAGE, name="taken")
    with pytest.raises(Conflict, match="the name taken is taken") as refused:
        await client.launch(IMAGE, name="taken")
    assert refused.value.field == "name"
    with pytest.raises(Conflict):
        await client.launch(IMAGE, ports=[{"container": 81, "host": first["ports"]["3000"]}])
    assert [workspace["id"] for workspace in await client.list()] == [first["id"]]


async def test_copies_out_of_range_and_wrong_types(serving: Engine, client: EngineClient) -> None:
    await client.launch(IMAGE, name="src", wait=True)
    for body in ({"copies": 0}, {"copies": 9}, {"copies": "2"}, {"tcp_close": 1}, {"ghost_limit": -1}, {"name": "X"}):
        status, answer = await _post(serving, "/v1/workspaces/src/fork", json.dumps(body))
        assert status == 400 and answer["error"]["field"] == next(iter(body)), (body, answer)
    with pytest.raises(Conflict, match="the name src is taken") as refused:
        await client.fork("src", name="src")
    assert refused.value.field == "name"


async def test_the_stream_token_of_a_headless_workspace(client: EngineClient) -> None:
    await client.launch(IMAGE, name="headless", wait=True)
    with pytest.raises(Conflict, match="no desktop"):
        await client.stream_token("headless")


async def test_another_user_is_refused(engine: Engine) -> None:
    assert engine.config.socket.stat().st_mode & 0o777 == 0o660
    # Even with the file open to all, the peer's credentials decide.
    os.chmod(engine.config.socket, 0o666)
    for path in (engine.run, *engine.run.parents):
        if path.stat().st_mode & 0o011 != 0o011:
            path.chmod(path.stat().st_mode | 0o011)
    code = (
        "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "s.sendall(b'GET /v1/workspaces HTTP/1.0\\r\\nHost: e\\r\\n\\r\\n'); print(s.recv(99).split()[1].decode())"
    )
    done = subprocess.run(
        ["/usr/bin/python3", "-c", code, str(engine.config.socket)], user=65534, group=65534, extra_groups=[],
        capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    assert done.stdout.strip() == "403", done.stderr


async def test_a_client_without_an_engine(tmp_path) -> None:
    async with EngineClient(tmp_path / "none.sock") as client:
        with pytest.raises(Unavailable, match="tclone up"):
            await client.list()


async def test_a_second_engine_in_the_same_place_is_refused(engine: Engine) -> None:
    second = Engine(engine.config.data, engine.run)
    status = await asyncio.to_thread(second.spawn().wait, 90)
    assert status == Unavailable.exit_status
    assert "another engine runs" in second.log.read_text()
    async with engine.client() as client:
        assert (await client.health())["ok"]


async def test_rubbish_on_the_socket(serving: Engine) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(serving.config.socket))
        raw.sendall(b"\0\1\2 nonsense\r\n\r\n" * 100)
        raw.settimeout(5)
        assert b"400" in raw.recv(4096)
    async with serving.client() as client:
        assert (await client.health())["ok"]
