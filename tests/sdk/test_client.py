"""The Python SDK against the portal and an engine without containers. On a real desktop: tests/agents/test_sdk.py."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import tclone
from engine.config import REPO
from tclone import aio, sync
from tclone.blocking import _Declared
from tests.portal.conftest import Client, token_of
from tests.portal.fake_engine import FakeEngine
from tests.portal.test_actions import acted
from tests.sdk.conftest import Blocking

TWINS = [
    (sync.Client, aio.Client), (sync.Workspace, aio.Workspace), (sync.Control, aio.Control), (sync.Process, aio.Process),
    (sync.Files, sync.AsyncFiles), (sync.Ports, sync.AsyncPorts), (sync.Clipboard, sync.AsyncClipboard),
]  # fmt: skip


@pytest.mark.parametrize(("blocking", "asynchronous"), TWINS, ids=lambda kind: kind.__name__)
def test_every_method_has_its_twin_with_the_same_parameters(blocking: type, asynchronous: type) -> None:
    public = {name for name, value in inspect.getmembers(asynchronous) if not name.startswith("_") and (callable(value) or isinstance(value, property))}
    assert {name for name, _ in inspect.getmembers(blocking) if not name.startswith("_")} >= public
    for name, declared in inspect.getmembers_static(blocking):
        if isinstance(declared, _Declared):
            method = getattr(asynchronous, name)
            assert declared._name == method.__name__ and inspect.signature(declared.__wrapped__) == inspect.signature(method)


async def test_a_blocking_program_from_launch_to_discard(blocking: Blocking, engine: FakeEngine) -> None:
    def work(client: tclone.Client) -> None:
        with client.run("webtop-xfce", name="desk", ports=[3000]) as desk:
            assert (desk.name, desk.info.state, list(desk.info.ports)) == ("desk", "ready", [3000])
            assert str(inspect.signature(desk.click)).startswith("(x: 'int | None' = None, y:")
            desk.click(10, 20, modifiers="ctrl")
            desk.type("hello")
            assert desk.screenshot(width=64).image().size == (64, 40)
            assert [window.title for window in desk.windows()] == ["Terminal"]
            save = next(element for element in desk.elements() if element.role == "button")
            assert (save.name, save.place, save.parent, "showing" in save.states) == ("Save", (50, 20), 3, True)
            assert desk.clipboard.get() == "copied"
            assert desk.exec("cat", stdin="to and fro") == tclone.Completed(5, b"to and fro", b"done")
            with desk.start(["cat"]) as process:
                process.write("x")
                process.close_stdin()
                assert [(chunk.stream, chunk.data) for chunk in process.output()] == [(1, b"x"), (2, b"done")]
                assert process.status() == 5
            with desk.control() as control:
                assert control.key("Return").cursor == (3, 4)
                assert next(control.frames(width=64)).image().size == (64, 40)
            one, two = desk.branch(2, labels=["left", "right"])
            assert isinstance(one, tclone.Workspace) and isinstance(two, tclone.Workspace)
            assert (one.info.parent, one.info.label, two.info.label, two.info.generation) == (desk.id, "left", "right", 1)
            with one, two:
                assert {found.id for found in client.workspaces()} == {desk.id, one.id, two.id}
            assert client.workspace("desk").id == desk.id
        assert client.workspaces() == []

    await blocking(work)
    assert [names[0] for names in acted(engine)] == ["click", "type", "get_clipboard", "key"]


async def test_a_workspace_brings_a_client_of_its_own(reach: dict[str, Any], engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TCLONE_URL", reach["url"]), ("TCLONE_TOKEN", reach["token"]), ("TCLONE_CA", str(reach["ca"]))):
        monkeypatch.setenv(name, value)

    def work() -> None:
        with tclone.Workspace.run("webtop-xfce", name="desk") as desk:
            assert desk.cursor() == (3, 4)
        with pytest.raises(RuntimeError, match="closed"):
            desk.click(1, 1)
        with pytest.raises(tclone.NotFound):
            tclone.Workspace.run("no-such-image")

    await asyncio.to_thread(work)
    async with await aio.Workspace.run("webtop-xfce") as desk:
        assert (await desk.refresh()).state == "ready"
    assert engine.workspaces == {}
    assert not [thread for thread in threading.enumerate() if thread.name == "tclone"]


async def test_a_client_that_is_closed_ends_what_other_threads_wait_for(reach: dict[str, Any], engine: FakeEngine) -> None:
    engine.add(name="desk")
    told: list[str] = []

    def listen(desk: tclone.Workspace, began: threading.Event) -> None:
        try:
            for event in desk.events():
                told.append(event.type)
                began.set()
        except RuntimeError as error:
            told.append(str(error))

    def work() -> None:
        began = threading.Event()
        with tclone.Client(**reach) as client:
            desk = client.workspace("desk")
            listening = threading.Thread(target=listen, args=(desk, began))
            listening.start()
            # Each pause is told, once the listener is there.
            while not began.wait(0.05):
                desk.pause()
                assert desk.info.paused
                desk.resume()
        listening.join(10)
        assert not listening.is_alive() and told[-1] == "this client is closed" and not desk.info.paused
        client.close()

    await asyncio.to_thread(work)


async def test_what_was_found_stays_when_its_block_is_left(agent: aio.Client, engine: FakeEngine) -> None:
    engine.add(name="desk")
    async with await agent.workspace("desk") as desk:
        assert repr(desk) == "<Workspace ws-1 desk>"
    assert (await agent.workspace("ws-1")).name == "desk"
    with pytest.raises(tclone.NotFound, match="no workspace other"):
        await agent.workspace("other")


async def test_errors_are_one_tree_with_code_reason_and_holder(agent: aio.Client, engine: FakeEngine, person: Client) -> None:
    engine.add()
    desk = await agent.workspace("ws-1")
    assert (await person.request("POST", "/api/v1/workspaces/ws-1/lease", {})).status == 200
    for call in (desk.click(1, 1), desk.exec("ls"), desk.files.write("/tmp/x", b""), desk.discard()):
        with pytest.raises(tclone.Held) as held:
            await call
        assert (held.value.code, held.value.reason, held.value.holder) == ("held", "held_by_person", "admin")
    lease = await desk.lease()
    assert lease is not None and lease.holder == "admin"
    with pytest.raises(tclone.TimedOut):
        await desk.wait_until_free(0.1)
    assert (await person.request("DELETE", "/api/v1/workspaces/ws-1/lease")).status == 204
    await desk.wait_until_free()
    engine.action_fails = "activate"
    with pytest.raises(tclone.ActionFailed, match="activate: no window 7") as failed:
        await desk.act({"action": "cursor"}, {"action": "activate", "window": 7}, {"action": "cursor"})
    assert (failed.value.index, failed.value.code, failed.value.results[2]["skipped"]) == (1, "not_found", True)
    engine.refuse("fork", "unsupported", "cannot be forked", [{"pid": 7, "message": "io_uring"}])
    with pytest.raises(tclone.Refused) as refused:
        await desk.fork()
    assert refused.value.blockers == [{"pid": 7, "message": "io_uring"}]
    with pytest.raises(tclone.CommandFailed, match="ws-1: false ended with 5: done"):
        await desk.exec("false", check=True)
    engine.changed(engine.workspaces["ws-1"], state="starting")
    with pytest.raises(tclone.Conflict):
        await desk.screenshot()
    await desk.discard()
    await desk.discard()
    with pytest.raises(tclone.NotFound):
        await desk.refresh()


async def test_a_token_that_is_none_or_has_ended(reach: dict[str, Any], engine: FakeEngine, person: Client) -> None:
    async with aio.Client(**{**reach, "token": "tct_unknown"}) as client:
        with pytest.raises(tclone.LoginNeeded):
            await client.me()
    reader = await token_of(person, "read")
    engine.add()
    once = await token_of(person, "control")
    async with aio.Client(**{**reach, "token": once}) as client:
        desk = await client.workspace("ws-1")
        newest = max(await (await person.request("GET", "/api/v1/tokens")).json(), key=lambda token: token["created"])
        assert (await person.request("DELETE", f"/api/v1/tokens/{newest['id']}")).status == 204
        with pytest.raises(tclone.LoginNeeded, match="expired or was revoked"):
            async with desk.control():
                pass
        with pytest.raises(tclone.LoginNeeded, match="expired or was revoked"):
            async with desk.start(["true"]) as process:
                await process.status()
    async with aio.Client(**{**reach, "token": reader}) as client:
        assert (await client.me())["scopes"] == ["read"]
        desk = await client.workspace("ws-1")
        with pytest.raises(tclone.Forbidden):
            await desk.click(1, 1)
        async with desk.control() as control:
            with pytest.raises(tclone.Forbidden):
                await control.click(1, 1)


async def test_a_certificate_of_an_unknown_authority_is_not_trusted(reach: dict[str, Any], tmp_path: Path) -> None:
    async with aio.Client(url=reach["url"], token=reach["token"], ca="/etc/ssl/certs/ca-certificates.crt") as client:
        with pytest.raises(tclone.Unavailable, match="TCLONE_CA") as refused:
            await client.me()
        assert refused.value.code == "ca"
    with pytest.raises(tclone.NotFound, match="no certificate authority"):
        aio.Client(url=reach["url"], token=reach["token"], ca=tmp_path / "none.pem")


async def test_files_and_what_differs(agent: aio.Client, engine: FakeEngine, tmp_path: Path) -> None:
    engine.add()
    engine.add()
    desk, other = await agent.workspaces()
    assert await desk.files.read_text("/home/user/notes.txt") == "first\nsecond\n"
    entries = await desk.files.list("/home/user")
    assert [entry.path for entry in entries] == [b"/home/user/Documents", b"/home/user/notes.txt", b"/home/user/\xff\xfe"]
    assert await desk.files.read(entries[2].path) == b"odd"
    await desk.files.write("/home/user/a b+%41é", "x" * 600_000)
    assert engine.inside.files["/home/user/a b+%41é".encode()] == b"x" * 600_000
    with pytest.raises(tclone.Conflict):
        await desk.files.write("/home/user/notes.txt", b"", overwrite=False)
    assert await desk.files.download("/home/user/notes.txt", tmp_path / "out") == 13 and (tmp_path / "out").read_bytes() == b"first\nsecond\n"
    with pytest.raises(tclone.NotFound):
        await desk.files.download("/nowhere", tmp_path / "none")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    await desk.files.upload(tmp_path / "out", "/home/user/in")
    assert engine.inside.files[b"/home/user/in"] == b"first\nsecond\n"
    changes = await desk.files.diff("image")
    assert [(change.change, change.path) for change in changes][0] == ("added", b"/home/user/new.txt")
    assert not any(change.own for change in changes)
    assert [change.path for change in await desk.files.diff("image", own=True) if change.own] == [b"/var/log/desktop/stream.log", b"/home/user/.xsession-errors", b"/tmp/selkies_web1/jsdb/a.json"]
    assert "-second" in await desk.files.compare("/home/user/notes.txt")
    await desk.files.promote(other, ["/home/user/in"])
    await desk.files.make_directory("/home/user/d")
    await desk.files.remove("/home/user/d", recursive=True)
    assert b"/home/user/d" not in engine.inside.directories


async def test_ports(agent: aio.Client, engine: FakeEngine) -> None:
    engine.add()
    desk = await agent.workspace("ws-1")
    assert (await desk.wait_for_port(8000)).command == "python3"
    assert await desk.ports.url(8000) == "http://localhost:45000"
    assert (await desk.ports.published())[8000] == 45000 == await desk.ports.publish(8000)
    await desk.ports.unpublish(8000)
    assert 8000 not in await desk.ports.published()


async def test_events_of_one_workspace_end_with_it(agent: aio.Client, engine: FakeEngine) -> None:
    engine.add()
    engine.add()
    desk, other = await agent.workspaces()
    seen: list[tuple[str, str | None]] = []

    async def follow() -> None:
        async for event in desk.events():
            seen.append((event.type, event.data.get("state")))

    following = asyncio.create_task(follow())
    await asyncio.sleep(0.2)
    engine.changed(engine.workspaces[other.id], state="forking")
    engine.changed(engine.workspaces[desk.id], state="forking")
    await desk.discard()
    await asyncio.wait_for(following, 20)
    assert seen[0] == ("workspace", "forking") and seen[-1] == ("gone", None)


async def test_a_control_connection_ends_loudly(agent: aio.Client, engine: FakeEngine) -> None:
    engine.add()
    desk = await agent.workspace("ws-1")
    async with desk.control() as control:
        first, second = await asyncio.gather(control.move(1, 1), control.move(2, 2))
        assert first.screen == second.screen == (1280, 800)
        async for frame in control.frames(format="png", width=64):
            if frame.number == 3:
                break
            engine.screens["ws-1"] = 100 + frame.number
        # Another stream begins with a picture of its own kind.
        async for frame in control.frames(width=32):
            assert frame.size == (32, 20)
            break
        await desk.discard()
        with pytest.raises(tclone.NotFound, match="ws-1 is gone"):
            async for _ in control.frames():
                pass
        with pytest.raises(tclone.NotFound):
            await control.click(1, 1)
    with pytest.raises(tclone.NotFound):
        async with desk.control():
            pass


async def test_a_fork_tells_of_each_child(agent: aio.Client, engine: FakeEngine, person: Client) -> None:
    engine.add()
    desk = await agent.workspace("ws-1")
    limit = {"idle_seconds": None, "lifetime_seconds": None, "user_workspaces": None, "user_memory": None, "all_workspaces": 3, "all_memory": None}
    answer = await person.request("PUT", "/api/v1/settings", limit)
    assert answer.status == 200, await answer.text()
    children = await desk.fork(4, name="try", partial=True)
    assert [type(child) for child in children] == [aio.Workspace, aio.Workspace, tclone.LimitReached, tclone.LimitReached]
    with pytest.raises(tclone.LimitReached) as refused:
        await desk.fork()
    assert refused.value.details["quota"]


async def test_an_answer_that_is_lost_does_nothing_twice(agent: aio.Client, engine: FakeEngine) -> None:
    session = agent._transport._open()
    send, lost = session.request, 0

    async def losing(method: str, *arguments: Any, **options: Any) -> aiohttp.ClientResponse:
        """The first answer to each that does something gets lost on its way."""
        nonlocal lost
        answer = await send(method, *arguments, **options)
        if method == "POST" and lost % 2 == 0:
            lost += 1
            answer.close()
            raise aiohttp.ServerDisconnectedError
        lost += method == "POST"
        return answer

    session.request = losing  # type: ignore[method-assign, assignment]
    desk = await agent.run("webtop-xfce")
    await desk.click(1, 2)
    children = await desk.fork(2)
    assert lost == 6 and all(isinstance(child, aio.Workspace) for child in children)
    assert [verb for verb, _ in engine.calls if verb in ("launch", "act", "fork")] == ["launch", "act", "fork"]
    assert len(engine.workspaces) == 3


def test_the_provider_for_desktop_env_needs_none_of_the_sdks_packages() -> None:
    """It is imported in DesktopEnv's environment, which has none of them."""
    script = (
        "import sys, types\n"
        "for name in ('desktop_env', 'desktop_env.providers', 'desktop_env.providers.base'): sys.modules[name] = types.ModuleType(name)\n"
        "sys.modules['desktop_env.providers.base'].Provider = sys.modules['desktop_env.providers.base'].VMManager = object\n"
        "sys.modules['aiohttp'] = sys.modules['websockets'] = None\n"
        "import tclone.osworld\n"
        "try: tclone.osworld.Machines()('list')\n"
        "except tclone.Unavailable as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={"PYTHONPATH": str(REPO), "TCLONE_COMMAND": "/nowhere/tclone"}, capture_output=True, text=True, check=False, cwd=REPO
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("cannot run /nowhere/tclone: No such file or directory; put `tclone` on PATH")


def test_all_that_the_package_names_is_there() -> None:
    assert all(getattr(tclone, name) for name in tclone.__all__) and tclone.Client is sync.Client
    with pytest.raises(AttributeError, match="Workspaces"):
        tclone.Workspaces  # noqa: B018
