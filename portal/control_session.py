"""One control socket: batches of actions one after the other, each answered as soon as it is delivered, and pictures beside them."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Any

import pydantic
from aiohttp import WSMsgType, web

from engine.errors import EngineError
from portal.api.actions import Actions, Acts
from portal.bodies import Body, checked, decoded
from portal.endings import Queue as Ended
from portal.endings import until
from portal.errors import Malformed, PortalError, TooMany, refusal_body
from portal.feed import Queue as Events
from portal.node import Node
from portal.pictures import Pictures, Watch
from portal.pressed import Pressed
from portal.routes import Call

log = logging.getLogger(__name__)

# Batches that a program may send ahead of their answers.
MOST_WAITING = 16
# Of their messages, which may be long ones with a clipboard's text in them.
MOST_WAITING_BYTES = 12 << 20
# What is under way when the connection ends may come to its end within this; then it is stopped, so that nobody types for nobody.
_GRACE_SECONDS = 1.0


class Batch(Acts):
    """`id` comes back with the answer. With a `key` it is carried out once, however often and over however many connections it is sent."""

    id: Annotated[str, pydantic.Field(min_length=1, max_length=100)]
    key: Annotated[str, pydantic.Field(max_length=255)] | None = None


class Seen(Body):
    """`number` of the last picture that the program has taken."""

    number: Annotated[int, pydantic.Field(ge=0, le=1 << 53)]


class Nothing(Body):
    """A message without fields."""


class ControlSession:
    """Serves one program. `serve` returns when it or its right has gone, with nothing left pressed."""

    def __init__(self, socket: web.WebSocketResponse, call: Call, actions: Actions, node: Node) -> None:
        self._socket = socket
        self._call = call
        self._actions = actions
        # With the length of the message that each came in.
        self._waiting: asyncio.Queue[tuple[Batch, int] | None] = asyncio.Queue(MOST_WAITING + 1)
        self._bytes = 0
        self._pressed = Pressed()
        self._pictures = Pictures(socket, node, call.workspace)

    async def serve(self, ended: Ended, events: Events) -> None:
        acting = asyncio.create_task(self._act(), name="control socket: actions")
        tasks = [
            asyncio.create_task(self._read()),
            asyncio.create_task(until(self._call.principal.grant, ended)),
            asyncio.create_task(self._tell(events)),
        ]
        try:
            await asyncio.wait([*tasks, acting], return_when=asyncio.FIRST_COMPLETED)
            if tasks[1].done() and tasks[1].result() and not self._socket.closed:
                await self._socket.send_json({"type": "ended"})
            for task in [*tasks, acting]:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            self._pictures.close()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._end(acting)
            await self._socket.close()

    async def _end(self, acting: asyncio.Task[None]) -> None:
        """Drop what was not begun, let what was come to its end or stop it, and let go of what it holds."""
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._waiting.put_nowait(None)
        _, running = await asyncio.wait([acting], timeout=_GRACE_SECONDS)
        if running:
            await self._actions.release(self._call.workspace)
            await asyncio.wait(running)
        if not acting.cancelled() and (failure := acting.exception()) is not None and not isinstance(failure, ConnectionError):
            log.error("a control socket of %s failed", self._call.workspace, exc_info=failure)
        for part in self._pressed.releases():
            await self._actions.let_go(self._call, part)

    # What the program sends

    async def _read(self) -> None:
        async for message in self._socket:
            if message.type is not WSMsgType.TEXT:
                continue
            try:
                await self._take(decoded(message.data, "message"), len(message.data))
            except PortalError as error:
                await self._refuse(None, error)

    async def _take(self, sent: dict[str, Any], length: int) -> None:
        kind = sent.pop("type", None)
        if kind == "act":
            await self._queue(sent, length)
        elif kind == "seen":
            self._pictures.seen(checked(sent, Seen).number)
        elif kind == "watch":
            self._pictures.watch(checked(sent, Watch))
        elif kind == "unwatch":
            checked(sent, Nothing)
            self._pictures.close()
        else:
            raise Malformed("type must be act, watch, seen or unwatch")

    async def _queue(self, sent: dict[str, Any], length: int) -> None:
        named = sent.get("id")
        identity = named if isinstance(named, str) and len(named) <= 100 else None
        try:
            batch = checked(sent, Batch)
            if self._waiting.qsize() >= MOST_WAITING:
                raise TooMany(f"{MOST_WAITING} batches wait for their turn: send the next one when one has been answered")
            if self._waiting.qsize() and self._bytes + length > MOST_WAITING_BYTES:
                raise TooMany(f"{MOST_WAITING_BYTES >> 20} MiB wait for their turn: send the next batch when one has been answered")
            self._waiting.put_nowait((batch, length))
            self._bytes += length
        except PortalError as error:
            await self._refuse(identity, error)

    # What it is sent

    async def _act(self) -> None:
        while (waited := await self._waiting.get()) is not None:
            batch, length = waited
            self._bytes -= length
            try:
                answer = await self._actions.act_by_key(self._call, batch.actions, batch.size, batch.key)
            except (PortalError, EngineError) as error:
                await self._refuse(batch.id, error)
                continue
            self._pressed.note(batch.actions, answer["results"])
            await self._socket.send_json({"type": "done", "id": batch.id, **answer})

    async def _refuse(self, identity: str | None, error: PortalError | EngineError) -> None:
        """Nothing was done, and why. Without an id: a message that was none."""
        told = {"type": "refused", "id": identity} if identity is not None else {"type": "error"}
        await self._socket.send_json({**told, **refusal_body(error)})

    async def _tell(self, events: Events) -> None:
        """Who has control, when that changes; ends when the workspace has gone."""
        while (event := await events.get()) is not None:
            if event.get("workspace") != self._call.workspace:
                continue
            if event["type"] == "lease":
                await self._socket.send_json({"type": "lease", "lease": event["data"]})
            elif event["type"] == "gone":
                await self._socket.send_json({"type": "gone", "workspace": self._call.workspace})
                return
