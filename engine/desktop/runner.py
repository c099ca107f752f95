"""Carries actions out on a desktop, one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from engine.desktop import actions, keysyms
from engine.desktop.actions import BUTTONS, Action, places_of
from engine.desktop.clipboard import Clipboard
from engine.desktop.held import Held
from engine.desktop.interface import Desktop
from engine.errors import BadRequest, NotFound

# Programs take clicks that are closer together than 250 to 500 ms for one double click.
_BETWEEN_CLICKS = 0.04
_HELD_CLICK = 0.01
# A drag in one leap is none for many programs: they wait for a motion beyond a threshold first.
_DRAG_STEPS, _DRAG_PAUSE = 8, 0.012
_WHEEL_UP, _WHEEL_DOWN, _WHEEL_LEFT, _WHEEL_RIGHT = 4, 5, 6, 7


def place(x: int, y: int, size: list[int] | None, screen: tuple[int, int], why: str = "nothing was done") -> tuple[int, int]:
    """The pixel of the screen for a pixel of a picture of `size`: corners meet corners. Raises BadRequest for one outside."""
    wide, high = size or screen
    if x >= wide or y >= high:
        raise BadRequest(f"({x}, {y}) is outside the picture of {wide}x{high}: {why}")
    if size is None:
        return x, y
    return round(x * (screen[0] - 1) / (wide - 1)), round(y * (screen[1] - 1) / (high - 1))


class Runner:
    """For one batch. `size` is the picture's that places refer to."""

    def __init__(self, desktop: Desktop, clipboard: Clipboard, held: Held, size: list[int] | None) -> None:
        self._desktop = desktop
        self._clipboard = clipboard
        self._held = held
        self._size = size

    async def check(self, batch: list[Action]) -> tuple[int, int]:
        """Before anything is done: the size of the screen, on which all places are. Raises BadRequest."""
        screen = await self._desktop.size()
        for action in batch:
            for x, y in places_of(action):
                place(x, y, self._size, screen)
        return screen

    async def run(self, action: Action) -> dict[str, Any]:
        """Do one thing; what is known after it. Raises Interrupted, XError, BadRequest, NotFound, Unsupported."""
        await self._held.pause(0)
        do: Callable[[Any], Awaitable[dict[str, Any] | None]] = getattr(self, f"_{action.action}")
        return await do(action) or {}

    # The pointer

    async def _go(self, x: int | None, y: int | None) -> None:
        if x is not None and y is not None:
            await self._desktop.move(*self._placed(x, y, await self._desktop.size()))

    def _placed(self, x: int, y: int, screen: tuple[int, int]) -> tuple[int, int]:
        """On the screen as large as it is now, which may have changed since the batch began. Raises BadRequest."""
        return place(x, y, self._size, screen, "the screen became smaller meanwhile")

    async def _move(self, action: actions.Move) -> None:
        await self._go(action.x, action.y)

    async def _click(self, action: actions.Click) -> None:
        number = BUTTONS[action.button]
        await self._go(action.x, action.y)
        async with self._holding(action.modifiers):
            for index in range(action.count):
                if index:
                    await self._held.pause(_BETWEEN_CLICKS)
                await self._desktop.button(number, True)
                await self._held.pause(_HELD_CLICK)
                await self._desktop.button(number, False)

    async def _mouse_down(self, action: actions.MouseDown) -> None:
        await self._go(action.x, action.y)
        await self._desktop.button(BUTTONS[action.button], True)

    async def _mouse_up(self, action: actions.MouseUp) -> None:
        await self._go(action.x, action.y)
        await self._desktop.button(BUTTONS[action.button], False)

    async def _drag(self, action: actions.Drag) -> None:
        screen = await self._desktop.size()
        stops = [self._placed(x, y, screen) for x, y in action.places()]
        await self._desktop.move(*stops[0])
        async with self._holding(action.modifiers):
            await self._desktop.button(BUTTONS[action.button], True)
            for start, end in zip(stops, stops[1:], strict=False):
                for step in range(1, _DRAG_STEPS + 1):
                    await self._held.pause(_DRAG_PAUSE)
                    await self._desktop.move(*(a + round((b - a) * step / _DRAG_STEPS) for a, b in zip(start, end, strict=True)))
            await self._held.pause(_DRAG_PAUSE)
            await self._desktop.button(BUTTONS[action.button], False)

    async def _scroll(self, action: actions.Scroll) -> None:
        await self._go(action.x, action.y)
        async with self._holding(action.modifiers):
            for amount, back, forth in ((action.dy, _WHEEL_UP, _WHEEL_DOWN), (action.dx, _WHEEL_LEFT, _WHEEL_RIGHT)):
                for _ in range(abs(amount)):
                    await self._desktop.button(forth if amount > 0 else back, True)
                    await self._desktop.button(forth if amount > 0 else back, False)
                    await self._held.pause(0)

    async def _cursor(self, _: actions.Cursor) -> dict[str, Any]:
        return {"cursor": (await self.seen())[0]}

    async def seen(self) -> tuple[list[int], list[int]]:
        """Where the pointer is, in pixels of the picture, and the size of the screen."""
        # In this order: what is told of the size has come before the answer.
        where, screen = await self._desktop.cursor(), await self._desktop.size()
        if self._size is not None:
            where = tuple(round(at * (of - 1) / max(1, wide - 1)) for at, of, wide in zip(where, self._size, screen, strict=True))
        return list(where), list(screen)

    # Keys

    async def _key(self, action: actions.Key) -> None:
        chord = keysyms.of_chord(action.keys)
        for _ in range(action.repeat):
            await self._desktop.press(chord)
            await self._desktop.release(chord)
            await self._held.pause(_HELD_CLICK)

    async def _key_down(self, action: actions.KeyDown) -> None:
        await self._desktop.press(keysyms.of_chord(action.keys))

    async def _key_up(self, action: actions.KeyUp) -> None:
        await self._desktop.release(keysyms.of_chord(action.keys))

    async def _hold_key(self, action: actions.HoldKey) -> None:
        async with self._holding(action.keys):
            await self._held.pause(action.seconds)

    async def _type(self, action: actions.Type) -> None:
        await self._desktop.type(action.text, action.delay_ms / 1000)

    async def _wait(self, action: actions.Wait) -> None:
        await self._held.pause(action.seconds)

    @contextlib.asynccontextmanager
    async def _holding(self, keys: str | None) -> AsyncIterator[None]:
        """Keys down meanwhile. What fails inside leaves them to whoever lets go of everything."""
        chord = keysyms.of_chord(keys) if keys else []
        if chord:
            await self._desktop.press(chord)
        yield
        if chord:
            await self._desktop.release(chord)

    # Windows and clipboard

    async def _windows(self, _: actions.Windows) -> dict[str, Any]:
        return {"windows": [window.public() for window in await self._desktop.windows()]}

    async def _activate(self, action: actions.Activate) -> None:
        try:
            await self._desktop.activate(action.window)
        except LookupError:
            raise NotFound(f"no window {action.window}: the list of windows has those there are") from None

    async def _get_clipboard(self, _: actions.GetClipboard) -> dict[str, Any]:
        return {"text": await self._clipboard.text()}

    async def _set_clipboard(self, action: actions.SetClipboard) -> None:
        await self._clipboard.put(action.text)
