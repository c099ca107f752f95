"""Pictures of a desktop's screen over a control socket: one when the screen has changed, and no more than the program takes."""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from typing import Annotated, Any, Literal

import pydantic
from aiohttp import web

from engine.client import Screenshot
from engine.errors import BadRequest, EngineError, NotFound
from engine.screen import FEWEST_BYTES, MOST_BYTES
from portal.bodies import Body
from portal.errors import PortalError, refusal_body
from portal.node import Node

log = logging.getLogger(__name__)

# Pictures on the way that the program has not said it has taken: with one the way would be idle while it says so.
WINDOW = 2
# How long the engine waits for a change before it is asked again.
_WAIT_MS = 5_000
# A workspace that is being forked shows no picture for a moment.
_AGAIN_SECONDS = 0.25


class Watch(Body):
    """What pictures are wanted: as the parameters of a screenshot, `region` as [left, top, right, bottom]."""

    format: Literal["jpeg", "png", "webp"] = "jpeg"
    width: int | None = pydantic.Field(None, ge=16, le=7680)
    height: int | None = pydantic.Field(None, ge=16, le=7680)
    region: Annotated[list[Annotated[int, pydantic.Field(ge=0, le=65535)]], pydantic.Field(min_length=4, max_length=4)] | None = None
    max_bytes: int | None = pydantic.Field(None, ge=FEWEST_BYTES, le=MOST_BYTES)


class Pictures:
    """Those of one socket. A program that is slow gets fewer of them, never older ones: the next is made when there is room for it."""

    def __init__(self, socket: web.WebSocketResponse, node: Node, workspace: str) -> None:
        self._socket = socket
        self._node = node
        self._workspace = workspace
        self._task: asyncio.Task[None] | None = None
        self._watches = 0
        self._sent = 0
        self._taken = 0
        self._room = asyncio.Event()

    def watch(self, wanted: Watch) -> None:
        """Begin, or go on in another form. The first picture comes at once."""
        self.close()
        self._watches += 1
        # Whoever begins anew takes none of the earlier ones any more.
        self._taken = self._sent
        self._task = asyncio.create_task(self._send(wanted, self._watches), name="control socket: pictures")

    def seen(self, number: int) -> None:
        """The program has taken every picture up to this one."""
        self._taken = min(max(self._taken, number), self._sent)
        self._room.set()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _send(self, wanted: Watch, watch: int) -> None:
        options = wanted.model_dump()
        tag: str | None = None
        try:
            while True:
                await self._wait_for_room()
                shot = await self._next(options, tag)
                if shot is not None:
                    tag = shot.tag
                    self._sent += 1
                    await self._socket.send_bytes(frame(watch, self._sent, shot))
        except ConnectionError:
            pass  # the program has gone: whoever reads from it notices
        except (PortalError, EngineError) as error:
            await self._socket.send_json({"type": "unwatched", **refusal_body(error)})
        except Exception:  # noqa: BLE001 - nobody awaits this task
            log.exception("pictures of %s failed", self._workspace)

    async def _wait_for_room(self) -> None:
        while self._sent - self._taken >= WINDOW:
            self._room.clear()
            await self._room.wait()

    async def _next(self, options: dict[str, Any], tag: str | None) -> Screenshot | None:
        """Another picture than the last; None when there was none for a while, or none to be had for now. Raises what will not pass."""
        try:
            wait = None if tag is None else _WAIT_MS
            return await self._node.screenshot(self._workspace, tag, wait_change_ms=wait, **options)
        except (BadRequest, NotFound):
            raise
        except (PortalError, EngineError):
            await asyncio.sleep(_AGAIN_SECONDS)
            return None


def frame(watch: int, number: int, shot: Screenshot) -> bytes:
    """A picture as one message: the length of what describes it (4 bytes, big-endian), that as JSON, the picture."""
    told = {
        "type": "frame", "watch": watch, "number": number, "content_type": shot.content_type, "tag": shot.tag, "screen": list(shot.screen), "size": list(shot.size),
    }  # fmt: skip
    head = json.dumps(told).encode()
    return struct.pack(">I", len(head)) + head + shot.content
