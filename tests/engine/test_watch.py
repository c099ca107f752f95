"""`tclone-init --watch` in a workspace: what happens in a directory is told, once, by paths below it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from engine.client import EngineClient, ExecSession
from tests.engine.support import IMAGE, PATIENCE

pytestmark = [pytest.mark.root]

PROGRAM = "/usr/libexec/tclone/init"


@pytest.fixture
async def workspace(client: EngineClient) -> str:
    return (await client.launch(IMAGE, wait=True))["id"]


class Watch:
    """What one program tells."""

    def __init__(self, client: EngineClient, workspace: str, session: ExecSession) -> None:
        self._client = client
        self._workspace = workspace
        self._output = session.output()
        self._left = b""
        self._events: list[str] = []

    async def until(self, last: str) -> list[str]:
        """Its events up to and with this one, as the letter and the path."""
        async with asyncio.timeout(PATIENCE):
            while last not in self._events:
                _, data = await anext(self._output)
                *events, self._left = (self._left + data).split(b"\0")
                self._events += [event.decode() for event in events]
        at = self._events.index(last) + 1
        found, self._events = self._events[:at], self._events[at:]
        return found

    async def after(self, script: str) -> list[str]:
        """What is told of a script, which is followed by a directory that ends the list."""
        status, _, said = await self._client.run(self._workspace, ["sh", "-c", f"cd /root/w; {script}; mkdir /root/w/end"])
        assert status == 0, said
        found = await self.until("Cend")
        await self._client.run(self._workspace, ["sh", "-c", "rm -r /root/w/end"])
        await self.until("Rend")
        return found[:-1]


@contextlib.asynccontextmanager
async def watching(client: EngineClient, workspace: str, how: str = "--watch-below") -> AsyncIterator[Watch]:
    await client.run(workspace, ["sh", "-c", "mkdir -p /root/w/old /root/outside; echo x >/root/outside/f; ln -s /root/outside /root/w/link"])
    async with client.exec(workspace, [PROGRAM, how, "/root/w"]) as session:
        watch = Watch(client, workspace, session)
        assert await watch.until("S.") == ["S."]
        yield watch


async def test_everything_that_happens_is_told(client: EngineClient, workspace: str) -> None:
    async with watching(client, workspace) as watch:
        assert await watch.after("echo a >f") == ["Cf", "Wf"]
        assert await watch.after("rm f") == ["Rf"]
        assert await watch.after("echo b >old/g; mv old/g h") == ["Cold/g", "Wold/g", "Nold/g", "Ch"]
        # Also in directories that come, by whatever name they have then, and nowhere that nobody asked about.
        assert (await watch.after("mkdir new; sleep 0.5; echo c >new/i"))[-2:] == ["Cnew/i", "Wnew/i"]
        assert await watch.after("mv new newer; sleep 0.5; echo d >newer/j") == ["Nnew", "Cnewer", "Cnewer/i", "Cnewer/j", "Wnewer/j"]
        assert await watch.after("mv newer /root/outside/newer; sleep 0.5; echo e >/root/outside/newer/k; echo f >link/f") == ["Nnewer"]
        # What lies in a directory when it comes was seen by nobody else.
        found = await watch.after("mv /root/outside/newer back")
        assert (found[0], sorted(found[1:])) == ("Cback", ["Cback/i", "Cback/j", "Cback/k"])


async def test_one_level_is_one_level_and_the_end_of_the_directory_is_the_end(client: EngineClient, workspace: str) -> None:
    async with watching(client, workspace, "--watch") as watch:
        assert await watch.after("echo a >old/f; echo b >g") == ["Cg", "Wg"]
        await client.run(workspace, ["rm", "-r", "/root/w"])
        assert (await watch.until("R."))[-1] == "R."
        with pytest.raises(StopAsyncIteration):
            async with asyncio.timeout(PATIENCE):
                await anext(watch._output)


@pytest.mark.parametrize(("path", "said"), [("/root/nothing", "No such file or directory"), ("/etc/passwd", "Not a directory")])
async def test_what_cannot_be_watched_is_named(client: EngineClient, workspace: str, path: str, said: str) -> None:
    assert await client.run(workspace, [PROGRAM, "--watch", path]) == (1, b"", f"cannot watch {path}: {said}\n".encode())
