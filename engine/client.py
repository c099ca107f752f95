"""The client of the engine's API, for the portal, the command line and tests. Needs nothing of the daemon's modules."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from aiohttp import hdrs
from yarl import URL

from engine.errors import EngineError, Internal, Unavailable, from_wire

_BASE = "http://engine"
_CONNECT_SECONDS = 5.0
_FIRST_RETRY = 0.1
_LONGEST_RETRY = 3.0
_MESSAGE_LIMIT = 8 << 20
# aiohttp wants more than this in pieces, so that nothing else waits.
_AT_ONCE = 1 << 20
_LINE_LIMIT = 1 << 20

Workspace = dict[str, Any]
Image = dict[str, Any]


@dataclass(frozen=True)
class Screenshot:
    """An encoded picture, its media type and entity tag, the size of the whole screen and its own."""

    content: bytes
    content_type: str
    tag: str
    screen: tuple[int, int]
    size: tuple[int, int]


class ExecSession:
    """A command in a workspace. Iterate over output, write input, then `exit_code()`; leaving the block ends the command."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._exit: int | None = None

    async def write(self, data: bytes) -> None:
        """Send input."""
        await self._socket.send_bytes(b"\0" + data)

    async def close_stdin(self) -> None:
        await self._socket.send_json({"stdin": "eof"})

    async def resize(self, rows: int, cols: int) -> None:
        await self._socket.send_json({"resize": [rows, cols]})

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """(1, bytes) of stdout and (2, bytes) of stderr as they come, until the command ends. Raises EngineError."""
        async for message in self._socket:
            if message.type is aiohttp.WSMsgType.BINARY and message.data:
                yield message.data[0], message.data[1:]
            elif message.type is aiohttp.WSMsgType.TEXT:
                body = json.loads(message.data)
                if "error" in body:
                    raise _error_from(body["error"])
                if "exit" in body:
                    self._exit = int(body["exit"])
                    return
        if self._exit is None:
            raise Unavailable("the connection to the engine ended while the command ran")

    def exit_code(self) -> int:
        """The command's status, once output() has ended."""
        if self._exit is None:
            raise Internal("the command has not ended yet")
        return self._exit


