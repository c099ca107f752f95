"""A share link on the real image: what its viewer sends changes nothing, what the desktop copies does not reach it, and it is out when revoked.

No browser: the messages are those of the desktop's own page, sent over its WebSocket by whoever could write a page of its own.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver

from tests.e2e.stack import IMAGE, Stack, in_thread
from tests.e2e.waiting import PATIENCE, until

pytestmark = pytest.mark.desktop

RETURN = 65293  # the keysym
COPIED = "copied inside the desktop"


class _Here(AbstractResolver):
    """Every name is this machine."""

    async def resolve(self, host: str, port: int = 0, family: int = socket.AF_INET) -> list[Any]:
        return [{"hostname": host, "host": "127.0.0.1", "port": port, "family": socket.AF_INET, "proto": 0, "flags": 0}]

    async def close(self) -> None:
        return None


class Browser:
    """What a browser does to get to a desktop, and then whatever one likes. `told` is what the desktop's server sends."""

    def __init__(self, stack: Stack, http: aiohttp.ClientSession, workspace: str) -> None:
        self._stack = stack
        self._http = http
        self._workspace = workspace
        self._headers = {"Origin": stack.origin}
        self.told: list[str] = []

    async def login(self) -> None:
        body = {"user": "admin", "password": self._stack.password}
        async with self._http.post(f"{self._stack.origin}/api/v1/login", json=body, headers=self._headers) as answer:
            assert answer.status == 200, await answer.text()
            self._headers |= {"X-TClone-Key": (await answer.json())["key"], "Cookie": f"__Host-tclone={answer.cookies['__Host-tclone'].value}"}

    async def call(self, method: str, path: str, body: object = None) -> Any:
        async with self._http.request(method, f"{self._stack.origin}/api/v1{path}", json=body, headers=self._headers) as answer:
            assert answer.status < 300, await answer.text()
            return await answer.json() if answer.status != 204 else None

    async def enter(self, entrance: dict[str, str]) -> None:
        """Post the one-time code; from now on with the desktop's cookie alone."""
        async with self._http.post(entrance["action"], data={"code": entrance["code"]}, headers={"Origin": self._stack.origin}, allow_redirects=False) as answer:
            assert answer.status == 303, await answer.text()
            desk = answer.headers["Set-Cookie"].partition(";")[0]
        self.desk = {"Cookie": desk, "Origin": self._stack.desktop_origin(self._workspace)}

    async def status(self, method: str, path: str) -> int:
        async with self._http.request(method, self._stack.desktop_origin(self._workspace) + path, headers=self.desk, data=b"x" if method == "POST" else None) as answer:
            return answer.status

    @contextlib.asynccontextmanager
    async def stream(self) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """The desktop's WebSocket, its video started as the page starts it."""
        opened, reader = await self._open()
        async with opened:
            await opened.send_str("SETTINGS," + json.dumps({"displayId": "primary"}))
            await opened.send_str("START_VIDEO")
            yield opened
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _open(self) -> tuple[aiohttp.ClientWebSocketResponse, asyncio.Task[None]]:
        """Connect; once more, as the page does, when the desktop's server found that too soon after somebody else (4029)."""
        address = self._stack.desktop_origin(self._workspace).replace("https", "wss") + "/api/websockets"
        while True:
            opened = await self._http.ws_connect(address, headers=self.desk, protocols=["selkies"], max_msg_size=0)
            reader = asyncio.create_task(self._listen(opened))
            hearing = asyncio.create_task(self.hears("MK_ACCESS,"))
            await asyncio.wait({reader, hearing}, return_when=asyncio.FIRST_COMPLETED)
            if hearing.done():
                await hearing
                return opened, reader
            hearing.cancel()
            assert opened.close_code == 4029, f"the desktop's server hung up with {opened.close_code}; it said {self.told}"
            await asyncio.sleep(1)

    async def _listen(self, opened: aiohttp.ClientWebSocketResponse) -> None:
        async for message in opened:
            if message.type is aiohttp.WSMsgType.TEXT:
                self.told.append(message.data)

    async def hears(self, start: str) -> str:
        async with asyncio.timeout(PATIENCE):
            while not (found := [text for text in self.told if text.startswith(start)]):
                await asyncio.sleep(0.05)
        return found[0]

    def heard(self, text: str) -> bool:
        """Whether the desktop's server sent this text, as it is or in base64."""
        encoded = base64.b64encode(text.encode()).decode()
        return any(text in said or encoded in said for said in self.told)


