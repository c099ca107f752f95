"""The desktop of an X server: input by XTEST, which programs cannot tell from a person's."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

from engine.desktop import windows
from engine.desktop.connection import Connection, connected
from engine.desktop.held import Held
from engine.desktop.interface import Desktop, Window
from engine.desktop.keyboard import BUTTON_PRESS, BUTTON_RELEASE, MOTION, RELEASE, Keyboard
from engine.desktop.keymap import KeymapReader

_CHANGE_WINDOW, _FAKE_INPUT, _GET_GEOMETRY, _QUERY_POINTER, _QUERY_KEYMAP = 2, 2, 14, 38, 44
# What a change of the root window's size is told by; one that a program made up has the highest bit of its kind set.
_EVENT_MASK, _STRUCTURE_NOTIFY, _CONFIGURED = 1 << 11, 1 << 17, 22
_XTEST = "XTEST"
_BUTTONS_IN_MASK = 5
# A window manager takes milliseconds; one that hangs holds up nobody for longer than this.
_THAW_SECONDS, _THAW_LOOK = 2.0, 0.004


class XDesktop(Desktop):
    """One connection's. `opened` makes it."""

    def __init__(self, x: Connection, xtest: int, held: Held) -> None:
        self._x = x
        self._xtest = xtest
        self._held = held
        self._size: tuple[int, int] | None = None
        self._keyboard = Keyboard(x, held, self._fake, lambda: windows.caught_up(x))

    async def size(self) -> tuple[int, int]:
        root = self._x.screen.root
        if self._size is None:
            # Asked for once; whatever changes it later is told.
            await self._x.send(struct.pack("<BBHIII", _CHANGE_WINDOW, 0, 4, root, _EVENT_MASK, _STRUCTURE_NOTIFY))
            reply = await self._x.ask(struct.pack("<BBHI", _GET_GEOMETRY, 0, 2, root))
            self._x.events.clear()
            self._size = struct.unpack_from("<HH", reply, 16)
        await self._x.arrived()
        while self._x.events:
            event = self._x.events.popleft()
            if event[0] == _CONFIGURED and struct.unpack_from("<I", event, 8)[0] == root:
                self._size = struct.unpack_from("<HH", event, 20)
        return self._size

    async def cursor(self) -> tuple[int, int]:
        reply = await self._x.ask(struct.pack("<BBHI", _QUERY_POINTER, 0, 2, self._x.screen.root))
        x, y = struct.unpack_from("<hh", reply, 16)
        return x, y

    async def move(self, x: int, y: int) -> None:
        await self._x.send(self._fake(MOTION, 0, x, y))
        await self._x.settled()

    async def button(self, number: int, down: bool) -> None:
        if down and number not in self._held.buttons:
            self._held.buttons.append(number)
        await self._x.send(self._fake(BUTTON_PRESS if down else BUTTON_RELEASE, number))
        await self._x.settled()
        if not down:
            if number in self._held.buttons:
                self._held.buttons.remove(number)
            await self._thawed(number)

    async def _thawed(self, number: int) -> None:
        """Return when the release of a button has taken effect. The window manager is shown presses first and stops the pointer meanwhile,
        but not the keyboard: what is typed next would overtake the click and go to the window that had the keyboard before."""
        bit = 1 << 7 + number
        deadline = asyncio.get_running_loop().time() + _THAW_SECONDS
        while number <= _BUTTONS_IN_MASK and await self._mask() & bit and asyncio.get_running_loop().time() < deadline:
            await self._held.pause(_THAW_LOOK)

    async def _mask(self) -> int:
        """Which modifiers and buttons are down: bits as X has them."""
        reply = await self._x.ask(struct.pack("<BBHI", _QUERY_POINTER, 0, 2, self._x.screen.root))
        return int(struct.unpack_from("<H", reply, 24)[0])

    async def press(self, chord: list[int]) -> None:
        await self._keyboard.press(await self._keyboard.codes(chord))

    async def release(self, chord: list[int]) -> None:
        await self._keyboard.release(await self._keyboard.codes(chord))

    async def type(self, text: str, delay: float) -> None:
        await self._keyboard.type(text, delay, self._held.pause)

    async def finish(self) -> None:
        if not self._held.keys:
            await self._keyboard.give_back()

    async def let_go(self, keys: list[int], buttons: list[int], borrowed: set[int]) -> None:
        await self._x.send(*(self._fake(RELEASE, code) for code in reversed(keys)))
        await self._x.send(*(self._fake(BUTTON_RELEASE, number) for number in reversed(buttons)))
        if borrowed:
            await (await KeymapReader.opened(self._x)).put(dict.fromkeys(borrowed, 0))
        await self._x.settled()

    async def let_go_of_all(self) -> None:
        down = (await self._x.ask(struct.pack("<BBH", _QUERY_KEYMAP, 0, 1)))[8:40]
        keys = [code for code in range(8, 256) if down[code // 8] & 1 << code % 8]
        mask = await self._mask()
        await self.let_go(keys, [number for number in range(1, _BUTTONS_IN_MASK + 1) if mask & 1 << 7 + number], set())

    async def windows(self) -> list[Window]:
        return await windows.listed(self._x)

    async def activate(self, window: int) -> None:
        await windows.activate(self._x, window)

    def _fake(self, kind: int, detail: int, x: int = 0, y: int = 0) -> bytes:
        """An input event made up. A motion's place is on the first screen; its detail 0 says that it is absolute."""
        root = self._x.screen.root if kind == MOTION else 0
        return struct.pack("<BBHBBHII8xhh8x", self._xtest, _FAKE_INPUT, 9, kind, detail, 0, 0, root, x, y)


@contextlib.asynccontextmanager
async def opened(root_fd: int, display: str, held: Held) -> AsyncIterator[XDesktop]:
    """The desktop of `display` in the tree at `root_fd`. Raises XError."""
    async with connected(root_fd, display) as x:
        yield XDesktop(x, await x.extension(_XTEST), held)
