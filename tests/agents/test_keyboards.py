"""Text is typed exactly whatever the keyboard is: in every layout of xkb, in each of several at once, with every lock on. Read from the file that an editor saves."""

from __future__ import annotations

import json

import pytest

from tests.agents.desk import GUEST, Desk

pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(1800)]

# What is in many layouts a dead key, on another level or in another place; letters of many alphabets, pictures, signs that combine.
WORDS = (
    "The quick <brown> fox @ 10:30 ~ #1 {a|b} [c] \\ ^`´¨ äöüß ÀÉ ñ çÇ € £ § ° Ω жЖ ΣίςΊ שלום مرحبا 日本語 かな 한국어 ไทย नमस्ते İıĞş "
    "ąłŹ ơƯ 😀🚀👩\u200d💻 'q' \"d\" e\u0301 ½ « » – … \u00a0 +-*/=%&?!;_$ \t|"
)
# An editor lays a line out anew for each character of it.
LINES = "".join(WORDS[at : at + 40] + "\n" for at in range(0, len(WORDS), 40))
SHORT = "aZ qQ yY 09 <>|@#~^`'\"{}[]\\/:;?!$%&*()-_=+., ´¨ é ß ж Ω ש س 日 😀"
# Ten thousand characters take half a minute each; and fewer, as fast as they go, in others.
WHOLE = ("us(intl)", "ru", "jp", "ara")
UNLIKE = (
    "us(dvorak)", "de", "de(neo)", "fr", "fr(bepo)", "ch", "ch(fr)", "br", "tr", "bg(phonetic)", "ua", "gr", "il", "jp(kana)", "kr", "in", "th", "am",
    "cz(bksl)", "us,ru", "gr,us",
)  # fmt: skip
# Of the variants one in so many, each time the same: there are five hundred.
_EVERY = 8
CAPS, NUM, LEVEL_3 = 1 << 1, 1 << 4, 1 << 7


async def use(desk: Desk, layout: str, *options: str) -> None:
    """A layout as xkb writes it, `us(intl)`, or several with commas between."""
    parts = [part.rstrip(")").split("(") for part in layout.split(",")]
    names, variants = ",".join(part[0] for part in parts), ",".join(part[1] if len(part) > 1 else "" for part in parts)
    await desk.shell(f"setxkbmap -option ''; setxkbmap -layout '{names}' -variant '{variants}' {' '.join(f'-option {one}' for one in options)}")


async def lock(desk: Desk, modifiers: int, group: int = 0) -> None:
    await desk.shell(f"python3 - {modifiers} {group}", stdin=(GUEST / "locked.py").read_bytes())


async def changes(desk: Desk) -> list[str]:
    """Changes of the keyboard's symbols that the watcher was told of: from which keycode on, and of how many."""
    return (await desk.shell("grep 'request MappingKeyboard' events; true")).splitlines()


async def mapping(desk: Desk) -> str:
    return await desk.shell("xkbcomp :1 - 2>/dev/null | grep -v '^//'")


@pytest.fixture(autouse=True)
async def plain(desk: Desk):
    yield
    await lock(desk, 0)
    await desk.shell("setxkbmap -option ''; setxkbmap us")


@pytest.mark.parametrize(("layout", "count", "delay"), [*((layout, 10_000, 3) for layout in WHOLE), *((layout, 1_000, 0) for layout in UNLIKE)])
async def test_text_in_layouts_that_are_unlike(desk: Desk, layout: str, count: int, delay: int) -> None:
    await use(desk, layout)
    before = await mapping(desk)
    text = (LINES * 100)[:count]
    await desk.editor()
    # In parts: a busy machine needs more than a batch may take for the layouts that borrow most.
    for begin in range(0, count, 2500):
        await desk.act({"action": "type", "text": text[begin : begin + 2500], "delay_ms": delay})
    assert await desk.saved() == text
    assert await mapping(desk) == before, "what was borrowed was given back"


