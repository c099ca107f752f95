"""Ways to try several things from one state: fork it, or start fresh containers and do again what led there."""

from __future__ import annotations

import asyncio
import io
import time
from dataclasses import dataclass, field
from typing import Protocol

from PIL import Image

from bench.agent_tasks import COLOURS, Actions, Check, Pixels, Task
from engine.client import EngineClient
from engine.errors import EngineError, Internal

_IMAGE, _USER = "webtop-xfce", "user"
# Of a step; a busy machine has taken longer than 10 s to show a page.
REACHED_SECONDS = 40.0
# Three browsers that start at once on a busy machine have taken longer than 90 s.
_SHOWN_SECONDS, _LOOK_SECONDS = 300.0, 0.2
_SETTLE_MS = 1500
# A page that is still being loaded takes the keyboard away from what has it.
_BEGIN_SETTLE_MS = 20_000
# Of 255, of each of red, green and blue.
_MOST_OFF = 24


@dataclass
class Spent:
    """Seconds of a task that went into making branches, and how much memory they took: bytes at the most, counted as shares of pages."""

    branching: list[float] = field(default_factory=list)
    memory: int = 0


class Desk:
    """One desktop by the engine's client."""

    def __init__(self, client: EngineClient, identity: str) -> None:
        self.client = client
        self.id = identity

    async def script(self, script: str) -> bool:
        """Whether a script ends with 0."""
        status, _, _ = await self.client.run(self.id, ["bash", "-c", script], user=_USER, cwd="/home/user")
        return status == 0

    async def holds(self, check: Check) -> bool:
        """Whether it is so now."""
        return await self.script(check) if isinstance(check, str) else shows(await self.picture(), check)

    async def until(self, check: Check, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not (there := await self.holds(check)) and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK_SECONDS)
        return there

    async def prepare(self, task: Task) -> None:
        """Bring it to where the task begins. Raises Internal."""
        if not await self.script(task.setup) or not await self.until(task.shown, _SHOWN_SECONDS):
            raise Internal(f"the task `{task.name}` did not begin in {self.id} within {_SHOWN_SECONDS:g} s")
        await self.client.screenshot(self.id, width=320, format="jpeg", settle_ms=_BEGIN_SETTLE_MS)

    async def act(self, actions: Actions) -> bool:
        """Act, and wait until the screen has come to rest. False when an action failed."""
        answer = await self.client.act(self.id, actions)
        await self.client.screenshot(self.id, width=320, format="jpeg", settle_ms=_SETTLE_MS)
        return all(result["ok"] for result in answer["results"])

    async def picture(self) -> bytes:
        shot = await self.client.screenshot(self.id)
        assert shot is not None  # no tag was sent
        return shot.content

    async def size(self) -> tuple[int, int]:
        """Of its screen, in pixels."""
        shot = await self.client.screenshot(self.id, width=16)
        assert shot is not None  # no tag was sent
        return shot.screen


def shows(picture: bytes, wanted: Pixels) -> bool:
    """Whether a picture has the colours at their places, nearly."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    for x, y, name in wanted.places:
        if x >= image.width or y >= image.height:
            return False
        found = image.getpixel((x, y))
        assert isinstance(found, tuple)  # of RGB
        if any(abs(one - other) > _MOST_OFF for one, other in zip(found, COLOURS[name], strict=True)):
            return False
    return True


class Way(Protocol):
    """`begin` a task, `branch` from where it stands, `keep` one of the branches and drop the others or `drop` all, `end`."""

    name: str
    spent: Spent

    async def begin(self, task: Task) -> None: ...

    async def branch(self, count: int) -> list[Desk]: ...

    async def keep(self, winner: Desk, actions: Actions) -> None: ...

    async def drop(self) -> None: ...

    async def end(self) -> None: ...


class _Own:
    """What both have: desktops that are theirs, and what they take."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._desks: dict[str, Desk] = {}
        self.spent = Spent()

    async def _launched(self) -> Desk:
        made = Desk(self._client, (await self._client.launch(_IMAGE, wait=True))["id"])
        self._desks[made.id] = made
        return made

    async def _discard(self, keep: str | None = None) -> None:
        gone = [identity for identity in self._desks if identity != keep]
        for identity in gone:
            del self._desks[identity]
        outcomes = await asyncio.gather(*(self._client.remove(identity) for identity in gone), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _weigh(self) -> None:
        """Note what all of them take together."""
        found = await asyncio.gather(*(self._client.stats(identity) for identity in self._desks))
        self.spent.memory = max(self.spent.memory, sum(int(stats["pss_bytes"] or 0) for stats in found))

    async def end(self) -> None:
        await self._discard()


class Forking(_Own):
    """Fork the desktop as it is; the winner goes on."""

    name = "tclone"

    def __init__(self, client: EngineClient) -> None:
        super().__init__(client)
        self._current: Desk | None = None

    async def begin(self, task: Task) -> None:
        self.spent = Spent()
        self._current = await self._launched()
        await self._current.prepare(task)

    async def branch(self, count: int) -> list[Desk]:
        assert self._current is not None
        began = time.monotonic()
        result = await self._client.fork(self._current.id, copies=count)
        self.spent.branching.append(time.monotonic() - began)
        made = [Desk(self._client, branch["id"]) for branch in result["branches"] if branch["id"]]
        self._desks |= {desk.id: desk for desk in made}
        for branch in result["branches"]:
            if branch["error"]:
                raise Internal(f"branch {branch['id']}: {branch['error']}")
        await self._weigh()
        return made

    async def keep(self, winner: Desk, actions: Actions) -> None:
        self._current = winner
        await self._discard(keep=winner.id)

    async def drop(self) -> None:
        assert self._current is not None
        await self._discard(keep=self._current.id)


class Replaying(_Own):
    """A fresh container for each try, in which the task is set up and all steps up to here are done again."""

    name = "fresh and replay"

    def __init__(self, client: EngineClient) -> None:
        super().__init__(client)
        self._task: Task | None = None
        self._done: list[tuple[Actions, Check]] = []
        self._step = 0

    async def begin(self, task: Task) -> None:
        self.spent = Spent()
        self._task, self._done, self._step = task, [], 0

    async def branch(self, count: int) -> list[Desk]:
        began = time.monotonic()
        made = await asyncio.gather(*(self._again() for _ in range(count)), return_exceptions=True)
        self.spent.branching.append(time.monotonic() - began)
        for one in made:
            if isinstance(one, BaseException):
                raise one
        await self._weigh()
        return [one for one in made if isinstance(one, Desk)]

    async def _again(self) -> Desk:
        assert self._task is not None
        desk = await self._launched()
        await desk.prepare(self._task)
        for actions, reached in self._done:
            await desk.act(actions)
            if not await desk.until(reached, REACHED_SECONDS):
                raise Internal(f"doing `{self._task.name}` again did not lead where it led before")
        return desk

    async def keep(self, winner: Desk, actions: Actions) -> None:
        assert self._task is not None
        self._done.append((actions, self._task.steps[self._step].reached))
        self._step += 1
        await self._discard()

    async def drop(self) -> None:
        await self._discard()


async def quietly(way: Way) -> None:
    """End a way whose task went wrong already."""
    try:
        await way.end()
    except EngineError:
        pass  # what is left is counted after the run
