"""What is made of an X server's keyboard, also of one that a hostile server tells."""

from __future__ import annotations

import random
import struct

import pytest

from engine.desktop import keysyms
from engine.desktop.keymap import LOCK, SHIFT, Keymap, KeymapReader, State
from engine.x11 import Screen, XError

NUM, CLAMP, REDIRECT_TO_SECOND = 1 << 4, 0x40, 0x80 | 1 << 4
# Mask, and the level that each combination of its modifiers leads to.
ONE, TWO, LETTERS, KEYPAD = (0, {}), (SHIFT, {SHIFT: 1}), (SHIFT | LOCK, {SHIFT: 1, LOCK: 1}), (SHIFT | NUM, {SHIFT: 1, NUM: 1})
SHIFT_CODE, CONTROL_CODE = 50, 37
SHIFT_L, CONTROL_L, KP_HOME, KP_7, ZHE, DEAD_ACUTE = 0xFFE1, 0xFFE3, 0xFF95, 0xFFB7, 0x06D6, 0xFE51


class Server:
    """Answers as a server with these keys would: keycode to (kinds by number, groups and what is done out of range, symbols)."""

    def __init__(self, keys: dict[int, tuple[tuple[int, ...], int, list[int]]], last: int = 60) -> None:
        self.screen = Screen(1, 640, 480, (8, last))
        self.types = [ONE, TWO, LETTERS, KEYPAD]
        self.keys = keys
        self.sent: list[bytes] = []

    async def send(self, *requests: bytes) -> None:
        self.sent += requests

    async def extension(self, _: str) -> int:
        return 135

    async def ask(self, request: bytes) -> bytes:
        if request[0] == 119:
            rows = [[SHIFT_CODE, 0], [66, 0], [CONTROL_CODE, 0], [64, 0], [77, 0], [0, 0], [0, 0], [0, 0]]
            return struct.pack("<BBHI24x", 1, 2, 0, 4) + bytes(code for row in rows for code in row)
        if request[1] != 8:
            return struct.pack("<BB30x", 1, 1)
        return self.told() if struct.unpack_from("<H", request, 6)[0] & 1 else self.told(types=[])

    def told(self, types: list[tuple[int, dict[int, int]]] | None = None) -> bytes:
        parts = b""
        types = self.types if types is None else types
        for mask, levels in types:
            parts += struct.pack("<BBHBBBx", mask, mask, 0, 1 + max(levels.values(), default=0), len(levels), 0)
            parts += b"".join(struct.pack("<BBBBH2x", 1, modifiers, level, modifiers, 0) for modifiers, level in levels.items())
        first, last = self.screen.keycodes
        for code in range(first, last + 1):
            kinds, groups, symbols = self.keys.get(code, ((), 0, []))
            width = len(symbols) // (groups & 15) if symbols else 0
            parts += struct.pack("<4sBBH", bytes(kinds), groups, width, len(symbols)) + struct.pack(f"<{len(symbols)}I", *symbols)
        count = len(types)
        head = struct.pack("<BBHI2xBBHBBBBHB", 1, 0, 0, 2 + len(parts) // 4, first, last, 3, 0, count, count, first, 0, last - first + 1)
        return head.ljust(40, b"\0") + parts


async def keymap(server: Server, group: int = 0, locked: int = 0) -> Keymap:
    reader = await KeymapReader.opened(server)  # type: ignore[arg-type]
    return await reader.keymap(State(group, locked, 0))


KEYS = {
    10: ((1,), 1, [ord("1"), ord("!")]),
    24: ((2, 2), 2, [ord("q"), ord("Q"), ZHE, 0x06F6]),
    48: ((1,), 1, [DEAD_ACUTE, ord('"')]),
    SHIFT_CODE: ((0,), 1, [SHIFT_L]),
    CONTROL_CODE: ((0,), 1, [CONTROL_L]),
    59: ((3,), 1, [KP_HOME, KP_7]),
    60: ((1, 1), 2, [ord(";"), ord("1"), 0, 0]),
}


async def test_symbols_are_found_alone_and_with_shift() -> None:
    where = await keymap(Server(KEYS))
    assert where.place_of(ord("q")) == (24, False) and where.place_of(ord("Q")) == (24, True)
    # Alone goes before with Shift.
    assert where.place_of(ord("1")) == (10, False)
    # A dead key is not the sign on it.
    assert where.place_of(ord("'")) is None and where.place_of(0xB4) is None and where.place_of(ord('"')) == (48, True)
    assert where.shift == SHIFT_CODE
    # No key and no modifier: these are free to be borrowed.
    assert 9 in where.spare and not {10, 24, SHIFT_CODE, CONTROL_CODE} & set(where.spare)


async def test_letters_of_older_keysyms_are_letters() -> None:
    where = await keymap(Server(KEYS), group=1)
    assert where.place_of(keysyms.of_character("ж")) == (24, False) and where.place_of(keysyms.of_character("Ж")) == (24, True)
    assert where.place_of(ord("q")) is None
    # A key of one layout has it in all.
    assert where.place_of(ord("1")) == (10, False)


async def test_num_lock_counts_and_caps_lock_does_not() -> None:
    assert (await keymap(Server(KEYS))).place_of(KP_7) == (59, True)
    locked = await keymap(Server(KEYS), locked=NUM | LOCK)
    assert locked.place_of(KP_7) == (59, False) and locked.place_of(ord("q")) == (24, False)


@pytest.mark.parametrize(("groups", "wanted", "symbol"), [(2, 2, "a"), (2, 3, "b"), (2 | CLAMP, 3, "b"), (2 | REDIRECT_TO_SECOND, 2, "b"), (1 | REDIRECT_TO_SECOND, 3, "a")])
async def test_a_layout_that_a_key_has_not(groups: int, wanted: int, symbol: str) -> None:
    where = await keymap(Server({10: ((0, 0), groups, [ord("a"), ord("b")][: groups & 15])}), group=wanted)
    assert where.place_of(ord(symbol)) == (10, False)


async def test_a_modifier_without_its_symbol_is_found_by_what_it_does() -> None:
    keys = {**KEYS, SHIFT_CODE: ((0,), 1, [0xFE08])}
    where = await keymap(Server(keys))
    assert where.place_of(SHIFT_L) == (SHIFT_CODE, False) == (where.shift, False)
    assert where.place_of(0xFFE9) == (64, False)
    assert where.place_of(0xFFEB) is None


async def test_symbols_are_put_by_one_change_that_leaves_the_keys_between_as_they_are() -> None:
    server = Server(KEYS)
    reader = await KeymapReader.opened(server)  # type: ignore[arg-type]
    await reader.put({9: ZHE, 25: DEAD_ACUTE, 11: 0})
    grab, change, ungrab = server.sent
    # Nobody else is served between the look and the change.
    assert (grab[0], ungrab[0]) == (36, 37)
    put = server.keys | {9: ((0, 0, 0, 0), 1, [ZHE]), 25: ((0, 0, 0, 0), 1, [DEAD_ACUTE])}
    keys = Server(put, last=25).told(types=[])[40:]
    # Of all keys from 9 to 25: the one before is not changed.
    assert change[36:] == keys[8:]
    assert struct.unpack("<BBHHHHBBBBBBH", change[:18]) == (135, 9, len(change) // 4, 0x100, 2, 0, 8, 60, 0, 0, 9, 17, 1 + 2 + 4 + 1)
    server.sent.clear()
    await reader.put({})
    assert server.sent == []


async def test_what_a_hostile_server_tells_before_a_change_is_refused_and_others_are_served_again() -> None:
    server = Server(KEYS)
    whole, chance = server.told(types=[]), random.Random(1)
    reader = await KeymapReader.opened(server)  # type: ignore[arg-type]
    for length in range(32, len(whole), 3):
        server.told = lambda types=None, length=length: whole[:length]  # type: ignore[method-assign]
        server.sent.clear()
        with pytest.raises(XError):
            await reader.put({9: ZHE, 60: 0})
        assert [request[0] for request in server.sent] == [36, 37]
    for _ in range(3000):
        broken = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            broken[chance.randrange(14, len(broken))] = chance.randrange(256)
        server.told = lambda types=None, broken=bytes(broken): broken  # type: ignore[method-assign]
        server.sent.clear()
        try:
            await reader.put({9: ZHE, 60: 0})
        except XError:
            assert [request[0] for request in server.sent] == [36, 37]
            continue
        change = server.sent[1]
        assert len(change) == 4 * struct.unpack_from("<H", change, 2)[0] <= len(whole) + 40


async def test_what_a_hostile_server_tells_is_refused() -> None:
    server = Server(KEYS)
    whole, chance = server.told(), random.Random(1)
    for length in range(32, len(whole), 3):
        server.told = lambda length=length: whole[:length]  # type: ignore[method-assign]
        with pytest.raises(XError):
            await keymap(server)
    for _ in range(3000):
        broken = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            broken[chance.randrange(14, len(broken))] = chance.randrange(256)
        server.told = lambda broken=bytes(broken): broken  # type: ignore[method-assign]
        try:
            where = await keymap(server, group=chance.randrange(4))
        except XError:
            continue
        assert all(8 <= code <= 60 for code, _ in where.places.values()) and all(8 <= code <= 60 for code in where.spare)


@pytest.mark.parametrize(("keysym", "character"), [
    (0x06D6, "ж"), (0x06F6, "Ж"), (0x06A4, "є"), (0x06AD, "ґ"), (0x06BF, "Џ"), (0x07E1, "α"), (0x07F3, "ς"), (0x07B8, "ύ"), (0x07D9, "Ω"),
    (0x0CE0, "א"), (0x0CFA, "ת"), (0x05C7, "ا"), (0x05EA, "ي"), (0x0DA1, "ก"), (0x0DF9, "๙"), (0x01B1, "ą"), (0x01EC, "ě"), (0x02B9, "ı"), (0x03BF, "ŋ"),
    (0x04B1, "ア"), (0x04A1, "。"), (0x04DE, "゛"), (0x0EA1, "ㄱ"), (0x0ED3, "ㅣ"), (0x13BD, "œ"), (0x20AC, "€"), (0x010000E9, "é"), (0x61, "a"), (0xE9, "é"),
])  # fmt: skip
def test_older_keysyms_of_characters(keysym: int, character: str) -> None:
    assert keysyms.canonical(keysym) == keysyms.of_character(character)


@pytest.mark.parametrize("keysym", [0xFF0D, 0xFFE1, 0xFE51, 0xFE03, 0xFFB7, 0])
def test_keys_that_are_no_characters_are_themselves(keysym: int) -> None:
    assert keysyms.canonical(keysym) == keysym
