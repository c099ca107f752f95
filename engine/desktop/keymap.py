"""The keyboard as the X server has it now (the XKEYBOARD extension): which keycode makes which symbol, and what is locked.

The protocol before that extension tells symbols, but not by which modifier one comes to the second of a key, nothing of the third and
further layouts of a keyboard, and of Num Lock only that it is some modifier.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from engine.desktop import keysyms
from engine.desktop.connection import Connection
from engine.x11 import XError

SHIFT, LOCK = 1 << 0, 1 << 1
_XKB = "XKEYBOARD"
_USE, _GET_STATE, _LATCH_LOCK, _GET_MAP, _SET_MAP = 0, 4, 5, 8, 9
_GRAB_SERVER, _UNGRAB_SERVER = struct.pack("<BBH", 36, 0, 1), struct.pack("<BBH", 37, 0, 1)
_GET_MODIFIERS, _CORE_KEYBOARD = 119, 0x100
_TYPES, _SYMBOLS = 1 << 0, 1 << 1
# The most that a request can have, and what tells of a key before its symbols.
_MOST_WORDS, _KEY_BYTES = 0xFFFF, 8
_ALL_MODIFIERS = 0xFF
# What a key does in a layout that it has no symbols for: clamp to its last one, or redirect to a certain one; else they wrap around.
_CLAMP, _REDIRECT = 0x40, 0x80
# Rows of the table of modifiers that stand for these keys when the layout has them nowhere.
_ROWS = {0xFFE1: 0, 0xFFE2: 0, 0xFFE3: 2, 0xFFE4: 2, 0xFFE7: 3, 0xFFE8: 3, 0xFFE9: 3, 0xFFEA: 3, 0xFFEB: 6, 0xFFEC: 6}

Place = tuple[int, bool]


@dataclass(frozen=True)
class State:
    """Which layout of the keyboard is in use, counted from 0, and which modifiers are locked or latched (bits as X has them)."""

    group: int
    locked: int
    latched: int
    latched_group: int = 0


@dataclass(frozen=True)
class _Type:
    """How modifiers choose among a key's symbols: those in `mask` matter, and those of them that are down choose by `levels`; the first, when that does not have them."""

    mask: int
    levels: dict[int, int]

    def level(self, modifiers: int) -> int:
        return self.levels.get(modifiers & self.mask, 0)


@dataclass(frozen=True)
class _Key:
    types: tuple[int, int, int, int]
    groups: int
    width: int
    symbols: tuple[int, ...]

    def group(self, wanted: int) -> int:
        """Which of its groups of symbols counts while layout `wanted` is in use. It has at least one."""
        count = self.groups & 0x0F
        if wanted < count:
            return wanted
        if self.groups & _REDIRECT:
            other = self.groups >> 4 & 3
            return other if other < count else 0
        return count - 1 if self.groups & _CLAMP else wanted % count


@dataclass
class Keymap:
    """Where symbols are while `state` holds: keycodes, and whether Shift goes with them. `spare` are keycodes without symbols, which are no modifiers."""

    state: State
    modifiers: list[tuple[int, ...]]
    places: dict[int, Place] = field(default_factory=dict)
    spare: list[int] = field(default_factory=list)

    def place_of(self, keysym: int) -> Place | None:
        """Keycode and whether Shift goes with it; None when the layout has the symbol on no key, or only by other modifiers."""
        place = self.places.get(keysym)
        if place is None and keysym in _ROWS:
            code = next((code for code in self.modifiers[_ROWS[keysym]] if code), 0)
            return (code, False) if code else None
        return place

    @property
    def shift(self) -> int:
        """The keycode of a Shift key. Raises XError when there is none."""
        place = self.place_of(keysyms.SHIFT)
        if place is None:
            raise XError("the keyboard has no Shift key")
        return place[0]


