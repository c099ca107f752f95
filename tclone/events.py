"""The portal's feed: everything that happens to workspaces that the token sees."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from tclone.data import Event
from tclone.errors import LoginNeeded, Unavailable
from tclone.transport import Transport

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 3.0


async def followed(transport: Transport, since: int | None = None) -> AsyncGenerator[Event, None]:
    """Events for ever; the first is a `snapshot`, or with `since` (an event's number) what came after it. A connection that is lost is made
    again and nothing is missed: what the portal no longer knows comes as a new `snapshot`. Raises LoginNeeded when the token has ended."""
    pause = _FIRST_PAUSE
    while True:
        with contextlib.suppress(Unavailable):
            async with transport.socket("/ws", {} if since is None else {"since": since}) as socket:
                while isinstance(message := await socket.receive(), dict):
                    pause = _FIRST_PAUSE
                    if message.get("type") == "ended":
                        raise LoginNeeded("the token has expired or was revoked", code="login")
                    since = int(message.get("seq") or since or 0)
                    if message.get("type") != "resumed":
                        data = message.get("data")
                        yield Event(str(message.get("type")), message.get("workspace"), since, data if isinstance(data, dict) else message)
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
