"""One connection for a program that acts and looks often: docs/reference/control-socket.md."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from tclone.data import Acted, Frame, Lease, Size, picture_query
from tclone.desktop import Desktop, acted
from tclone.errors import TCloneError, Unavailable, of_wire
from tclone.transport import PREFIX, Socket, Transport


class Control(Desktop):
    """`async with workspace.control() as control`. Verbs in flight at once are carried out in the order in which they were called.

    What was pressed over it is released when it ends. `lease` is who has control now, None: nobody.
    """

    def __init__(self, socket: Socket, workspace: str) -> None:
        self.workspace = workspace
        self.lease: Lease | None = None
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._watches = 0
        self._watch: _Pictures | None = None
        self._ended: TCloneError | None = None

    async def act(self, *actions: dict[str, Any], size: Size | None = None, key: str | None = None) -> Acted:
        identity = str(next(self._numbers))
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        # Where sending fails, nobody waits for it any more.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._check()
        self._answers[identity] = answer
        more: dict[str, Any] = {"size": list(size)} if size is not None else {}
        if key is not None:
            more["key"] = key
        try:
            await self._socket.send(type="act", id=identity, actions=list(actions), **more)
            return acted(await answer, self.workspace)
        finally:
            self._answers.pop(identity, None)

    async def frames(
        self, *, format: str = "jpeg", width: int | None = None, height: int | None = None, region: tuple[int, int, int, int] | None = None, max_bytes: int | None = None
    ) -> AsyncIterator[Frame]:
        """The screen as it is, then a picture for each change, as fast as they are taken: one that comes late is left out. A further call of it
        ends the one before. Raises what ended the connection.
        """
        self._check()
        asked = picture_query(format, width, height, region, max_bytes)
        options = asked | ({"region": list(region)} if region else {})
        if self._watch is not None:
            self._watch.put(None)
        self._watches += 1
        watch = self._watch = _Pictures(self._watches)
        try:
            await self._socket.send(type="watch", **options)
            while (frame := await watch.next()) is not None:
                await self._socket.send(type="seen", number=frame.number)
                yield replace(frame, asked=asked)
        finally:
            if self._watch is watch:
                self._watch = None
                with contextlib.suppress(TCloneError):
                    await self._socket.send(type="unwatch")

    def _check(self) -> None:
        if self._ended is not None:
            raise self._ended

    async def _read(self) -> None:
        """Take what the portal sends, until the connection ends."""
        try:
            while (message := await self._socket.receive()) is not None:
                if isinstance(message, bytes):
                    watch, frame = _frame(message)
                    await self._take(watch, frame)
                else:
                    self._hear(message)
            self._end(Unavailable(f"the control socket of {self.workspace} was closed by the portal", code="unavailable"))
        except TCloneError as error:
            self._end(error)

    async def _take(self, watch: int, frame: Frame) -> None:
        if self._watch is not None and self._watch.number == watch:
            self._watch.put(frame)
        else:
            # It was on its way when its reader stopped: the next one begins with all of its room.
            await self._socket.send(type="seen", number=frame.number)

    def _hear(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind in ("done", "refused"):
            answer = self._answers.get(str(message.get("id")))
            if answer is not None and not answer.done():
                if kind == "done":
                    answer.set_result(message)
                else:
                    answer.set_exception(of_wire(message.get("error")))
        elif kind in ("ready", "lease"):
            self.lease = lease_of(message.get("lease"))
        elif kind == "unwatched":
            if self._watch is not None:
                self._watch.put(of_wire(message.get("error")))
        elif kind == "gone":
            self._end(of_wire({"code": "not_found", "message": f"{self.workspace} is gone"}))
        elif kind == "ended":
            self._end(of_wire({"code": "login", "message": "the token has expired or was revoked"}))
        elif kind == "error":
            self._end(of_wire(message.get("error")))

    def _end(self, error: TCloneError) -> None:
        if self._ended is not None:
            return
        self._ended = error
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
        if self._watch is not None:
            self._watch.put(error)


class _Pictures:
    """Those of one call of `frames`: the portal sends no more than two ahead, and one word follows that ends them."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._queue: asyncio.Queue[Frame | TCloneError | None] = asyncio.Queue()

    def put(self, item: Frame | TCloneError | None) -> None:
        self._queue.put_nowait(item)

    async def next(self) -> Frame | None:
        item = await self._queue.get()
        if isinstance(item, TCloneError):
            raise item
        return item


def _frame(message: bytes) -> tuple[int, Frame]:
    (length,) = struct.unpack_from(">I", message)
    told = json.loads(message[4 : 4 + length])
    screen, size = told["screen"], told["size"]
    return told["watch"], Frame(message[4 + length :], told["content_type"], told["tag"], (screen[0], screen[1]), (size[0], size[1]), told["number"])


def lease_of(told: Any) -> Lease | None:
    """A hold as the portal tells of it."""
    if not isinstance(told, dict):
        return None
    return Lease(str(told["holder"]), int(told["epoch"]), float(told["since"]), float(told["expires"]))


@contextlib.asynccontextmanager
async def opened(transport: Transport, workspace: str) -> AsyncIterator[Control]:
    """A control socket. Raises TCloneError."""
    async with transport.socket(f"{PREFIX}/workspaces/{workspace}/control", {}) as socket:
        first = await socket.receive()
        control = Control(socket, workspace)
        if isinstance(first, dict):
            control._hear(first)
            control._check()
        if not isinstance(first, dict) or first.get("type") != "ready":
            raise of_wire(None)
        reading = asyncio.create_task(control._read(), name=f"control socket of {workspace}")
        try:
            yield control
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            control._end(Unavailable(f"this control socket of {workspace} was closed", code="unavailable"))
