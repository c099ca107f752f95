"""The portal's two real processes, with engine and desktop played, and what a browser does with them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import shutil
import socket
import ssl
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import aiohttp

from engine.config import REPO, Config
from engine.errors import NotFound
from engine.network.fdserver import FdServer
from portal.hosts import PORTAL_HOST
from portal.places import Places
from portal.setup import prepare
from tests.portal.conftest import Client as Browser
from tests.ports import free_port
from tests.portal.fake_engine import FakeEngine
from tests.stream.world import FakeDescriptors

Desktop = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PATIENCE = 60.0


class Stack:
    """Both processes; `login()` and `view()` are what a browser does."""

    engine: FakeEngine

    def __init__(self, config: Config, password: str, workers: int, environment: dict[str, str]) -> None:
        self.config, self.password, self.port = config, password, free_port()
        self._names = ["stream", *(f"stream-{number}" for number in range(1, workers))]
        self._environment = environment
        self.places = Places(config)
        self.trust = ssl.create_default_context(cafile=str(self.places.ca_certificate))
        self.trust.check_hostname = False
        self.processes: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, name: str, *words: str) -> asyncio.subprocess.Process:
        environment = {
            **os.environ, "PYTHONPATH": str(REPO), "TCLONE_DATA": str(self.config.data), "TCLONE_RUN": str(self.config.run),
            "TCLONE_PORTAL_USER": self.config.portal_user, "TCLONE_PORTAL_PORT": str(self.port),
            **self._environment,
        }  # fmt: skip
        argv = [sys.executable, "-m", f"portal.{name}", *words]
        self.processes[name] = await asyncio.create_subprocess_exec(*argv, env=environment, start_new_session=True)
        return self.processes[name]

    async def stop(self) -> None:
        for process in self.processes.values():
            if process.returncode is None:
                process.terminate()
                await asyncio.wait_for(process.wait(), 30)

    async def health(self, name: str = "stream") -> dict[str, object]:
        with contextlib.suppress(aiohttp.ClientError, OSError):
            connector = aiohttp.UnixConnector(str(self.places.run / f"{name}.sock"))
            async with aiohttp.ClientSession(connector=connector) as http, http.get("http://stream/healthz") as answer:
                return await answer.json()
        return {}

    async def watching(self) -> bool:
        """Whether every worker follows control and engine."""
        found = [await self.health(name) for name in self._names]
        return all(one.get("control") and one.get("engine") for one in found)

    async def control_is(self, watched: bool) -> bool:
        """Whether all workers say so of control."""
        return all([(await self.health(name)).get("control") is watched for name in self._names])

    async def replaced(self, name: str, pid: int) -> bool:
        """Whether a worker answers as another process than `pid`."""
        return (await self.health(name)).get("pid") not in (None, pid)

    @contextlib.asynccontextmanager
    async def login(self) -> AsyncIterator[Browser]:
        browser = Browser(self.places.control_socket, f"{PORTAL_HOST}:{self.port}")
        try:
            assert (await browser.login(self.password)).status == 200
            yield browser
        finally:
            await browser.close()

    async def enter(self, http: aiohttp.ClientSession, browser: Browser) -> str:
        """The desk cookie of ws-1."""
        ticket = await (await browser.request("POST", "/api/v1/workspaces/ws-1/ticket", {})).json()
        headers = {"Host": f"ws-1.{PORTAL_HOST}:{self.port}", "Origin": f"https://{PORTAL_HOST}:{self.port}"}
        async with http.post(
            f"https://127.0.0.1:{self.port}/__tclone/enter", data={"code": ticket["code"]}, headers=headers, allow_redirects=False
        ) as answer:
            assert answer.status == 303, await answer.text()
            return answer.headers["Set-Cookie"].partition(";")[0]

    def view(self, http: aiohttp.ClientSession, cookie: str):
        """The desktop's stream. Each call is a connection of its own, which either worker may get."""
        host = f"ws-1.{PORTAL_HOST}:{self.port}"
        headers = {"Host": host, "Origin": f"https://{host}", "Cookie": cookie}
        return http.ws_connect(f"https://127.0.0.1:{self.port}/api/websockets", headers=headers, autoping=False)


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def running(desktop: Desktop | None = None, workers: int = 2, **environment: str) -> AsyncIterator[Stack]:
    """A stack with one workspace, ws-1, whose desktop is `desktop` (default: `pictures`). `environment`: further settings of both processes."""
    top = Path(tempfile.mkdtemp(prefix="tclone-plane-"))
    config = replace(Config.from_environment(), data=top / "data", run=top / "run", images=REPO / "images", portal_user="root")
    config.run.mkdir()
    prepared = await asyncio.to_thread(prepare, config)
    assert prepared.password is not None
    server = await asyncio.start_server(desktop or pictures, "127.0.0.1", 0)
    descriptors = FakeDescriptors()
    descriptors.targets[("ws-1", 8080)] = server.sockets[0].getsockname()[1]
    fds = FdServer(config.fd_socket, "root", descriptors.connect, _no_listener)
    await fds.start()
    made = Stack(config, prepared.password, workers, environment)
    try:
        async with FakeEngine(config.socket) as engine:
            made.engine = engine
            engine.add(state="ready")
            await made.start("control")
            await made.start("stream", "--workers", str(workers), "--bind", "127.0.0.1")
            await until(made.watching)
            yield made
            await made.stop()
    finally:
        await made.stop()
        await fds.stop()
        server.close()
        shutil.rmtree(top)


def _no_listener(workspace: str, port: int) -> socket.socket:
    raise NotFound(f"{workspace} publishes no port {port}")


async def pictures(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A desktop that sends a numbered frame every 20 ms, until the viewer says something, which is that it closes."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        (key,) = (line.partition(": ")[2] for line in head.split("\r\n") if line.lower().startswith("sec-websocket-key:"))
        accept = base64.b64encode(hashlib.sha1(key.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()).decode()
        lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Accept: {accept}"]
        writer.write("\r\n".join([*lines, "Sec-WebSocket-Protocol: selkies", "", ""]).encode())
        said = asyncio.create_task(reader.read(1))
        number = -1
        while not said.done():
            number += 1
            writer.write(b"\x82\x04" + number.to_bytes(4, "big"))
            await writer.drain()
            await asyncio.sleep(0.02)
    writer.transport.abort()


def viewer_session(stack: Stack) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=stack.trust, force_close=True), cookie_jar=aiohttp.DummyCookieJar())
