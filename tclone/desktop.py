"""Mouse, keys, windows and clipboard of a desktop: the same verbs by single requests (Workspace) and over one connection (Control)."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tclone.data import Acted, Element, Place, Size, Window
from tclone.errors import ActionFailed, Interrupted, of_wire

Button = Literal["left", "middle", "right", "back", "forward"]


class Desktop(abc.ABC):
    """Each verb returns when it is delivered, and is done once however often the network had to be tried.

    Places are pixels of the screen; with `size` those of a picture that was scaled to it. `modifiers` (`ctrl+shift`) are held meanwhile. Keys
    have X's names (`Return`, `ctrl+c`, `Page_Down`). All raise Held while a person has control, ActionFailed, TCloneError.
    """

    @abc.abstractmethod
    async def act(self, *actions: dict[str, Any], size: Size | None = None, key: str | None = None) -> Acted:
        """Actions as docs/reference/actions.md has them, up to 64, in order. With the same `key` they are done once, also by another program run."""

    async def move(self, x: int, y: int, *, size: Size | None = None) -> Acted:
        return await self.act({"action": "move", "x": x, "y": y}, size=size)

    async def click(
        self, x: int | None = None, y: int | None = None, *, button: Button = "left", count: int = 1, modifiers: str | None = None, size: Size | None = None
    ) -> Acted:
        """Click where the pointer is, or at a place; `count` 2 is a double click."""
        return await self.act(_without_none(action="click", x=x, y=y, button=button, count=count, modifiers=modifiers), size=size)

    async def mouse_down(self, x: int | None = None, y: int | None = None, *, button: Button = "left", size: Size | None = None) -> Acted:
        return await self.act(_without_none(action="mouse_down", x=x, y=y, button=button), size=size)

    async def mouse_up(self, x: int | None = None, y: int | None = None, *, button: Button = "left", size: Size | None = None) -> Acted:
        return await self.act(_without_none(action="mouse_up", x=x, y=y, button=button), size=size)

    async def drag(self, *path: Place, button: Button = "left", modifiers: str | None = None, size: Size | None = None) -> Acted:
        """From the first place over the others to the last."""
        places = [list(place) for place in path]
        return await self.act(_without_none(action="drag", path=places, button=button, modifiers=modifiers), size=size)

    async def scroll(
        self, dy: int = 0, dx: int = 0, *, x: int | None = None, y: int | None = None, modifiers: str | None = None, size: Size | None = None
    ) -> Acted:
        """Turn the wheel by notches: positive ones go down and right."""
        return await self.act(_without_none(action="scroll", x=x, y=y, dx=dx, dy=dy, modifiers=modifiers), size=size)

    async def type(self, text: str, *, delay_ms: float = 3.0) -> Acted:
        """Type a text of at most 10 000 characters exactly, in every layout; a line feed is Return."""
        return await self.act({"action": "type", "text": text, "delay_ms": delay_ms})

    async def key(self, keys: str, *, repeat: int = 1) -> Acted:
        return await self.act({"action": "key", "keys": keys, "repeat": repeat})

    async def key_down(self, keys: str) -> Acted:
        return await self.act({"action": "key_down", "keys": keys})

    async def key_up(self, keys: str) -> Acted:
        return await self.act({"action": "key_up", "keys": keys})

    async def hold_key(self, keys: str, seconds: float) -> Acted:
        return await self.act({"action": "hold_key", "keys": keys, "seconds": seconds})

    async def cursor(self, *, size: Size | None = None) -> Place:
        return (await self.act({"action": "cursor"}, size=size)).cursor

    async def activate(self, window: Window | int) -> Acted:
        """Bring a window to the front, with the keyboard."""
        return await self.act({"action": "activate", "window": window.id if isinstance(window, Window) else window})


def acted(answer: dict[str, Any], workspace: str) -> Acted:
    """A batch's answer. Raises ActionFailed, Interrupted."""
    results = answer["results"]
    if answer.get("interrupted"):
        raise Interrupted(f"the engine was ended in the midst of these actions in {workspace}: look at the screen, they are not done again", code="interrupted")
    for index, result in enumerate(results):
        if not result["ok"]:
            error = of_wire(result.get("error"))
            raise ActionFailed(f"{workspace}: {result['action']}: {error.message}", code=error.code, index=index, results=results)
    return Acted(results, _pair(answer["screen"]), _pair(answer["cursor"]))


def window_of(told: dict[str, Any]) -> Window:
    return Window(**{name: told.get(name, default) for name, default in _WINDOW.items()})


_WINDOW: dict[str, Any] = {
    "id": 0, "title": "", "program": "", "x": 0, "y": 0, "width": 0, "height": 0, "active": False, "hidden": False,
}  # fmt: skip


def _pair(values: Sequence[int]) -> tuple[int, int]:
    return int(values[0]), int(values[1])


def _without_none(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def element_of(told: Mapping[str, Any]) -> Element:
    """A node of the accessibility tree as the portal tells it."""
    box = told.get("box")
    return Element(
        role=told["role"], name=told["name"], text=told.get("text", ""), description=told.get("description", ""), states=frozenset(told["states"]),
        box=(box[0], box[1], box[2], box[3]) if box else None, parent=told["parent"], value=told.get("value", {}),
    )  # fmt: skip