class KeymapReader:
    """Asks one connection's server. `opened` makes it."""

    def __init__(self, x: Connection, extension: int) -> None:
        self._x = x
        self._extension = extension

    @classmethod
    async def opened(cls, x: Connection) -> KeymapReader:
        """Raises XError when the server has no such extension."""
        extension = await x.extension(_XKB)
        reply = await x.ask(struct.pack("<BBHHH", extension, _USE, 2, 1, 0))
        if not reply[1]:
            raise XError("the X server's XKEYBOARD extension is not of version 1")
        return cls(x, extension)

    async def state(self) -> State:
        """What holds now. Raises XError."""
        reply = await self._x.ask(struct.pack("<BBHHH", self._extension, _GET_STATE, 2, _CORE_KEYBOARD, 0))
        latched, locked, group = reply[10], reply[11], reply[12]
        (latched_group,) = struct.unpack_from("<h", reply, 16)
        return State(group, locked, latched, latched_group)

    async def lock(self, affected: int, locked: int) -> None:
        """Lock those of the `affected` modifiers that are in `locked`, unlock the others of them; nothing stays latched.
        It holds for whatever is sent after it."""
        await self._x.send(
            struct.pack("<BBHHBBBBBBBBH", self._extension, _LATCH_LOCK, 4, _CORE_KEYBOARD, affected, locked, 0, 0, _ALL_MODIFIERS, 0, 0, 1, 0)
        )

    async def keymap(self, state: State) -> Keymap:
        """The keyboard while `state` holds. Caps Lock does not count: no shortcut is another one by it. Raises XError."""
        first, last = self._x.screen.keycodes
        try:
            types, keys = _map_of(await self._told(_TYPES | _SYMBOLS))
        except (struct.error, IndexError):
            raise XError("the X server's keyboard mapping is cut off") from None
        reply = await self._x.ask(struct.pack("<BBH", _GET_MODIFIERS, 0, 1))
        wide = reply[1]
        if len(reply) < 32 + 8 * wide:
            raise XError("the X server's table of modifiers is cut off")
        made = Keymap(state, [tuple(reply[32 + row * wide : 32 + (row + 1) * wide]) for row in range(8)])
        used = {code for row in made.modifiers for code in row}
        for code in range(first, last + 1):
            key = keys.get(code)
            if key is not None and any(key.symbols):
                _enter(made.places, code, key, types, state)
            elif code not in used:
                made.spare.append(code)
        return made

    async def put(self, symbols: dict[int, int]) -> None:
        """Put one symbol on each of these keycodes, with Shift or without; 0 takes it off. Raises XError.

        All by one change, since at each of them every program reads the whole keyboard again. Such a change is of all keys from the first to the
        last, so the server serves nobody else from the look at them to the change: what another program did between would be undone.
        """
        if not symbols:
            return
        low, high = min(symbols), max(symbols)
        await self._x.send(_GRAB_SERVER)
        try:
            keys = _descriptions(await self._told(_SYMBOLS))
            if not all(code in keys for code in range(low, high + 1)):
                raise XError("the X server's keyboard mapping has not all of its keycodes")
            keys |= {code: _one_symbol(keysym) for code, keysym in symbols.items()}
            await self._x.send(self._change([keys[code] for code in range(low, high + 1)], low))
        finally:
            await self._x.send(_UNGRAB_SERVER)

    async def _told(self, parts: int) -> bytes:
        """The server's answer about these parts of the whole keyboard."""
        return await self._x.ask(struct.pack("<BBHHHH18x", self._extension, _GET_MAP, 7, _CORE_KEYBOARD, parts, 0))

    def _change(self, keys: list[bytes], low: int) -> bytes:
        """The request that makes `keys` those from keycode `low` on."""
        content = b"".join(keys)
        words = 9 + len(content) // 4
        if words > _MOST_WORDS:
            raise XError("the X server's keyboard mapping is too long to be changed")
        first, last = self._x.screen.keycodes
        symbols = (len(content) - _KEY_BYTES * len(keys)) // 4
        return struct.pack("<BBHHHHBBBBBBH18x", self._extension, _SET_MAP, words, _CORE_KEYBOARD, _SYMBOLS, 0, first, last, 0, 0, low, len(keys), symbols) + content


def _one_symbol(keysym: int) -> bytes:
    """A key that makes `keysym` whatever is down beside it, as the protocol has it; of 0, one that makes nothing."""
    return struct.pack("<4sBBHI", bytes(4), 1, 1, 1, keysym) if keysym else bytes(_KEY_BYTES)


def _descriptions(reply: bytes) -> dict[int, bytes]:
    """Each key of a server's answer that tells only symbols, as it is told. Raises XError for one that is cut off."""
    first, _, count = struct.unpack_from("<BHB", reply, 17)
    at, found = 40, {}
    for code in range(first, first + count):
        if at + _KEY_BYTES > len(reply):
            raise XError("the X server's keyboard mapping is cut off")
        (number,) = struct.unpack_from("<H", reply, at + 6)
        end = at + _KEY_BYTES + 4 * number
        found[code] = reply[at:end]
        at = end
    if at > len(reply):
        raise XError("the X server's keyboard mapping is cut off")
    return found


def _enter(places: dict[int, Place], code: int, key: _Key, types: list[_Type], state: State) -> None:
    """Note what a key makes alone and with Shift. What needs no Shift goes before, then the lower keycode."""
    group = key.group(state.group)
    kind, modifiers = types[key.types[group]], state.locked & ~LOCK
    for shifted in (False, True):
        level = kind.level(modifiers | SHIFT if shifted else modifiers)
        symbol = keysyms.canonical(key.symbols[group * key.width + level]) if level < key.width else 0
        if symbol and (symbol not in places or places[symbol][1] > shifted):
            places[symbol] = code, shifted


def _map_of(reply: bytes) -> tuple[list[_Type], dict[int, _Key]]:
    """Key types and keys of a server's answer. Raises XError, struct.error and IndexError for one that is none."""
    first_type, count, _, first_key, _, keys = struct.unpack_from("<BBBBHB", reply, 14)
    at = 40
    types = []
    for _ in range(count):
        mask, entries, preserve = reply[at], reply[at + 5], reply[at + 6]
        at += 8
        levels = {}
        for _ in range(entries):
            active, modifiers, level = reply[at], reply[at + 1], reply[at + 2]
            if active:
                levels[modifiers] = level
            at += 8
        at += 4 * entries if preserve else 0
        types.append(_Type(mask, levels))
    found: dict[int, _Key] = {}
    for code in range(first_key, first_key + keys):
        kinds, groups, width, number = struct.unpack_from("<4sBBH", reply, at)
        symbols = struct.unpack_from(f"<{number}I", reply, at + 8)
        at += 8 + 4 * number
        if not groups & 0x0F or not symbols:
            continue
        if first_type or groups & 0x0F > 4 or (groups & 0x0F) * width > number or max(kinds[: groups & 0x0F]) >= count:
            raise XError("the X server's keyboard mapping contradicts itself")
        found[code] = _Key((kinds[0], kinds[1], kinds[2], kinds[3]), groups, width, symbols)
    return types, found