async def drive(stream: aiohttp.ClientWebSocketResponse, x: int, y: int, text: str) -> None:
    """Move the pointer, click, type a line, and set the clipboard."""
    for message in (f"m,{x},{y},0,0", f"m,{x},{y},1,0", f"m,{x},{y},0,0", f"co,end,{text}", f"kd,{RETURN}", f"ku,{RETURN}"):
        await stream.send_str(message)
        await asyncio.sleep(0.1)
    await stream.send_str("cw," + base64.b64encode(text.encode()).decode())


@pytest.fixture
def workspace(stack: Stack) -> str:
    """A desktop with a terminal in its middle that keeps the line typed into it."""
    identity = stack.tclone("run", IMAGE, "--name", "shared", timeout=600).strip()
    stack.output(
        identity,
        "setsid xfce4-terminal --geometry 80x20+300+200 --title keeper -x bash -c 'read line; echo \"$line\" > /home/user/typed; sleep 1000' >/dev/null 2>&1 &"
        " for i in $(seq 100); do wmctrl -l | grep -q keeper && break; sleep 0.2; done; wmctrl -a keeper",
    )
    yield identity
    stack.tclone("rm", identity)


def test_a_viewer_watches_and_no_more(stack: Stack, workspace: str) -> None:
    def pointer() -> str:
        return " ".join(stack.output(workspace, "xdotool getmouselocation").split()[:2])

    async def story() -> None:
        trust = ssl.create_default_context(cafile=str(stack.config.data / "portal" / "tls" / "ca.pem"))
        connector = aiohttp.TCPConnector(resolver=_Here(), ssl=trust)
        async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as http:
            owner, viewer = Browser(stack, http, workspace), Browser(stack, http, workspace)
            await owner.login()
            share = await owner.call("POST", f"/workspaces/{workspace}/shares", {"label": "review"})
            await viewer.enter(await viewer.call("POST", "/share", {"secret": share["link"].partition("#")[2]}))
            assert [await viewer.status("GET", "/"), await viewer.status("GET", "/api/files/"), await viewer.status("POST", "/api/upload")] == [200, 404, 404]

            await owner.enter(await owner.call("POST", f"/workspaces/{workspace}/ticket"))
            before = await asyncio.to_thread(pointer)
            async with owner.stream() as driving, viewer.stream() as watching:
                assert (await owner.hears("MK_ACCESS,"), await viewer.hears("MK_ACCESS,")) == ("MK_ACCESS,1", "MK_ACCESS,0")
                await drive(watching, 500, 300, "typed by the viewer")
                await asyncio.sleep(3)
                assert await asyncio.to_thread(pointer) == before
                assert await asyncio.to_thread(stack.content, workspace, "typed") is None
                # The same from the owner does all of that: the test could have failed.
                await drive(driving, 500, 300, "typed by the owner")
                await asyncio.to_thread(until, "the owner's line is kept", lambda: stack.content(workspace, "typed") == "typed by the owner\n")
                assert await asyncio.to_thread(pointer) == "x:500 y:300"
                copied = lambda: stack.output(workspace, "xclip -o -selection clipboard || true") == "typed by the owner"  # noqa: E731
                await asyncio.to_thread(until, "the owner's clipboard is the desktop's", copied)

                await asyncio.to_thread(stack.output, workspace, f"printf '{COPIED}' | xclip -i -selection clipboard >/dev/null 2>&1")
                await asyncio.to_thread(until, "the owner is told of the clipboard", lambda: owner.heard(COPIED))
                assert not viewer.heard(COPIED)

                listed = await owner.call("GET", f"/workspaces/{workspace}/shares")
                assert [link["viewers"] for link in listed] == [1]
                begun = time.monotonic()
                await owner.call("DELETE", f"/workspaces/{workspace}/shares/{share['id']}")
                while not watching.closed:
                    assert time.monotonic() - begun < 1.0, "the viewer is still in a second after the link was revoked"
                    await asyncio.sleep(0.02)
                assert not driving.closed
            assert await viewer.status("GET", "/") == 401

    in_thread(story())
