"""Client of the engine's descriptor socket, for the portal's stream process. Imports nothing privileged.

One connection carries every request, told apart by `id`, so a slow connect holds up no other. It connects on first use and
again after the engine was restarted.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import itertools
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.errors import EngineError, Internal, Unavailable, from_wire
from engine.network.errors import ConnectError

_MOST_ANSWER = 8192
_MOST_UNDER_WAY = 200
# Longer than the engine's own 3 s for a connect inside a workspace.
_ANSWER_TIMEOUT = 8.0
_DESCRIPTOR = array.array("i").itemsize

_Answered = asyncio.Future[tuple[dict[str, Any], int | None]]


class FdClient:
    """`on_lost` is called when the connection to the engine ends.

    Whoever holds listeners must then close them and ask for them again: a new engine cannot bind a port that is still held.
    """

    def __init__(self, path: Path, on_lost: Callable[[], None] | None = None) -> None:
        self._path = path
        self._on_lost = on_lost
        self._socket: socket.socket | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._waiting: dict[int, _Answered] = {}
        self._ids = itertools.count(1)
        self._room = asyncio.Semaphore(_MOST_UNDER_WAY)
        self._sending = asyncio.Lock()

    async def connect(self, workspace: str, port: int) -> socket.socket:
        """A connected, non-blocking TCP socket to `port` inside `workspace`; the caller closes it.

        Raises ConnectError (refused, timeout), NotFound, Unavailable when the engine is down, BadRequest.
        """
        return await self._request("connect", workspace, port)

    async def listener(self, workspace: str, port: int) -> socket.socket:
        """The listening, non-blocking host socket of published container port `port`; the caller closes its copy.

        Its accept fails with EINVAL once the workspace is gone. Raises NotFound, Unavailable.
        """
        return await self._request("listener", workspace, port)

    async def close(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _request(self, operation: str, workspace: str, port: int) -> socket.socket:
        async with self._room:
            connection = await self._connected()
            identity = next(self._ids)
            answered: _Answered = asyncio.get_running_loop().create_future()
            self._waiting[identity] = answered
            request = {"id": identity, "op": operation, "workspace": workspace, "port": port}
            try:
                await self._exchange(connection, json.dumps(request).encode(), answered)
            except BaseException as error:
                # Given up just as the answer came: nobody else will close its descriptor.
                if not answered.cancel():
                    _discard(answered)
                if isinstance(error, TimeoutError):
                    raise Unavailable(
                        f"no answer from the engine within {_ANSWER_TIMEOUT:.0f} s for port {port} of {workspace}"
                    ) from None
                if isinstance(error, OSError):
                    raise Unavailable(f"the engine is gone: {error}") from error
                raise
            finally:
                self._waiting.pop(identity, None)
        answer, descriptor = answered.result()
        return _as_socket(answer, descriptor)

    async def _exchange(self, connection: socket.socket, packet: bytes, answered: _Answered) -> None:
        """Send a request and wait until `answered` is done. Raises OSError, TimeoutError."""
        async with asyncio.timeout(_ANSWER_TIMEOUT):
            async with self._sending:
                await asyncio.get_running_loop().sock_sendall(connection, packet)
            # wait(), not await: a cancelled request must not cancel the future, which may hold a descriptor already.
            await asyncio.wait([answered])

    async def _connected(self) -> socket.socket:
        async with self._connecting:
            if self._socket is not None:
                return self._socket
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(connection, str(self._path))
            except OSError as error:
                connection.close()
                raise Unavailable(f"no engine at {self._path}: {error.strerror}; start it with `tclone up`") from error
            except BaseException:
                connection.close()
                raise
            self._socket = connection
            self._reading = asyncio.create_task(self._read(connection), name="descriptor socket client")
            return connection

    async def _read(self, connection: socket.socket) -> None:
        """Hand answers to those who wait, until the engine is gone."""
        try:
            while True:
                found = await _receive(connection)
                if found is None:
                    return
                answer, descriptor = found
                waiting = self._waiting.get(answer.get("id", -1))
                if waiting is not None and not waiting.done():
                    waiting.set_result((answer, descriptor))
                elif descriptor is not None:
                    # Whoever asked has given up.
                    os.close(descriptor)
        except (OSError, ValueError):
            return
        finally:
            self._socket = None
            connection.close()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(Unavailable("the engine has closed the descriptor socket; try again"))
            if self._on_lost is not None:
                self._on_lost()


def _discard(answered: _Answered) -> None:
    """Close the descriptor of an answer that nobody will take."""
    if answered.exception() is None:
        _, descriptor = answered.result()
        if descriptor is not None:
            os.close(descriptor)


async def _receive(connection: socket.socket) -> tuple[dict[str, Any], int | None] | None:
    """One answer and its descriptor; None at the end. Raises OSError, ValueError."""
    while True:
        try:
            packet, ancillary, flags, _ = connection.recvmsg(
                _MOST_ANSWER, socket.CMSG_SPACE(_DESCRIPTOR), socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
            )
            break
        except BlockingIOError:
            await _readable(connection)
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % _DESCRIPTOR])
    try:
        if not packet:
            return None
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ValueError("the engine's answer was cut off")
        answer = json.loads(packet)
        if not isinstance(answer, dict):
            raise ValueError("the engine's answer is no object")
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return answer, descriptors[0] if descriptors else None


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(sock.fileno(), wake)
    try:
        await ready
    finally:
        loop.remove_reader(sock.fileno())


def _as_socket(answer: dict[str, Any], descriptor: int | None) -> socket.socket:
    """Raises the error that the answer carries."""
    if answer.get("ok") is True and descriptor is not None:
        found = socket.socket(fileno=descriptor)
        found.setblocking(False)
        return found
    if descriptor is not None:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    if answer.get("ok") is True:
        raise Internal("the engine's answer came without its descriptor")
    raise _error(answer)


def _error(answer: dict[str, Any]) -> EngineError:
    message = str(answer.get("message", "no message"))
    code = answer.get("code")
    if code == "refused" or code == "timeout":
        return ConnectError(message, code)
    return from_wire(str(code), message)
