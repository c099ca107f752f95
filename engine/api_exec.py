"""The exec WebSocket: the first message says what to run, then bytes flow both ways, and the exit status comes last."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from aiohttp import WSMsgType, web

from engine.errors import BadRequest, EngineError
from engine.process import Command, Executor, Session
from engine.waiting import stopped, together
from engine.workspace import Workspace, check_argv, check_env, check_integer

_FIRST_MESSAGE_SECONDS = 30.0
_CHUNK = 64 << 10
_LINGER_SECONDS = 0.3
# What a command can have left in an output when it ends: a pipe of the most that its program may ask for (fs.pipe-max-size), and what is read ahead.
_MOST_LEFT = 2 << 20
# So often what comes is waited for once more while the client takes it at once: what was there has gone out long before.
_MOST_LINGERING = 10
_STDIN, _STDOUT, _STDERR = 0, 1, 2


async def serve_exec(socket: web.WebSocketResponse, executor: Executor, workspace: Workspace) -> None:
    """Speak the protocol on an accepted socket; errors go out as {"error": {...}}. The command dies with the connection."""
    try:
        command = await _first_message(socket)
        session = await executor.start(workspace, command)
    except EngineError as error:
        await socket.send_json({"error": error.to_wire()})
        await socket.close()
        return
    receiving = asyncio.ensure_future(_receive(socket, session))
    sending = asyncio.ensure_future(_send(socket, session))
    try:
        await asyncio.wait({receiving, sending}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            with contextlib.suppress(ConnectionError, RuntimeError):
                sending.result()
    finally:
        await stopped(receiving, sending)
        await asyncio.shield(session.kill())
        await socket.close()


async def _first_message(socket: web.WebSocketResponse) -> Command:
    try:
        message = await socket.receive(_FIRST_MESSAGE_SECONDS)
    except TimeoutError:
        raise BadRequest("no command within 30 s") from None
    try:
        body = json.loads(message.data) if message.type is WSMsgType.TEXT else None
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise BadRequest("the first message must be a JSON object with `argv`")
    return _command(body)


def _command(body: dict[str, Any]) -> Command:
    unknown = set(body) - {"argv", "env", "user", "cwd", "tty", "rows", "cols"}
    if unknown:
        raise BadRequest(f"unknown field {sorted(unknown)[0][:80]!r}")
    user, cwd, tty = body.get("user") or "root", body.get("cwd"), body.get("tty", False)
    if not isinstance(user, str) or len(user) > 256 or "\0" in user:
        raise BadRequest("user must be a name or a number")
    if cwd is not None and (not isinstance(cwd, str) or not cwd.startswith("/") or "\0" in cwd or len(cwd) > 4095):
        raise BadRequest("cwd must be an absolute path")
    if not isinstance(tty, bool):
        raise BadRequest("tty must be true or false")
    return Command(
        argv=check_argv(body.get("argv")),
        env=check_env(body.get("env")),
        user=user,
        cwd=cwd,
        tty=tty,
        rows=check_integer(body.get("rows") or 24, "rows", 1, 10000),
        cols=check_integer(body.get("cols") or 80, "cols", 1, 10000),
    )


async def _receive(socket: web.WebSocketResponse, session: Session) -> None:
    """Input, until the connection ends. A broken message is ignored: the command is the user's own."""
    async for message in socket:
        if message.type is WSMsgType.BINARY and message.data[:1] == bytes([_STDIN]):
            with contextlib.suppress(ConnectionError, OSError):
                session.stdin.write(message.data[1:])
                await session.stdin.drain()
        elif message.type is WSMsgType.TEXT:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                body = json.loads(message.data)
                if body.get("stdin") == "eof":
                    session.close_stdin()
                elif "resize" in body:
                    rows, cols = body["resize"]
                    session.resize(int(rows) & 0xFFFF, int(cols) & 0xFFFF)


class _Pump:
    """One output on its way to the socket; waiting for the socket is what stops a command whose reader is slow."""

    def __init__(self, socket: web.WebSocketResponse, stream: asyncio.StreamReader, number: int) -> None:
        self._socket = socket
        self._stream = stream
        self._prefix = bytes([number])
        self.sending = False
        self.sent = 0
        self.left: int | None = None  # bytes that still go out; None: all that come

    async def run(self) -> None:
        while True:
            try:
                chunk = await self._stream.read(_CHUNK)
            except OSError:
                return  # a terminal whose last user has gone reads as EIO
            if not chunk:
                return
            self.sending = True
            await self._socket.send_bytes(self._prefix + chunk)
            self.sending = False
            self.sent += 1
            if self.left is not None:
                self.left -= len(chunk)
                if self.left <= 0:
                    return


async def _send(socket: web.WebSocketResponse, session: Session) -> None:
    pumps = [_Pump(socket, session.stdout, _STDOUT), _Pump(socket, session.stderr, _STDERR)]
    outputs = asyncio.ensure_future(together(*(pump.run() for pump in pumps)))
    ended = asyncio.ensure_future(session.wait())
    try:
        await asyncio.wait({outputs, ended}, return_when=asyncio.FIRST_COMPLETED)
        if not outputs.done():
            await ended
            await _drain(outputs, pumps)
        if outputs.done():
            outputs.result()
        status = await ended
    finally:
        await stopped(outputs, ended)
    if session.message and session.tty:
        # Without a terminal crun wrote it to the command's stderr itself.
        await socket.send_bytes(bytes([_STDERR]) + session.message.encode() + b"\n")
    await socket.send_json({"exit": status})


async def _drain(outputs: asyncio.Future[list[None]], pumps: list[_Pump]) -> None:
    """The command has ended, but what it left in the background may hold its output open, and write without end: send what is there, wait for
    nothing more. A client that is slow is waited for."""
    for pump in pumps:
        pump.left = _MOST_LEFT
    rounds = 0
    while not outputs.done() and rounds < _MOST_LINGERING:
        before = sum(pump.sent for pump in pumps)
        await asyncio.wait({outputs}, timeout=_LINGER_SECONDS)
        if any(pump.sending for pump in pumps):
            continue
        if sum(pump.sent for pump in pumps) == before:
            return
        rounds += 1