# Fewer than there are keycodes to spare, and three times as many and some.
@pytest.mark.parametrize(("text", "most"), [("жЖΩשס日한かนนम", 2), ("".join(chr(0x4E00 + number) for number in range(60)), 5)])
async def test_the_keyboard_changes_as_seldom_as_can_be(desk: Desk, text: str, most: int) -> None:
    """At each change every program of the desktop reads the keyboard anew: one for all symbols that fit, and one that gives them back."""
    await desk.watch()
    before = await mapping(desk)
    await desk.act({"action": "type", "text": text})
    assert await mapping(desk) == before
    await desk.events()
    told = await changes(desk)
    # The watcher is told of each change four times: as a client of the protocol's core and of its extension, of the keyboard and of the device behind it.
    assert 4 <= len(told) <= 4 * most, told


@pytest.mark.parametrize("group", [0, 1, 2, 3])
async def test_each_of_four_layouts_in_use(desk: Desk, group: int) -> None:
    await use(desk, "us,ru,de,gr", "grp:win_space_toggle")
    await lock(desk, 0, group)
    await desk.editor()
    await desk.act({"action": "type", "text": WORDS})
    # A key of a shortcut that the layout in use does not have.
    await desk.act({"action": "key", "keys": "ctrl+a"}, {"action": "key", "keys": "ctrl+c"})
    assert await desk.saved() == WORDS
    assert (await desk.act({"action": "get_clipboard"}))["results"][0]["text"] == WORDS


@pytest.mark.parametrize(("layout", "locked"), [("us", CAPS), ("fr", CAPS | NUM), ("de(neo)", LEVEL_3), ("tr", CAPS | LEVEL_3), ("ru", NUM)])
async def test_text_is_the_same_whatever_is_locked(desk: Desk, layout: str, locked: int) -> None:
    await use(desk, layout)
    await desk.editor()
    await lock(desk, locked)
    await desk.act({"action": "type", "text": WORDS})
    state = json.loads(await desk.shell("python3 -", stdin=(GUEST / "modifiers.py").read_bytes()))
    await lock(desk, 0)
    assert await desk.saved() == WORDS
    assert state == locked, "what was locked is so again"


@pytest.mark.parametrize("option", ["grp:lshift_toggle", "grp:shifts_toggle", "caps:none", "caps:shiftlock", "ctrl:swapcaps", "altwin:swap_alt_win", "shift:both_capslock", "compose:ralt"])
async def test_options_that_move_the_modifiers(desk: Desk, option: str) -> None:
    await use(desk, "us,de", option)
    await desk.editor()
    await desk.act({"action": "type", "text": WORDS}, {"action": "key", "keys": "ctrl+a"}, {"action": "key", "keys": "ctrl+c"})
    assert await desk.saved() == WORDS
    assert (await desk.act({"action": "get_clipboard"}))["results"][0]["text"] == WORDS


async def test_every_layout_of_xkb(desk: Desk) -> None:
    """All layouts; of their variants some."""
    listed = await desk.shell("sed -n '/^! layout/,/^$/p' /usr/share/X11/xkb/rules/base.lst | awk 'NR > 1 && NF { print $1 }'")
    variants = await desk.shell("sed -n '/^! variant/,/^$/p' /usr/share/X11/xkb/rules/base.lst | awk 'NR > 1 && NF { print $2 $1 }'")
    layouts = [one for one in listed.split() if one != "custom"] + [f"{one.partition(':')[0]}({one.partition(':')[2]})" for one in variants.split()[::_EVERY]]
    assert len(layouts) > 140
    wrong = {}
    for begin in range(0, len(layouts), 40):
        await desk.editor()
        group = layouts[begin : begin + 40]
        for layout in group:
            await use(desk, layout)
            await desk.act({"action": "type", "text": f"{layout} {SHORT}\n", "delay_ms": 0})
        await desk.shell("setxkbmap us")
        lines = (await desk.saved()).split("\n")
        expected = [f"{layout} {SHORT}" for layout in group]
        wrong.update({want: got for want, got in zip(expected, [*lines, *[""] * 40], strict=False) if want != got})
    assert not wrong, f"{len(wrong)} of {len(layouts)} layouts: {json.dumps(wrong, ensure_ascii=False)[:3000]}"
