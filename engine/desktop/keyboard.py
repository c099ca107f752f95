"""How text and names of keys become keystrokes that are right in every layout.

A symbol that the layout has on no key borrows a keycode that has none. Programs look a keycode up when they read the event, not when
it was made: so a borrowed keycode keeps its symbol until the program with the focus has read all that was typed by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from engine.desktop import keysyms
from engine.desktop.connection import Connection
from engine.desktop.held import Held
from engine.desktop.keymap import Keymap, KeymapReader, Place, State
from engine.x11 import XError

PRESS, RELEASE, BUTTON_PRESS, BUTTON_RELEASE, MOTION = 2, 3, 4, 5, 6
# Keystrokes sent at once; between such groups the pace is kept and a stop is noticed.
_GROUP = 8

Pause = Callable[[float], Awaitable[None]]


class Keyboard:
    """Presses keys of one connection. `fake` makes an input event's request; what is down and what is borrowed is noted in `held`."""

    def __init__(self, x: Connection, held: Held, fake: Callable[[int, int], bytes], caught_up: Callable[[], Awaitable[None]]) -> None:
        self._x = x
        self._held = held
        self._fake = fake
        self._caught_up = caught_up
        self._reader: KeymapReader | None = None
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
                codes.append(where.shift)
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
        before = await self._state()
        await self._unlock(before)
        try:
            await self._strike(symbols, await self._mapped(), delay, pause)
        finally:
            if before.locked:
                await (await self._asker()).lock(before.locked, before.locked)

    async def give_back(self) -> None:
        """Take borrowed symbols off their keycodes again, once everything typed by them has been read."""
        if self._borrowed:
            await self._caught_up()
            await self._put(dict.fromkeys(self._held.borrowed, 0))
            self._held.borrowed.clear()
            self._borrowed.clear()

    # Inside

    async def _asker(self) -> KeymapReader:
        if self._reader is None:
            self._reader = await KeymapReader.opened(self._x)
        return self._reader

    async def _state(self) -> State:
        return await (await self._asker()).state()

    async def _mapped(self) -> Keymap:
        """The keyboard; read again when one of the keys that were pressed has switched it."""
        state = await self._state()
        if self._map is not None and self._map.state != state:
            await self.give_back()
            self._map = None
        if self._map is None:
            self._map = await (await self._asker()).keymap(state)
        return self._map

    async def _unlock(self, state: State) -> None:
        """Text is typed with nothing locked or latched: Caps Lock would turn its letters over, Num Lock what is on the keypad, and a level
        that is locked all of it. Each keystroke carries what holds when it is made, so programs see no lock late or early."""
        if state.locked or state.latched or state.latched_group:
            await (await self._asker()).lock(state.locked, 0)

    async def _strike(self, symbols: list[int], where: Keymap, delay: float, pause: Pause) -> None:
        places: dict[int, Place] = {}
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
                shift = [where.shift] if place[1] else []
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
        back: set[int] = set()
        if wanted[0] in missing and not free:
            # What was typed by them has to be read first. Then most change from one symbol to the next, without being given back between.
            await self._caught_up()
            back = set(self._held.borrowed)
            self._borrowed.clear()
            free, missing = list(where.spare), wanted
        if wanted[0] in missing and not free:
            raise XError("the keyboard has no keycode to spare for a symbol that its layout has not")
        given = dict(zip(missing, free, strict=False))
        self._held.borrowed.update(given.values())
        await self._put(dict.fromkeys(back, 0) | {code: keysym for keysym, code in given.items()})
        self._held.borrowed -= back - set(given.values())
        self._borrowed.update(given)
        return self._borrowed

    async def _put(self, symbols: dict[int, int]) -> None:
        await (await self._asker()).put(symbols)
        await self._x.settled()