class EngineClient:
    """`async with EngineClient(config.socket) as engine: await engine.launch(…)`. All errors are engine.errors classes."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "EngineClient":
        self._open()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # No total limit: a fork or a build lasts as long as it lasts. No pool limit: each watcher holds a connection.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(self._socket), limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # Workspaces

    async def health(self) -> dict[str, Any]:
        return await self._json("GET", "/v1/health")

    async def doctor(self) -> list[dict[str, Any]]:
        return (await self._json("GET", "/v1/doctor"))["checks"]

    async def launch(
        self,
        image: str,
        *,
        name: str | None = None,
        ports: list[dict[str, int | None]] | None = None,
        env: dict[str, str] | None = None,
        memory: int | None = None,
        shm: int | None = None,
        pids: int | None = None,
        disk: int | None = None,
        cpus: float | None = None,
        network: str = "open",
        command: list[str] | None = None,
        osworld: bool = False,
        wait: bool = False,
        request_id: str | None = None,
    ) -> Workspace:
        """Launch a workspace; with `wait` return only when it is ready. Safe to repeat with the same request id."""
        body: dict[str, Any] = {"image": image, "network": network, "request_id": request_id or uuid.uuid4().hex}
        optional = {"name": name, "ports": ports, "env": env, "memory": memory, "shm": shm, "pids": pids, "disk": disk, "cpus": cpus, "command": command, "osworld": osworld or None}
        body.update({key: value for key, value in optional.items() if value is not None})
        return await self._json("POST", "/v1/workspaces" + ("?wait=ready" if wait else ""), body)

    async def list(self) -> list[Workspace]:
        return await self._json("GET", "/v1/workspaces")

    async def get(self, ref: str) -> Workspace:
        return await self._json("GET", _path(ref))

    async def remove(self, ref: str) -> None:
        await self._json("DELETE", _path(ref))

    async def fork(
        self,
        ref: str,
        *,
        copies: int = 1,
        name: str | None = None,
        tcp_close: bool = False,
        ghost_limit: int | None = None,
        hostname: str | None = None,
        new_machine_id: bool = False,
        network: str | None = None,
        labels: list[str] | None = None,
        request_id: str | None = None,
    ) -> dict[str, Any]:
        """Fork a workspace; the fork result with every milestone. `network`: what the branches may reach, None as the source; `hostname`, `new_machine_id`: docs/how-to/fork-identity.md."""
        body: dict[str, Any] = {"copies": copies, "tcp_close": tcp_close, "request_id": request_id or uuid.uuid4().hex}
        optional = {
            "name": name, "ghost_limit": ghost_limit, "hostname": hostname, "new_machine_id": new_machine_id or None,
            "network": network, "labels": labels,
        }  # fmt: skip
        body.update({key: value for key, value in optional.items() if value is not None})
        return await self._json("POST", _path(ref, "/fork"), body)

    async def pause(self, ref: str) -> Workspace:
        """Let its programs stand still, their memory kept."""
        return await self._json("POST", _path(ref, "/pause"))

    async def resume(self, ref: str) -> Workspace:
        """Let them go on."""
        return await self._json("POST", _path(ref, "/resume"))

    async def examine(self, ref: str) -> dict[str, Any]:
        """What keeps a running workspace from being forked, and what its branches will not have: {"ok", "blockers", "warnings", …}."""
        return await self._json("GET", _path(ref, "/doctor"))

    async def stats(self, ref: str) -> dict[str, Any]:
        return await self._json("GET", _path(ref, "/stats"))

    # Servers inside

    async def listeners(self, ref: str) -> list[dict[str, Any]]:
        """What listens inside: [{"port", "address", "pid", "command", "host", "desktop"}]."""
        return (await self._json("GET", _path(ref, "/listeners")))["listeners"]

    async def publish(self, ref: str, container: int, host: int | None = None) -> dict[str, int]:
        """Publish a port while the workspace runs: {"container", "host"}."""
        return await self._json("POST", _path(ref, f"/ports/{container}"), {"host": host})

    async def unpublish(self, ref: str, container: int) -> None:
        await self._json("DELETE", _path(ref, f"/ports/{container}"))

    async def open_osworld(self, ref: str) -> Workspace:
        """Give it an OSWorld server: the workspace, `osworld` being its port on the host's loopback."""
        return await self._json("POST", _path(ref, "/osworld"), {})

    async def close_osworld(self, ref: str) -> None:
        await self._json("DELETE", _path(ref, "/osworld"))

    # Files. Paths are bytes, as the kernel has them; text counts as UTF-8.

    async def list_files(self, ref: str, path: bytes | str) -> dict[str, Any]:
        """A directory inside: {"path", "entries", "truncated", "home"}."""
        return await self._json("GET", _file_path(ref, "/files", path))

    async def entry(self, ref: str, path: bytes | str) -> dict[str, Any]:
        """What lies at a path, as its directory lists it; a link is not followed."""
        return await self._json("GET", _file_path(ref, "/entry", path))

    async def make_directory(self, ref: str, path: bytes | str) -> dict[str, Any]:
        return await self._json("POST", _file_path(ref, "/directories", path))

    async def remove_file(self, ref: str, path: bytes | str, *, recursive: bool = False) -> None:
        await self._json("DELETE", _file_path(ref, "/files", path, recursive=int(recursive)))

    @contextlib.asynccontextmanager
    async def read_file(self, ref: str, path: bytes | str, headers: dict[str, str] | None = None) -> AsyncIterator[aiohttp.ClientResponse]:
        """A file as an answer whose `content` is read in pieces; `headers` may have Range, If-Range and If-None-Match."""
        async with self._request("GET", _file_path(ref, "/file", path), headers=headers) as answer:
            yield answer

    async def write_file(
        self, ref: str, path: bytes | str, data: bytes | AsyncIterator[bytes], *, size: int | None = None, overwrite: bool = False
    ) -> dict[str, Any]:
        """Write a file from bytes, or from pieces as they come (`size` in all, where it is known); its entry."""
        headers = {"Content-Type": "application/octet-stream"}
        if size is not None:
            headers["Content-Length"] = str(size)
        body = io.BytesIO(data) if isinstance(data, bytes) else data
        async with self._request("PUT", _file_path(ref, "/file", path, overwrite=int(overwrite)), data=body, headers=headers) as answer:
            return await answer.json()

    async def changes(self, ref: str, base: str = "parent", *, own: bool = False) -> AsyncIterator[dict[str, Any]]:
        """What differs from `parent`, `image` or another workspace: change objects, the last one {"done": {…}}. `own`: also what the desktop writes by itself."""
        async for line in self._lines(_path(ref, f"/diff?base={quote(base, safe='')}&own={int(own)}"), None, "GET"):
            yield line

    async def compare_file(self, ref: str, path: bytes | str, base: str = "parent") -> dict[str, Any]:
        """One file beside that of `base`: {"diff", "binary", "same", …}."""
        return await self._json("GET", _file_path(ref, "/diff/file", path, base=base))

    async def promote(self, ref: str, paths: Sequence[bytes | str], *, into: str = "parent", force: bool = False, dry_run: bool = False) -> dict[str, Any]:
        """Make what is at and below these paths of `ref` that of `into` as well: {"workspace", "into", "dry_run", "paths"}, each path with its outcome."""
        body = {"into": into, "paths": [quote(path, safe="/") for path in paths], "force": force, "dry_run": dry_run}
        return await self._json("POST", _path(ref, "/promote"), body)

    async def stream_token(self, ref: str, role: str = "controller") -> dict[str, Any]:
        """{"port", "token"} of the workspace's desktop, for driving it or (`viewer`) for watching; Conflict until it is ready."""
        return await self._json("GET", _path(ref, f"/stream-token?role={role}"))

    async def screenshot(self, ref: str, *, tag: str | None = None, region: Sequence[int] | None = None, **options: int | str | None) -> Screenshot | None:
        """A picture of the desktop's screen, or None when it is still the one with `tag`. Conflict while there is none to take.

        `options` as in the API: width, height, format, max_bytes, max_age_ms, settle_ms, wait_change_ms.
        """
        values = {**options, "region": ",".join(map(str, region)) if region else None}
        query = urlencode({name: value for name, value in values.items() if value is not None})
        headers = {hdrs.IF_NONE_MATCH: tag} if tag else {}
        async with self._request("GET", _path(ref, f"/screenshot?{query}"), headers=headers) as answer:
            if answer.status == 304:
                return None
            screen, size = _size(answer.headers["Screen-Size"]), _size(answer.headers["Picture-Size"])
            return Screenshot(await answer.read(), answer.content_type, answer.headers[hdrs.ETAG], screen, size)

    async def windows(self, ref: str) -> list[dict[str, Any]]:
        """The windows of its desktop, the lowest first. Conflict, Unavailable."""
        return (await self._json("GET", _path(ref, "/windows")))["windows"]

    async def accessibility(self, ref: str, *, showing: bool = False, nodes: int | None = None) -> dict[str, Any]:
        """What the programs of its desktop say of their windows, buttons and texts: {"nodes", "truncated", "silent"}. Conflict, Unavailable, Unsupported."""
        query = urlencode({"showing": int(showing), **({} if nodes is None else {"nodes": nodes})})
        return await self._json("GET", _path(ref, f"/accessibility?{query}"))

    async def idle(self, ref: str) -> dict[str, Any]:
        """{"idle_seconds"}: since somebody used mouse or keyboard of its desktop; null without one. Conflict while it is not ready."""
        return await self._json("GET", _path(ref, "/idle"))

    async def act(
        self, ref: str, actions: list[dict[str, Any]], *, size: tuple[int, int] | None = None, request_id: str | None = None
    ) -> dict[str, Any]:
        """Mouse, keys, windows and clipboard: {"results", "screen", "cursor"}, see docs/reference/actions.md. With the same `request_id` once only."""
        body: dict[str, Any] = {"actions": actions, "request_id": request_id or uuid.uuid4().hex}
        if size is not None:
            body["size"] = list(size)
        return await self._json("POST", _path(ref, "/actions"), body)

    async def release(self, ref: str) -> None:
        """Stop actions that are under way and let go of what they hold."""
        await self._json("POST", _path(ref, "/release"))

    async def logs(self, ref: str, *, tail: int = 200, follow: bool = False) -> AsyncIterator[bytes]:
        """Console output in chunks; with `follow` until the workspace is removed."""
        path = _path(ref, f"/logs?tail={tail}&follow={int(follow)}")
        async with self._request("GET", path) as answer:
            async for chunk in answer.content.iter_any():
                yield chunk

    @contextlib.asynccontextmanager
    async def exec(
        self,
        ref: str,
        argv: list[str],
        *,
        env: dict[str, str] | None = None,
        user: str | None = None,
        cwd: str | None = None,
        tty: bool = False,
        rows: int = 24,
        cols: int = 80,
    ) -> AsyncIterator[ExecSession]:
        """Run a command. A command that could not be started is an EngineError of the session's output()."""
        first: dict[str, Any] = {"argv": argv, "tty": tty, "rows": rows, "cols": cols}
        first.update({key: value for key, value in {"env": env, "user": user, "cwd": cwd}.items() if value is not None})
        async with self._websocket(_path(ref, "/exec")) as socket:
            await socket.send_json(first)
            yield ExecSession(socket)

    async def run(self, ref: str, argv: list[str], *, stdin: bytes = b"", **options: Any) -> tuple[int, bytes, bytes]:
        """Run a command to its end: (status, stdout, stderr)."""
        outputs = {1: bytearray(), 2: bytearray()}
        async with self.exec(ref, argv, **options) as session:
            if stdin:
                await session.write(stdin)
            await session.close_stdin()
            async for stream, data in session.output():
                outputs[stream] += data
            return session.exit_code(), bytes(outputs[1]), bytes(outputs[2])

    # Events

    async def events(self, since: int | None = None) -> AsyncIterator[dict[str, Any]]:
        """All events for ever. A lost connection is made again and nothing is missed: what the engine no longer
        knows arrives as a new `snapshot`. While the engine is away, {"type": "disconnected"} is yielded once."""
        retry = _FIRST_RETRY
        told = False
        while True:
            try:
                path = "/v1/events" + (f"?since={since}" if since is not None else "")
                async with self._websocket(path) as socket:
                    async for message in socket:
                        if message.type is not aiohttp.WSMsgType.TEXT:
                            break
                        retry, told = _FIRST_RETRY, False
                        event = json.loads(message.data)
                        since = event["seq"]
                        yield event
            except Unavailable:
                if not told:
                    told = True
                    yield {"type": "disconnected"}
            await asyncio.sleep(retry)
            retry = min(retry * 2, _LONGEST_RETRY)

    async def kept_events(self) -> dict[str, Any]:
        """{"seq", "events"}: what the engine remembers, the oldest first, and the number from which `events` goes on."""
        return await self._json("GET", "/v1/events/kept")

    # Images

    async def images(self) -> list[Image]:
        return await self._json("GET", "/v1/images")

    async def remove_image(self, ref: str) -> None:
        await self._json("DELETE", f"/v1/images/{quote(ref, safe='')}")

    async def build(self, name: str) -> AsyncIterator[dict[str, Any]]:
        """Build an image: progress objects, the last one {"done": image}. Raises EngineError. Stopping to read stops the build."""
        async for line in self._lines(f"/v1/images/{quote(name, safe='')}/build", {}):
            yield line

    async def import_image(self, path: str, name: str) -> AsyncIterator[dict[str, Any]]:
        """Import an OCI layout or a root file system archive; as build()."""
        async for line in self._lines("/v1/images/import", {"path": path, "name": name}):
            yield line

    # Plumbing

    @contextlib.asynccontextmanager
    async def _request(
        self, method: str, path: str, body: object = None, *, data: object = None, headers: dict[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        # Encoded by us: what comes after a percent sign must arrive as it is, UTF-8 or not.
        address = URL(_BASE + path, encoded=True)
        if body is not None:
            encoded = json.dumps(body).encode()
            data = io.BytesIO(encoded) if len(encoded) > _AT_ONCE else encoded
            headers = {"Content-Type": "application/json", **(headers or {})}
        try:
            async with self._open().request(method, address, data=data, headers=headers, read_bufsize=_LINE_LIMIT) as answer:
                if answer.status >= 400:
                    raise await _error_of(answer)
                yield answer
        except aiohttp.ClientConnectorError as error:
            raise self._unreachable(error) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Unavailable(f"the connection to the engine broke: {error}; `tclone doctor` may say more") from error

    @contextlib.asynccontextmanager
    async def _websocket(self, path: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        try:
            # No heartbeat: a Unix socket tells of a dead peer by itself, and one that waits for a slow reader of its output is not dead.
            async with self._open().ws_connect(_BASE + path, max_msg_size=_MESSAGE_LIMIT) as socket:
                yield socket
        except aiohttp.WSServerHandshakeError as error:
            # aiohttp keeps no body of a refused handshake: the same address without the upgrade tells the reason.
            await self._json("GET", path.partition("?")[0].removesuffix("/exec"))
            raise Internal(f"the engine refused {path}: status {error.status}") from error
        except aiohttp.ClientConnectorError as error:
            raise self._unreachable(error) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Unavailable(f"the connection to the engine broke: {error}") from error

    def _unreachable(self, error: aiohttp.ClientConnectorError) -> EngineError:
        if isinstance(error.os_error, PermissionError):
            return Unavailable(f"no permission for {self._socket}; run as root or as the portal's user")
        return Unavailable("the engine is not running; start it with `tclone up`")

    async def _json(self, method: str, path: str, body: object = None) -> Any:
        async with self._request(method, path, body) as answer:
            return None if answer.status == 204 else await answer.json()

    async def _lines(self, path: str, body: object, method: str = "POST") -> AsyncIterator[dict[str, Any]]:
        async with self._request(method, path, body) as answer:
            async for line in answer.content:
                item = json.loads(line)
                if "error" in item:
                    raise _error_from(item["error"])
                yield item
                if "done" in item:
                    return
        raise Unavailable("the engine went away during the operation")


async def _error_of(answer: aiohttp.ClientResponse) -> EngineError:
    try:
        return _error_from((await answer.json())["error"])
    except (ValueError, KeyError, TypeError, aiohttp.ContentTypeError):
        return Internal(f"the engine answered {answer.status} without a reason")


def _error_from(error: dict[str, Any]) -> EngineError:
    return from_wire(error["code"], error["message"], error.get("blockers"), error.get("field"))


def _path(ref: str, rest: str = "") -> str:
    return f"/v1/workspaces/{quote(ref, safe='')}{rest}"


def _size(text: str) -> tuple[int, int]:
    wide, _, high = text.partition("x")
    return int(wide), int(high)


def _file_path(ref: str, rest: str, path: bytes | str, **fields: object) -> str:
    more = "".join(f"&{name}={quote(str(value), safe='')}" for name, value in fields.items())
    return _path(ref, f"{rest}?path={quote(path, safe='/')}{more}")
