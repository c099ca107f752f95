"""A desktop's stream server that was started again knows no token: viewers would wait for ever before a black picture. So before a token
is handed out, the server is asked whether it knows it, and told if not."""

from __future__ import annotations

import asyncio
import time

from engine import readiness
from engine.errors import Conflict, EngineError
from engine.workspace import State, Workspace

# A stream server takes longer than this to end and to start again, so what it knew a moment ago it still knows.
_SURE_SECONDS = 1.0
# A server that accepts but does not answer (a desktop that is being frozen) is not asked for longer: its viewer waits for it anyway.
_ASK_SECONDS = 3.0


class StreamTokens:
    """Of all workspaces of an engine."""

    def __init__(self) -> None:
        # Workspace to when its server was last seen to know which token.
        self._sure: dict[str, tuple[str, float]] = {}
        self._asking: dict[str, asyncio.Lock] = {}

    async def current(self, workspace: Workspace) -> str:
        """The token with which a viewer gets in now. Raises Conflict while there is none, also while the server is starting again."""
        if not workspace.stream_token or not workspace.alive:
            raise Conflict(f"the desktop of {workspace.id} is not ready; it is {workspace.state.value}")
        if workspace.state is State.FORKING:
            # It stands still for a moment, and so does its stream server.
            return workspace.stream_token
        async with self._asking.setdefault(workspace.id, asyncio.Lock()):
            token = workspace.stream_token
            known, at = self._sure.get(workspace.id, ("", 0.0))
            if known != token or time.monotonic() - at > _SURE_SECONDS:
                if await self._assured(workspace, token):
                    self._sure[workspace.id] = (token, time.monotonic())
        return token

    def forget(self, workspace: str) -> None:
        """Drop what is kept for a workspace that is gone."""
        self._sure.pop(workspace, None)
        self._asking.pop(workspace, None)

    async def _assured(self, workspace: Workspace, token: str) -> bool:
        """Whether the server surely knows the token; False when it does not answer in time."""
        try:
            async with asyncio.timeout(_ASK_SECONDS), readiness.Desktop(workspace) as desktop:
                if await desktop.knows(token):
                    return True
                if await desktop.set_controller(token):
                    return True
        except TimeoutError:
            return False
        except ConnectionError:
            raise Conflict(f"the stream server of {workspace.id} is starting again; try again in a moment") from None
        except EngineError as error:
            raise Conflict(f"the desktop of {workspace.id} is not ready: {error.message}") from None
        raise Conflict(f"the stream server of {workspace.id} takes no token yet; try again in a moment")
