"""The stream server's surroundings as fakes by behaviour: control, engine, descriptor socket, desktops, and a raw TLS client."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from engine.config import Config
from engine.errors import Conflict, EngineError, NotFound, Unavailable
from portal.hosts import PORTAL_HOST
from portal.stream.certificate import Certificate
from portal.stream.pace import Pace
from portal.stream.server import Settings, StreamServer

DESK_COOKIE = "__Host-tclone-desk"
TOKEN = "token-of-the-desktop+/="
# How long a test waits for what must come, in seconds: test machines can be busy.
PATIENCE = 30.0


def config_for(directory: Path) -> Config:
    """A configuration below `directory`."""
    base = Config.from_environment()
    values = {name: getattr(base, name) for name in base.__dataclass_fields__}
    return Config(**{**values, "data": directory / "data", "run": directory / "run"})


class FakeControl:
    """Control's two sockets. `codes` and `desks` map to (session, workspace)."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.codes: dict[str, tuple[str, str]] = {}
        self.desks: dict[str, tuple[str, str]] = {}
        self.live: set[str] = set()
        # Sessions that are share links.
        self.viewers: set[str] = set()
        self.opened: list[Any] = []
        self.expires = time.time() + 3600
        self.checks = 0
        self.check_delay = 0.0
        self.requests: list[web.Request] = []
        self.watchers: set[web.WebSocketResponse] = set()
        self._runners: list[web.AppRunner] = []

    async def start(self) -> None:
        private = web.Application()
        private.router.add_post("/tickets/redeem", self._redeem)
        private.router.add_post("/desks/check", self._check)
        private.router.add_get("/sessions/watch", self._watch)
        public = web.Application(client_max_size=64 << 20)
        public.router.add_get("/ws", self._echo)
        public.router.add_route("*", "/{tail:.*}", self._page)
        for application, name in ((private, "private.sock"), (public, "control.sock")):
            (self.run / name).unlink(missing_ok=True)
            runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            await web.UnixSite(runner, str(self.run / name)).start()
            self._runners.append(runner)

    async def stop(self) -> None:
        for watcher in list(self.watchers):
            await watcher.close()
        for runner in self._runners:
            await runner.cleanup()
        self._runners.clear()

    async def end_session(self, session: str) -> None:
        self.live.discard(session)
        self.desks = {cookie: owner for cookie, owner in self.desks.items() if owner[0] != session}
        await self.tell(session, "logout")

    async def tell(self, session: str, reason: str) -> None:
        for watcher in list(self.watchers):
            await watcher.send_json({"type": "ended", "session": session, "reason": reason})

    @staticmethod
    def _denied() -> web.Response:
        return web.json_response({"error": {"code": "denied", "message": "not good"}}, status=403)

    def _role(self, session: str) -> dict[str, str]:
        return {"role": "viewer" if session in self.viewers else "controller"}

    async def _redeem(self, request: web.Request) -> web.Response:
        body = await request.json()
        session, workspace = self.codes.pop(body["code"], ("", ""))
        if not session or workspace != body["workspace"]:
            return self._denied()
        desk = f"desk-{len(self.desks)}"
        self.desks[desk] = (session, workspace)
        return web.json_response({"desk": desk, "session": session, "user": "admin", "workspace": workspace, "expires": int(self.expires), **self._role(session)})

    async def _check(self, request: web.Request) -> web.Response:
        self.checks += 1
        body = await request.json()
        session, workspace = self.desks.get(body["desk"], ("", ""))
        await asyncio.sleep(self.check_delay)
        if not session or workspace != body["workspace"]:
            return self._denied()
        return web.json_response({"session": session, "user": "admin", "workspace": workspace, "expires": self.expires, **self._role(session)})

    async def _watch(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_json({"type": "snapshot", "sessions": sorted(self.live)})
        self.watchers.add(socket)
        try:
            async for message in socket:
                self.opened = json.loads(message.data)["open"]
        finally:
            self.watchers.discard(socket)
        return socket

    async def _echo(self, request: web.Request) -> web.WebSocketResponse:
        self.requests.append(request)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data)
        return socket

    async def _page(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        body = await request.read()
        response = web.Response(text=f"control {request.method} {request.raw_path} {len(body)}")
        response.headers.add("Set-Cookie", "__Host-tclone=portal; Secure; Path=/")
        return response


class FakeEngine:
    """Events and stream tokens. `down` makes every call fail; `restart()` breaks the event stream."""

    def __init__(self) -> None:
        self.workspaces: dict[str, dict[str, Any]] = {}
        self.tokens: dict[str, str] = {}
        self.roles: list[str] = []
        self.down = False
        self._queues: set[asyncio.Queue[dict[str, Any] | None]] = set()

    def add(self, workspace: str, **fields: Any) -> None:
        item = {"id": workspace, "state": "ready", "phase": "", "desktop": True, "ports": {}, **fields}
        self.workspaces[workspace] = item
        if item["state"] == "ready":
            self.tokens[workspace] = TOKEN
        self._publish({"type": "workspace", "workspace": workspace, "data": item})

    def remove(self, workspace: str) -> None:
        del self.workspaces[workspace]
        self.tokens.pop(workspace, None)
        self._publish({"type": "gone", "workspace": workspace, "data": {}})

    def restart(self) -> None:
        for queue in list(self._queues):
            queue.put_nowait(None)

    def _publish(self, event: dict[str, Any]) -> None:
        for queue in self._queues:
            queue.put_nowait({"seq": 1, **event})

    async def events(self, since: int | None = None) -> AsyncIterator[dict[str, Any]]:
        if self.down:
            raise Unavailable("the engine is down")
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._queues.add(queue)
        try:
            yield {"type": "snapshot", "seq": 1, "workspaces": list(self.workspaces.values())}
            while (event := await queue.get()) is not None:
                yield event
            yield {"type": "disconnected"}
        finally:
            self._queues.discard(queue)

    async def stream_token(self, ref: str, role: str = "controller") -> dict[str, Any]:
        self.roles.append(role)
        if self.down:
            raise Unavailable("the engine is down")
        if ref not in self.workspaces:
            raise NotFound(f"no workspace {ref}")
        if ref not in self.tokens:
            raise Conflict("not ready")
        return {"port": 8080, "token": self.tokens[ref] if role == "controller" else f"viewer-{self.tokens[ref]}"}


class FakeDescriptors:
    """Connects to `targets[(workspace, port)]`; listeners are real ones on 127.0.0.1."""

    def __init__(self) -> None:
        self.targets: dict[tuple[str, int], int] = {}
        self.host_ports: dict[tuple[str, int], int] = {}
        self.error: EngineError | None = None
        self.listened = 0

    async def connect(self, workspace: str, port: int) -> socket.socket:
        if self.error is not None:
            raise self.error
        target = self.targets.get((workspace, port))
        if target is None:
            raise Unavailable(f"port {port} of {workspace}: connection refused")
        sock = socket.socket()
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", target))
        except OSError as exc:
            sock.close()
            raise Unavailable(str(exc)) from exc
        return sock

    async def listener(self, workspace: str, port: int) -> socket.socket:
        if self.error is not None:
            raise self.error
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", self.host_ports.get((workspace, port), 0)))
        sock.listen()
        self.host_ports[(workspace, port)] = sock.getsockname()[1]
        self.listened += 1
        return sock

    async def close(self) -> None:
        return None


RawHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Reply:
    """An HTTP answer read from the raw client."""

    def __init__(self, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split(" ")[1])
        self.headers = [tuple(line.split(": ", 1)) for line in lines[1:] if line]
        self.body = b""

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def get(self, name: str) -> str:
        return ", ".join(self.all(name))

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """A TLS connection on which the test writes the bytes itself."""

    def __init__(self, world: World, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.world, self.reader, self.writer = world, reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> Reply:
        return Reply((await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE))[:-4])

    async def reply(self, method: str = "GET") -> Reply:
        """A whole answer: by Content-Length, chunks or the connection's end."""
        answer = await self.head()
        if method == "HEAD" or answer.status in (204, 304) or answer.status < 200:
            return answer
        if answer.get("Transfer-Encoding") == "chunked":
            while size := int((await self.reader.readuntil(b"\r\n")).strip(), 16):
                answer.body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readuntil(b"\r\n")
        elif answer.all("Content-Length"):
            answer.body = await self.reader.readexactly(int(answer.get("Content-Length")))
        else:
            answer.body = await self.reader.read()
        return answer

    async def frame(self) -> tuple[int, bytes]:
        """One short, unmasked WebSocket frame: opcode and payload."""
        first, size = await asyncio.wait_for(self.reader.readexactly(2), PATIENCE)
        return first & 0x0F, await self.reader.readexactly(size)

    async def frame_of_upstream(self) -> bytes:
        """The echo of `frame(10, masked=True)`."""
        return await asyncio.wait_for(self.reader.readexactly(16), PATIENCE)

    async def ended(self, seconds: float = 5.0) -> bool:
        """Whether the server closes the connection within `seconds` (what it still sends is dropped)."""
        try:
            async with asyncio.timeout(seconds):
                while await self.reader.read(65536):
                    pass
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    async def close(self) -> None:
        self.writer.transport.abort()
        await asyncio.sleep(0)


class World:
    """Everything around one StreamServer, and the server."""

    def __init__(self, directory: Path, tls: Path) -> None:
        self.run = directory / "portal"
        self.run.mkdir(mode=0o700)
        self.control = FakeControl(self.run)
        self.engine = FakeEngine()
        self.descriptors = FakeDescriptors()
        self.on_engine_lost: Callable[[], None] = lambda: None
        self.tls = Certificate(tls / "leaf.pem", tls / "leaf.key")
        self.trust = ssl.create_default_context(cafile=str(tls / "ca.pem"))
        self.port = 0
        # Viewers of one workspace are spaced out; most tests do not wait for that.
        self.pace = Pace(0.0)
        self.cookies: dict[str, str] = {}
        self._clients: list[Client] = []
        self._servers: list[asyncio.Server] = []
        self._runners: list[web.AppRunner] = []

    async def start(self) -> None:
        self.control.live.add("alice")
        for workspace in ("ws-1", "ws-2"):
            self.engine.add(workspace)
            self.control.desks[f"desk-of-{workspace}"] = ("alice", workspace)
            self.cookies[workspace] = f"{DESK_COOKIE}=desk-of-{workspace}"
        await self.control.start()
        self.server = self.make_server()
        await self.server.start()
        sock = socket.create_server(("127.0.0.1", 0))
        sock.setblocking(False)
        self.port = sock.getsockname()[1]
        await self.server.listen([sock], self.tls)
        await self.until(lambda: self.server.control.watching and self.server.workspaces.connected)

    def make_server(self) -> StreamServer:
        def descriptors(on_lost: Callable[[], None]) -> FakeDescriptors:
            self.on_engine_lost = on_lost
            return self.descriptors

        library = getattr(asyncio.get_running_loop(), "relay_library", None)
        return StreamServer(Settings(self.run, self.pace, library=library), self.engine, descriptors)

    async def stop(self) -> None:
        for client in self._clients:
            await client.close()
        await self.server.stop()
        await self.control.stop()
        for server in self._servers:
            server.close()
        for runner in self._runners:
            await runner.cleanup()
        self.pace.close()
        await asyncio.sleep(0.01)

    async def until(self, condition: Callable[[], object], seconds: float = PATIENCE) -> None:
        """Wait for a condition; fails after `seconds`."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            await asyncio.sleep(0.01)

    # Upstreams

    async def desktop_app(self, *routes: web.RouteDef, workspace: str = "ws-1") -> None:
        """An aiohttp application as the desktop of a workspace."""
        application = web.Application(client_max_size=64 << 20)
        application.router.add_routes(routes)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1, auto_decompress=False)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._runners.append(runner)
        self.descriptors.targets[(workspace, 8080)] = site._server.sockets[0].getsockname()[1]

    async def raw_server(self, handler: RawHandler, workspace: str = "ws-1", port: int = 8080) -> None:
        """A server that speaks whatever `handler` writes."""

        async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await handler(reader, writer)
            except (OSError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(guarded, "127.0.0.1", 0)
        self._servers.append(server)
        self.descriptors.targets[(workspace, port)] = server.sockets[0].getsockname()[1]

    async def raw_websocket(self, handler: RawHandler, extra: str = "", workspace: str = "ws-1") -> list[bytes]:
        """A desktop that answers every request with 101 and then runs `handler`. The list gets each request's head."""
        heads: list[bytes] = []

        async def switch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{extra}\r\n".encode())
            await handler(reader, writer)

        await self.raw_server(switch, workspace)
        return heads

    # Clients

    def host(self, workspace: str = "ws-1") -> str:
        return f"{workspace}.{PORTAL_HOST}:{self.port}" if workspace else f"{PORTAL_HOST}:{self.port}"

    def origin(self, workspace: str = "ws-1") -> str:
        return f"https://{self.host(workspace)}"

    async def connect(self) -> Client:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.trust, server_hostname=PORTAL_HOST, limit=1 << 20
        )
        client = Client(self, reader, writer)
        self._clients.append(client)
        return client

    def forget_clients(self) -> None:
        """Let go of clients that are closed, so that a long test's memory is the server's alone."""
        self._clients.clear()

    def request(self, method: str, path: str, workspace: str = "ws-1", *extra: str, cookie: bool = True, body: bytes = b"") -> bytes:
        """A request's bytes, with the desk cookie unless told otherwise."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host(workspace)}"]
        if cookie and workspace in self.cookies:
            lines.append(f"Cookie: {self.cookies[workspace]}")
        if body:
            lines.append(f"Content-Length: {len(body)}")
        return ("\r\n".join([*lines, *extra]) + "\r\n\r\n").encode("latin-1") + body

    async def ask(self, method: str, path: str, workspace: str = "ws-1", *extra: str, cookie: bool = True, body: bytes = b"") -> Reply:
        """One request on a connection of its own."""
        client = await self.connect()
        await client.send(self.request(method, path, workspace, *extra, cookie=cookie, body=body))
        try:
            return await client.reply(method)
        finally:
            await client.close()

    def upgrade_bytes(self, workspace: str = "ws-1", *extra: str, path: str = "/api/websockets", cookie: bool = True) -> bytes:
        lines = [
            "Connection: keep-alive, Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: " + base64.b64encode(b"0123456789abcdef").decode(),
        ]
        if not any(line.startswith("Origin:") for line in extra):
            lines.append(f"Origin: {self.origin(workspace)}")
        return self.request("GET", path, workspace, *lines, *[line for line in extra if line != "Origin:"], cookie=cookie)

    async def websocket(self, workspace: str = "ws-1", *extra: str) -> Client:
        """An upgraded connection to a desktop."""
        client = await self.connect()
        await client.send(self.upgrade_bytes(workspace, *extra))
        answer = await client.head()
        assert answer.status == 101, answer.headers
        return client
