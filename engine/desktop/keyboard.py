"""Which keycode makes which symbol now, and how text becomes keystrokes that are right in every layout.

A symbol that the layout has on no key borrows a keycode that has none. Programs look a keycode up when they read the event, not when
it was made: so a borrowed keycode keeps its symbol until the program with the focus has read all that was typed by it.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from engine.desktop import keysyms
from engine.desktop.connection import Connection
from engine.desktop.held import Held
from engine.x11 import XError

PRESS, RELEASE, BUTTON_PRESS, BUTTON_RELEASE, MOTION = 2, 3, 4, 5, 6
_GET_MAPPING, _CHANGE_MAPPING, _GET_MODIFIERS, _QUERY_POINTER = 101, 100, 119, 38
_LOCK = 1 << 1
# Keystrokes sent at once; between such groups the pace is kept and a stop is noticed.
_GROUP = 8

Pause = Callable[[float], Awaitable[None]]


@dataclass
class Keymap:
    """Rows of symbols for each keycode from `first` on; `spare` are keycodes without any, which are no modifiers."""

    first: int
    rows: list[tuple[int, ...]]
    modifiers: set[int]
    group: int
    locked: bool
    spare: list[int] = field(default_factory=list)
    _found: dict[int, tuple[int, bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # As X has them: the first two columns are the first group's, the next two the second's.
        column = 2 * self.group
        for code, row in enumerate(self.rows, self.first):
            pair = row[column : column + 2] if self.group < 2 else ()
            for index, keysym in enumerate(pair):
                if keysym and (keysym not in self._found or index < self._found[keysym][1]):
                    self._found[keysym] = (code, bool(index))
            # A single letter in a row stands for both of its cases.
            if len(pair) == 2 and pair[0] and not pair[1] and 0x61 <= pair[0] <= 0x7A:
                self._found.setdefault(pair[0] - 0x20, (code, True))
            if not any(row) and code not in self.modifiers:
                self.spare.append(code)

    def place_of(self, keysym: int) -> tuple[int, bool] | None:
        """Keycode and whether Shift goes with it; None when the layout has the symbol on no key."""
        return self._found.get(keysym)


async def keymap(x: Connection) -> Keymap:
    """The keyboard as it is now. Raises XError."""
    first, last = x.screen.keycodes
    reply = await x.ask(struct.pack("<BBHBBH", _GET_MAPPING, 0, 2, first, last - first + 1, 0))
    width, count = reply[1], last - first + 1
    if not 1 <= width or len(reply) < 32 + 4 * width * count:
        raise XError("the X server's keyboard mapping is cut off")
    symbols = struct.unpack_from(f"<{width * count}I", reply, 32)
    modifiers = await x.ask(struct.pack("<BBH", _GET_MODIFIERS, 0, 1))
    rows = [symbols[index * width : (index + 1) * width] for index in range(count)]
    return Keymap(first, rows, set(modifiers[32 : 32 + 8 * modifiers[1]]) - {0}, *await _state(x))


async def _state(x: Connection) -> tuple[int, bool]:
    """Which group of the layout is in use, and whether Caps Lock is on."""
    (mask,) = struct.unpack_from("<H", await x.ask(struct.pack("<BBHI", _QUERY_POINTER, 0, 2, x.screen.root)), 24)
    return mask >> 13 & 3, bool(mask & _LOCK)


def mapping(keycode: int, keysym: int) -> bytes:
    """The request that puts one symbol on a keycode, shifted or not; 0 takes it off."""
    return struct.pack("<BBHBBHII", _CHANGE_MAPPING, 1, 4, keycode, 2, 0, keysym, keysym)


class Keyboard:
    """Presses keys of one connection. `fake` makes an input event's request; what is down and what is borrowed is noted in `held`."""

    def __init__(self, x: Connection, held: Held, fake: Callable[[int, int], bytes], caught_up: Callable[[], Awaitable[None]]) -> None:
        self._x = x
        self._held = held
        self._fake = fake
        self._caught_up = caught_up
        self._map: Keymap | None = None
        self._borrowed: dict[int, int] = {}  # symbol to keycode

    async def codes(self, chord: list[int]) -> list[int]:
        """The keycodes to press together for keysyms, in order. Raises XError."""
        where = await self._mapped()
        codes: list[int] = []
        for keysym in chord:
            place = where.place_of(keysym)
            if place is None:
                place = (await self._borrow(where, [keysym]))[keysym], False
            if place[1]:
                codes.append(self._shift(where))
            codes.append(place[0])
        return list(dict.fromkeys(codes))

    async def press(self, codes: list[int]) -> None:
        self._held.keys.extend(code for code in codes if code not in self._held.keys)
        await self._x.send(*(self._fake(PRESS, code) for code in codes))
        await self._x.settled()

    async def release(self, codes: list[int]) -> None:
        await self._x.send(*(self._fake(RELEASE, code) for code in reversed(codes)))
        await self._x.settled()
        self._held.keys[:] = [code for code in self._held.keys if code not in codes]

    async def type(self, text: str, delay: float, pause: Pause) -> None:
        """Type text, `delay` seconds from key to key. Raises XError, ValueError for what cannot be typed, before anything is."""
        symbols = [keysyms.of_character(character) for character in text.replace("\r\n", "\n").replace("\r", "\n")]
        where = await self._mapped()
        capital = where.place_of(keysyms.CAPS_LOCK) if where.locked else None
        if capital is not None:
            await self._tap(capital[0])
        try:
            await self._strike(symbols, where, delay, pause)
        finally:
            if capital is not None:
                await self._tap(capital[0])

    async def give_back(self) -> None:
        """Take borrowed symbols off their keycodes again, once everything typed by them has been read."""
        if self._borrowed:
            await self._caught_up()
            await self._x.send(*(mapping(code, 0) for code in self._held.borrowed))
            await self._x.settled()
            self._held.borrowed.clear()
            self._borrowed.clear()

    # Inside

    async def _mapped(self) -> Keymap:
        """The keyboard; read again when one of the keys that were pressed has switched it."""
        if self._map is not None and (self._map.group, self._map.locked) != await _state(self._x):
            await self.give_back()
            self._map = None
        if self._map is None:
            self._map = await keymap(self._x)
        return self._map

    def _shift(self, where: Keymap) -> int:
        place = where.place_of(keysyms.SHIFT)
        if place is None:
            raise XError("the keyboard has no Shift key")
        return place[0]

    async def _tap(self, code: int) -> None:
        await self._x.send(self._fake(PRESS, code), self._fake(RELEASE, code))

    async def _strike(self, symbols: list[int], where: Keymap, delay: float, pause: Pause) -> None:
        places: dict[int, tuple[int, bool]] = {}
        began, loop = 0, asyncio.get_running_loop()
        due = loop.time()
        while began < len(symbols):
            group = symbols[began : began + _GROUP]
            requests: list[bytes] = []
            for index, keysym in enumerate(group):
                place = where.place_of(keysym) or places.get(keysym)
                if place is None:
                    await self._send(requests)
                    # All that will be needed next at once: every change of the keyboard makes every program read it again.
                    ahead = [one for one in symbols[began + index :] if where.place_of(one) is None]
                    borrowed = await self._borrow(where, list(dict.fromkeys(ahead)))
                    places = {one: (code, False) for one, code in borrowed.items()}
                    place = places[keysym]
                shift = [self._shift(where)] if place[1] else []
                keys = [*shift, place[0]]
                requests += [self._fake(PRESS, code) for code in keys] + [self._fake(RELEASE, code) for code in reversed(keys)]
            await self._send(requests)
            await self._x.settled()
            began += len(group)
            due += delay * len(group)
            await pause(max(0.0, due - loop.time()))

    async def _send(self, requests: list[bytes]) -> None:
        if requests:
            await self._x.send(*requests)
            requests.clear()

    async def _borrow(self, where: Keymap, wanted: list[int]) -> dict[int, int]:
        """Keycodes for the first of `wanted` and as many of the others as there is room for."""
        free = [code for code in where.spare if code not in self._held.borrowed]
        missing = [keysym for keysym in wanted if keysym not in self._borrowed]
        if wanted[0] in missing and not free:
            await self.give_back()
            free, missing = list(where.spare), wanted
        if wanted[0] in missing and not free:
            raise XError("the keyboard has no keycode to spare for a symbol that its layout has not")
        given = dict(zip(missing, free, strict=False))
        self._held.borrowed.update(given.values())
        self._borrowed.update(given)
        await self._x.send(*(mapping(code, keysym) for keysym, code in given.items()))
        await self._x.settled()
        return self._borrowed
