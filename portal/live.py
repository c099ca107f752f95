"""`/ws`: the one WebSocket of each page, which carries every change."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from portal.errors import LoginNeeded
from portal.feed import Feed, Queue
from portal.security import session_with_key
from portal.sessions import Ended, Session, Sessions

_HELLO_SECONDS = 5.0
_PING_SECONDS = 20.0
_LONGEST_MESSAGE = 4096


class Live:
    """The pages that are connected."""

    def __init__(self, feed: Feed, sessions: Sessions) -> None:
        self._feed = feed
        self._sessions = sessions
        self._sockets: set[web.WebSocketResponse] = set()

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/ws", self._serve)]

    async def close(self) -> None:
        """Tell every page that this process stops; they come back when there is one again."""
        for socket in list(self._sockets):
            with contextlib.suppress(ConnectionError, RuntimeError):
                await socket.close(code=WSCloseCode.SERVICE_RESTART, message=b"the portal restarts")

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(heartbeat=_PING_SECONDS, max_msg_size=_LONGEST_MESSAGE)
        await socket.prepare(request)
        self._sockets.add(socket)
        try:
            hello = await _hello(socket)
            if hello is None:
                await socket.close(code=WSCloseCode.POLICY_VIOLATION, message=b"the first message must be a hello")
                return socket
            try:
                session = session_with_key(request, hello.get("key"))
            except LoginNeeded:
                await socket.send_json({"type": "ended"})
                await socket.close()
                return socket
            since = hello.get("since")
            async with self._sessions.watch() as ended, self._feed.watch(since if isinstance(since, int) else None) as events:
                await self._relay(socket, session, ended, events)
        except ConnectionError:
            pass  # the page has gone
        finally:
            self._sockets.discard(socket)
        return socket

    async def _relay(self, socket: web.WebSocketResponse, session: Session, ended: Any, events: Queue) -> None:
        """Carry events until the page goes away or its session ends."""
        tasks = [
            asyncio.create_task(self._send(socket, events)),
            asyncio.create_task(_until_ended(session, ended)),
            asyncio.create_task(self._receive(socket, session)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[1].done() and tasks[1].result() and not socket.closed:
                await socket.send_json({"type": "ended"})
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await socket.close(code=WSCloseCode.TRY_AGAIN_LATER)

    async def _send(self, socket: web.WebSocketResponse, events: Queue) -> None:
        while (event := await events.get()) is not None:
            await socket.send_json(event)

    async def _receive(self, socket: web.WebSocketResponse, session: Session) -> None:
        async for message in socket:
            if _object(message).get("type") == "active":
                await self._sessions.touch(session)


async def _hello(socket: web.WebSocketResponse) -> dict[str, Any] | None:
    try:
        message = await socket.receive(timeout=_HELLO_SECONDS)
    except TimeoutError:
        return None
    hello = _object(message)
    return hello if hello.get("type") == "hello" else None


def _object(message: WSMessage) -> dict[str, Any]:
    """The JSON object in a text message; empty for anything else."""
    if message.type is not WSMsgType.TEXT:
        return {}
    try:
        value = json.loads(message.data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


async def _until_ended(session: Session, ended: asyncio.Queue[Ended | None]) -> bool:
    """True when this session ended; False when the watch broke and the page should come back."""
    while (item := await ended.get()) is not None:
        if item[0] == session.id:
            return True
    return False
