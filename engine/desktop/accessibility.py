"""What the programs of a desktop say of their windows, buttons and texts (AT-SPI), read by a program inside the workspace."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from engine.account import DESKTOP_USER
from engine.desktop.tree import MOST_TEXT, Tree, parsed
from engine.errors import Conflict, Internal, LimitReached, Unavailable, Unsupported
from engine.process import Command, Executor
from engine.workspace import State, Workspace

_PROGRAM = (Path(__file__).parent / "guest" / "tree.py").read_text()
# For the reader, and for its start and end beside it.
_SECONDS = 5.0
_GRACE_SECONDS = 10.0
_AT_ONCE = 2
_NOT_FOUND = 127


class Accessibility:
    """The trees of an engine's workspaces."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._reading: Counter[str] = Counter()

    async def tree(self, workspace: Workspace, showing: bool, most_nodes: int) -> Tree:
        """What is on its desktop; `showing`: without what cannot be seen. Raises Conflict, LimitReached, Unsupported, Unavailable, Internal."""
        if not workspace.desktop:
            raise Conflict(f"{workspace.id} has no desktop: its image {workspace.image} is headless")
        if workspace.state is not State.READY:
            raise Conflict(f"the desktop of {workspace.id} cannot be read now: it is {workspace.state.value}; try again when it is ready")
        if self._reading[workspace.id] >= _AT_ONCE:
            raise LimitReached(f"the desktop of {workspace.id} is being read by {_AT_ONCE} others; wait for one of them")
        self._reading[workspace.id] += 1
        try:
            words = [str(int(showing)), str(most_nodes), str(MOST_TEXT), str(_SECONDS)]
            command = Command(["python3", "-I", "-c", _PROGRAM, *words], user=DESKTOP_USER, cwd="/")
            status, out, err = await self._executor.run(workspace, command, _SECONDS + _GRACE_SECONDS)
        finally:
            self._reading[workspace.id] -= 1
            if not self._reading[workspace.id]:
                del self._reading[workspace.id]
        if status == _NOT_FOUND:
            raise Unsupported(f"the desktop of {workspace.id} cannot be read: its image has no python3; add it and at-spi2-core to the image")
        if status != 0:
            said = err.decode(errors="replace").strip()[-200:]
            raise Unavailable(f"the desktop of {workspace.id} cannot be read: {said or f'the reader ended with {status}'}; the image needs at-spi2-core")
        try:
            return parsed(out)
        except ValueError as error:
            raise Internal(f"what {workspace.id} says of its desktop makes no sense: {str(error)[:200]}") from None
