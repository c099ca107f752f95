"""Pictures of desktops: read from the workspace's X server by the engine, scaled and encoded, with an entity tag.

Nothing runs inside the workspace for it and its stream server has no part in it, so a picture costs the same with a hundred viewers or
none. What a hostile workspace sends is raw pixels: no image file of its making is ever parsed here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from engine import damage, syscalls, x11
from engine.errors import Conflict, Unavailable
from engine.pixels import Wanted, encoded
from engine.threads import in_thread
from engine.workspace import State, Workspace

T = TypeVar("T")

MOST_AGE_MS = 10_000
SMALLEST_WIDTH, LARGEST_WIDTH = 16, 7680
FEWEST_BYTES, MOST_BYTES = 10_000, 64 << 20
MOST_WAIT_MS = 30_000

_DISPLAY = ":1"
# A server that is frozen or hostile; one on a busy machine needs a tenth of it.
_GRAB_SECONDS = 5.0
# Between two looks at a screen that changes.
_LOOK_SECONDS = 0.08
# A screen is at rest when nothing was drawn for so long; one that does not begin to change within the first was so all along.
_BEGIN_SECONDS, _QUIET_SECONDS = 0.4, 0.15
_GLANCE = Wanted(width=320, format="jpeg")
_ENCODERS = 2
# Pictures kept for whoever asks next, a few for each workspace; full-size ones are kept too, so their bytes count.
_KEPT_BYTES = 32 << 20


@dataclass(frozen=True)
class Picture:
    """An encoded picture. `begun`: monotonic seconds before which nothing on the screen can be missing in it; `screen`: size of the whole screen."""

    content: bytes
    format: str
    tag: str
    size: tuple[int, int]
    screen: tuple[int, int]
    begun: float


class Screens:
    """The screens of an engine's workspaces. One grab at a time for each of them; what came in meanwhile shares it when that is fresh enough."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, Wanted], Picture] = OrderedDict()
        self._bytes = 0
        # Only those in use: a workspace that is gone leaves nothing.
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._encoders = ThreadPoolExecutor(_ENCODERS, thread_name_prefix="screen")

    def close(self) -> None:
        self._encoders.shutdown(wait=False, cancel_futures=True)

    async def picture(self, workspace: Workspace, wanted: Wanted = Wanted(), max_age: float = 0.0) -> Picture:
        """What the screen shows.

        A picture that was begun no more than `max_age` seconds before this call will do; with 0 it shows everything that happened before
        the call. Raises BadRequest for a region that is not there, Conflict while there is no screen to look at, Unavailable when the X server does not answer.
        """
        if not workspace.desktop:
            raise Conflict(f"{workspace.id} has no desktop: its image {workspace.image} is headless")
        workspace.require_awake("look at")
        oldest = time.monotonic() - max_age
        lock = self._locks.setdefault(workspace.id, asyncio.Lock())
        async with lock:
            kept = self._kept.get((workspace.id, wanted))
            if kept is not None and kept.begun >= oldest:
                self._kept.move_to_end((workspace.id, wanted))
                return kept
            if workspace.state is not State.READY:
                # Frozen, or about to be: a question now would only be a connection more in what is captured.
                raise Conflict(f"{workspace.id} shows no picture now: it is {workspace.state.value}; try again when it is ready")
            begun = time.monotonic()
            raster = await self._asked(workspace, lambda root, display: x11.grab(root, display, wanted.pointer))
            picture = await in_thread(lambda: encoded(raster, wanted), self._encoders)
            made = Picture(picture.content, picture.format, picture.tag, picture.size, (raster.width, raster.height), begun)
            self._keep((workspace.id, wanted), made)
            return made

    async def changed(self, workspace: Workspace, wanted: Wanted, tag: str, seconds: float) -> Picture:
        """The first picture that is another one than that with `tag`; after `seconds` the one there is. Raises as `picture`."""
        deadline = time.monotonic() + seconds
        async with self._watched(workspace) as drawn:
            # Whoever else waits for the same picture shares it.
            while (picture := await self.picture(workspace, wanted, _LOOK_SECONDS / 2)).tag == tag and time.monotonic() < deadline:
                if await drawn(deadline - time.monotonic()):
                    # What is being drawn comes in many parts.
                    await asyncio.sleep(_LOOK_SECONDS)
        return picture

    async def at_rest(self, workspace: Workspace, wanted: Wanted, seconds: float) -> Picture:
        """A picture of the screen once nothing has been drawn for a moment; after `seconds` the one there is. Raises as `picture`."""
        deadline = time.monotonic() + seconds
        async with self._watched(workspace) as drawn:
            # A program needs a while until it begins to show what came of the last input.
            if await drawn(min(_BEGIN_SECONDS, seconds)):
                while time.monotonic() < deadline and await drawn(min(_QUIET_SECONDS, deadline - time.monotonic())):
                    await asyncio.sleep(_LOOK_SECONDS / 4)
        return await self.picture(workspace, wanted)

    @contextlib.asynccontextmanager
    async def _watched(self, workspace: Workspace) -> AsyncIterator[Callable[[float], Awaitable[bool]]]:
        """A function that waits until something is drawn, at most so many seconds: whether it was."""
        if not workspace.desktop or workspace.state is not State.READY or workspace.paused:
            yield _never  # `picture` says what is wrong
            return
        root = self._root(workspace)
        try:
            async with contextlib.AsyncExitStack() as stack:
                try:
                    async with asyncio.timeout(_GRAB_SECONDS):
                        drawn = (await stack.enter_async_context(damage.watching(root, workspace.env.get("DISPLAY", _DISPLAY)))).wait
                except (x11.XError, TimeoutError):
                    drawn = self._looking(workspace)
                with _unavailable(workspace):
                    yield drawn
        finally:
            os.close(root)

    def _looking(self, workspace: Workspace) -> Callable[[float], Awaitable[bool]]:
        """For servers that do not tell: by small pictures, which cost a tenth of whole ones."""
        before = ""

        async def drawn(seconds: float) -> bool:
            nonlocal before
            deadline = time.monotonic() + seconds
            while True:
                tag = (await self.picture(workspace, _GLANCE)).tag
                if before and tag != before:
                    before = tag
                    return True
                before = tag
                if time.monotonic() >= deadline:
                    return False
                await asyncio.sleep(min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic())))

        return drawn

    async def idle(self, workspace: Workspace) -> float | None:
        """Seconds since mouse or keyboard of its desktop were used; None for a workspace without one. Raises Conflict, Unavailable."""
        if not workspace.desktop:
            return None
        workspace.require_awake("ask")
        if workspace.state is not State.READY:
            raise Conflict(f"{workspace.id} cannot be asked now: it is {workspace.state.value}; try again when it is ready")
        return await self._asked(workspace, x11.idle)

    async def _asked(self, workspace: Workspace, question: Callable[[int, str], Awaitable[T]]) -> T:
        root = self._root(workspace)
        try:
            with _unavailable(workspace):
                async with asyncio.timeout(_GRAB_SECONDS):
                    return await question(root, workspace.env.get("DISPLAY", _DISPLAY))
        finally:
            os.close(root)

    def _root(self, workspace: Workspace) -> int:
        try:
            return syscalls.open_of_process(workspace.pid, workspace.pid_start, "root", os.O_PATH | os.O_DIRECTORY)
        except OSError:
            raise Conflict(f"{workspace.id} has ended; `tclone logs {workspace.id}` may say why") from None

    def _keep(self, key: tuple[str, Wanted], picture: Picture) -> None:
        with contextlib.suppress(KeyError):
            self._bytes -= len(self._kept.pop(key).content)
        self._kept[key] = picture
        self._bytes += len(picture.content)
        while self._bytes > _KEPT_BYTES:
            self._bytes -= len(self._kept.popitem(last=False)[1].content)


async def _never(_: float) -> bool:
    return False


@contextlib.contextmanager
def _unavailable(workspace: Workspace) -> Iterator[None]:
    """Say in the engine's terms what went wrong with an X server."""
    try:
        yield
    except TimeoutError:
        raise Unavailable(f"the X server of {workspace.id} did not answer within {_GRAB_SECONDS:g} s; try again") from None
    except x11.XError as error:
        raise Unavailable(f"nothing is known of the screen of {workspace.id}: {error}; see `tclone logs {workspace.id}`") from None
