"""What every kind of desktop offers to the actions: the seam between agents' input and a display server."""

from __future__ import annotations

import abc
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Window:
    """One window of the desktop, in screen pixels. `title` and `program` are what the program says of itself."""

    id: int
    title: str
    program: str
    x: int
    y: int
    width: int
    height: int
    active: bool
    hidden: bool

    def public(self) -> dict[str, Any]:
        return asdict(self)


class Desktop(abc.ABC):
    """Input to one desktop while it is open. Places are pixels of the screen, keysyms those of X. Whatever fails raises x11.XError."""

    @abc.abstractmethod
    async def size(self) -> tuple[int, int]:
        """Width and height of the screen now: programs in the workspace may change it at any time."""

    @abc.abstractmethod
    async def cursor(self) -> tuple[int, int]:
        """Where the pointer is."""

    @abc.abstractmethod
    async def move(self, x: int, y: int) -> None:
        """Put the pointer there."""

    @abc.abstractmethod
    async def button(self, number: int, down: bool) -> None:
        """Press or release a button of the mouse: 1 left, 2 middle, 3 right, 4 to 7 the wheel up, down, left, right, 8 back, 9 forward."""

    @abc.abstractmethod
    async def press(self, chord: list[int]) -> None:
        """Press keys together."""

    @abc.abstractmethod
    async def release(self, chord: list[int]) -> None:
        """Release them."""

    @abc.abstractmethod
    async def type(self, text: str, delay: float) -> None:
        """Type text, `delay` seconds from key to key."""

    @abc.abstractmethod
    async def finish(self) -> None:
        """After the last action: everything that is not meant to stay is undone."""

    @abc.abstractmethod
    async def let_go(self, keys: list[int], buttons: list[int], borrowed: set[int]) -> None:
        """Release keycodes and buttons, and take symbols off borrowed keycodes."""

    @abc.abstractmethod
    async def let_go_of_all(self) -> None:
        """Release whatever is down, whoever pressed it."""

    @abc.abstractmethod
    async def windows(self) -> list[Window]:
        """The windows that the window manager knows, the lowest first."""

    @abc.abstractmethod
    async def activate(self, window: int) -> None:
        """Bring a window of the list to the front and give it the keyboard. Raises LookupError for one that is not in it."""
