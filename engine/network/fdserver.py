"""The descriptor socket: hands connected and listening sockets to the portal's stream process (docs/reference/networking.md).

SOCK_SEQPACKET, one JSON request a packet, one JSON answer with at most one descriptor. A request may carry `"id"`, which its
answer repeats: requests of one connection run side by side, and a slow connect holds up no other.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import functools
import json
import logging
import os
import pwd
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from engine.errors import BadRequest, EngineError, Internal
from engine.network.ports import FACE

log = logging.getLogger(__name__)

MOST_REQUEST = 4096
_MOST_ANSWER_TEXT = 1000
_MOST_CONNECTIONS = 32
_MOST_UNDER_WAY = 256
_SEND_TIMEOUT = 5.0
_ACCEPT_PAUSE = 0.1
_BACKLOG = 64
_PEER_CREDENTIALS = struct.Struct("3i")

# A connected socket, the server's to close; a listening one, the network's.
Connector = Callable[[str, int], Awaitable[socket.socket]]
Lister = Callable[[str, int], socket.socket]


def _parse(packet: bytes) -> dict[str, Any]:
    """Raises BadRequest."""
    if len(packet) > MOST_REQUEST:
        raise BadRequest(f"a request may have at most {MOST_REQUEST} bytes")
    try:
        request = json.loads(packet)
    except (ValueError, RecursionError):
        raise BadRequest("a request must be one JSON object") from None
    if not isinstance(request, dict):
        raise BadRequest("a request must be one JSON object")
    return request


def _fields(request: dict[str, Any], least: int = 1) -> tuple[str, int]:
    workspace, port = request.get("workspace"), request.get("port")
    if not isinstance(workspace, str) or len(workspace) > 64:
        raise BadRequest("`workspace` must be a workspace's id")
    if not isinstance(port, int) or isinstance(port, bool) or not least <= port <= 65535:
        raise BadRequest(f"`port` must be a number from {least} to 65535")
    return workspace, port


def _request_id(request: dict[str, Any]) -> int | None:
    """The id to repeat; anything but a number of sensible size is not repeated."""
    value = request.get("id")
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53:
        return value
    return None


class FdServer:
    """Serves `path` from `start` to `stop`; `connect` and `listener` come from the network facade."""

    def __init__(self, path: Path, portal_user: str, connect: Connector, listener: Lister) -> None:
        self._path = path
        self._portal_user = portal_user
        self._connect = connect
        self._listener = listener
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._clients: set[asyncio.Task[None]] = set()
        self._uids = {0}

    async def start(self) -> None:
        """Raises OSError when the socket cannot be made."""
        group = -1
        try:
            entry = pwd.getpwnam(self._portal_user)
        except KeyError:
            log.warning("no user %s on this host: only root may use %s", self._portal_user, self._path)
        else:
            self._uids.add(entry.pw_uid)
            group = entry.pw_gid
        self._path.unlink(missing_ok=True)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # Nobody may connect before owner and mode are right: bound under another name, then moved.
            temporary = self._path.with_name(f"{self._path.name}.new")
            temporary.unlink(missing_ok=True)
            server.bind(str(temporary))
            os.chown(temporary, 0, group)
            os.chmod(temporary, 0o660)
            server.listen(_BACKLOG)
            server.setblocking(False)
            os.replace(temporary, self._path)
        except BaseException:
            server.close()
            raise
        self._socket = server
        self._accepting = asyncio.create_task(self._accept(server), name="descriptor socket")

    async def stop(self) -> None:
        tasks = [*self._clients]
        if self._accepting is not None:
            tasks.append(self._accepting)
            self._accepting = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._path.unlink(missing_ok=True)

    async def _accept(self, server: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(server)
            except OSError as error:
                log.warning("descriptor socket cannot accept: %s", error)
                await asyncio.sleep(_ACCEPT_PAUSE)
                continue
            raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
            _, uid, _ = _PEER_CREDENTIALS.unpack(raw)
            if uid not in self._uids or len(self._clients) >= _MOST_CONNECTIONS:
                log.warning("descriptor socket: refused a connection of uid %d", uid)
                client.close()
                continue
            task = asyncio.create_task(self._serve(_Client(client, self)))
            self._clients.add(task)
            task.add_done_callback(functools.partial(self._client_gone, client))

    def _client_gone(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        self._clients.discard(task)
        client.close()

    async def _serve(self, client: _Client) -> None:
        try:
            await client.run()
        except OSError as error:
            log.debug("descriptor socket: connection ended: %s", error)

    async def answer(self, packet: bytes) -> tuple[dict[str, Any], socket.socket | None, bool]:
        """The answer to one request, the socket to send with it, and whether to close that socket afterwards."""
        identity: int | None = None
        found: socket.socket | None = None
        owned = False
        try:
            request = _parse(packet)
            identity = _request_id(request)
            operation = request.get("op")
            if operation == "connect":
                found, owned = await self._connect(*_fields(request)), True
            elif operation == "listener":
                found = self._listener(*_fields(request, least=FACE))
            else:
                raise BadRequest("`op` must be connect or listener")
            answer: dict[str, Any] = {"ok": True}
        except EngineError as error:
            answer = {"ok": False, "code": error.code, "message": error.message[:_MOST_ANSWER_TEXT]}
        except Exception:
            log.exception("descriptor socket: request failed")
            answer = {"ok": False, "code": Internal.code, "message": "a defect in the engine; its log has more"}
        if identity is not None:
            answer["id"] = identity
        return answer, found, owned


class _Client:
    """One connection of the stream process."""

    def __init__(self, sock: socket.socket, server: FdServer) -> None:
        self._socket = sock
        self._server = server
        self._under_way: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(_MOST_UNDER_WAY)
        self._sending = asyncio.Lock()

    async def run(self) -> None:
        """Read requests until the peer is gone. Answers are made side by side. Raises OSError."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._room.acquire()
                # recv, not recvmsg: descriptors that a peer attaches are dropped by the kernel. One byte more than allowed
                # shows a packet that is too long.
                packet = await loop.sock_recv(self._socket, MOST_REQUEST + 1)
                if not packet:
                    return
                task = loop.create_task(self._handle(packet))
                self._under_way.add(task)
                task.add_done_callback(self._handled)
        finally:
            waiting = list(self._under_way)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def _handled(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._room.release()
        if not task.cancelled() and task.exception() is not None:
            log.debug("descriptor socket: no answer sent: %s", task.exception())

    async def _handle(self, packet: bytes) -> None:
        answer, found, owned = await self._server.answer(packet)
        try:
            async with self._sending:
                await self._send(json.dumps(answer).encode(), found)
        except (OSError, TimeoutError):
            # A peer that does not read its answers is cut off; recv then ends the connection.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            raise
        finally:
            if owned and found is not None:
                found.close()

    async def _send(self, answer: bytes, found: socket.socket | None) -> None:
        """Raises OSError, TimeoutError."""
        ancillary = []
        if found is not None:
            ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [found.fileno()])))
        async with asyncio.timeout(_SEND_TIMEOUT):
            while True:
                try:
                    self._socket.sendmsg([answer], ancillary, socket.MSG_NOSIGNAL)
                    return
                except BlockingIOError:
                    await _writable(self._socket)
                except OSError as error:
                    if error.errno != errno.ETOOMANYREFS:
                        raise
                    # Too many descriptors are in flight to a peer that is slow to take them.
                    await asyncio.sleep(_ACCEPT_PAUSE)


async def _writable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_writer(sock.fileno(), wake)
    try:
        await ready
    finally:
        loop.remove_writer(sock.fileno())
