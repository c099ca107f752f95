"""Names of keys, and the numbers that X has for them and for characters."""

from __future__ import annotations

import re
import unicodedata

# The characters that one action types at most.
MOST_TEXT = 10_000
_UNICODE = 0x01000000
# Between two keys; not the plus of `U+20AC`.
_PLUS = re.compile(r"(?<!^[uU])(?<!\+[uU])\+|(?<=[uU])\+(?![0-9a-fA-F]{4,6}(?:\+|$))")
_LATIN = (*range(0x20, 0x7F), *range(0xA0, 0x100))

# Names as X has them, in small letters; what else programs and models call the same key stands beside it.
_NAMES = {
    0xFF08: "backspace", 0xFF09: "tab", 0xFF0D: "return enter ⏎", 0xFF13: "pause", 0xFF14: "scroll_lock scrolllock", 0xFF1B: "escape esc",
    0xFFFF: "delete del", 0xFF50: "home", 0xFF51: "left arrowleft left_arrow", 0xFF52: "up arrowup up_arrow", 0xFF53: "right arrowright right_arrow",
    0xFF54: "down arrowdown down_arrow", 0xFF55: "page_up pageup prior pgup", 0xFF56: "page_down pagedown next pgdn pgdown", 0xFF57: "end",
    0xFF61: "print printscreen print_screen prtsc", 0xFF63: "insert ins", 0xFF67: "menu contextmenu apps", 0xFF6B: "break", 0xFF7F: "num_lock numlock",
    0xFF20: "multi_key compose", 0xFE20: "iso_left_tab", 0xFE03: "iso_level3_shift altgr", 0xFE08: "iso_next_group",
    0xFFE1: "shift_l shift shiftleft", 0xFFE2: "shift_r shiftright", 0xFFE3: "control_l ctrl control ctrlleft ctrl_l controlleft", 0xFFE4: "control_r ctrlright ctrl_r controlright",
    0xFFE5: "caps_lock capslock", 0xFFE7: "meta_l meta", 0xFFE8: "meta_r", 0xFFE9: "alt_l alt altleft option", 0xFFEA: "alt_r altright",
    0xFFEB: "super_l super win cmd command windows winleft", 0xFFEC: "super_r winright", 0xFFED: "hyper_l hyper", 0xFFEE: "hyper_r",
    0xFF8D: "kp_enter", 0xFF95: "kp_home", 0xFF96: "kp_left", 0xFF97: "kp_up", 0xFF98: "kp_right", 0xFF99: "kp_down", 0xFF9A: "kp_page_up kp_prior",
    0xFF9B: "kp_page_down kp_next", 0xFF9C: "kp_end", 0xFF9D: "kp_begin", 0xFF9E: "kp_insert", 0xFF9F: "kp_delete", 0xFFBD: "kp_equal",
    0xFFAA: "kp_multiply", 0xFFAB: "kp_add", 0xFFAC: "kp_separator", 0xFFAD: "kp_subtract", 0xFFAE: "kp_decimal", 0xFFAF: "kp_divide",
    0x1008FF11: "xf86audiolowervolume volumedown", 0x1008FF12: "xf86audiomute volumemute", 0x1008FF13: "xf86audioraisevolume volumeup",
    0x1008FF14: "xf86audioplay playpause", 0x1008FF15: "xf86audiostop", 0x1008FF16: "xf86audioprev", 0x1008FF17: "xf86audionext",
    0x1008FF26: "xf86back browserback", 0x1008FF27: "xf86forward browserforward", 0x1008FF29: "xf86refresh", 0x1008FF1B: "xf86search", 0x1008FF18: "xf86homepage",
    0x20: "space spacebar", 0x21: "exclam", 0x22: "quotedbl", 0x23: "numbersign", 0x24: "dollar", 0x25: "percent", 0x26: "ampersand", 0x27: "apostrophe quoteright",
    0x28: "parenleft", 0x29: "parenright", 0x2A: "asterisk", 0x2B: "plus", 0x2C: "comma", 0x2D: "minus", 0x2E: "period", 0x2F: "slash", 0x3A: "colon", 0x3B: "semicolon",
    0x3C: "less", 0x3D: "equal", 0x3E: "greater", 0x3F: "question", 0x40: "at", 0x5B: "bracketleft", 0x5C: "backslash", 0x5D: "bracketright", 0x5E: "asciicircum",
    0x5F: "underscore", 0x60: "grave quoteleft", 0x7B: "braceleft", 0x7C: "bar", 0x7D: "braceright", 0x7E: "asciitilde",
}  # fmt: skip
_KEYS = {name: keysym for keysym, names in _NAMES.items() for name in names.split()}
_KEYS.update({f"f{number}": 0xFFBD + number for number in range(1, 36)})
_KEYS.update({f"kp_{digit}": 0xFFB0 + digit for digit in range(10)})

RETURN, TAB, BACKSPACE, SHIFT, CAPS_LOCK = 0xFF0D, 0xFF09, 0xFF08, 0xFFE1, 0xFFE5
_TYPED = {"\n": RETURN, "\t": TAB, "\b": BACKSPACE}

_KATAKANA = 0x04
# Keysyms older than Unicode, which most layouts are still written in: a page of each, by the character set whose bytes their last ones are.
_PAGES = {0x01: "iso8859_2", 0x02: "iso8859_3", 0x03: "iso8859_4", _KATAKANA: "shift_jis", 0x05: "iso8859_6", 0x0C: "iso8859_8", 0x0D: "iso8859_11"}
# Those that are in no such order.
_RUNS = {
    0x06A1: "ђѓёєѕіїјљњћќґўџ№ЂЃЁЄЅІЇЈЉЊЋЌҐЎЏ", 0x06C0: bytes(range(0xC0, 0x100)).decode("koi8_r"),
    0x07A1: "ΆΈΉΊΪ", 0x07A7: "Ό", 0x07A8: "ΎΫ", 0x07AB: "Ώ", 0x07AE: "΅―", 0x07B1: "άέήίϊΐόύϋΰώ",
    0x07C1: "ΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣ", 0x07D4: "ΤΥΦΧΨΩ", 0x07E1: "αβγδεζηθικλμνξοπρσςτυφχψω",
    0x04DE: "゛゜", 0x0EA1: "".join(map(chr, range(0x3131, 0x3164))), 0x13BC: "ŒœŸ", 0x20AC: "€",
    0x0AA9: "—–", 0x0AAE: "…", 0x0AC9: "™", 0x0AD0: "‘’“”", 0x0AFD: "‚„",
}  # fmt: skip


def _legacy() -> dict[int, str]:
    """Characters of the older keysyms."""
    found = {}
    for page, charset in _PAGES.items():
        for low in range(0xA1, 0x100):
            text = bytes([low]).decode(charset, errors="ignore")
            if page == _KATAKANA:
                # Their bytes are those of the narrow forms.
                text = unicodedata.normalize("NFKC", text)
            if len(text) == 1:
                found[page << 8 | low] = text
    for first, run in _RUNS.items():
        found.update(enumerate(run, first))
    return found


_CHARACTERS = _legacy()


def canonical(keysym: int) -> int:
    """The keysym that `of_character` has for the character of this one; itself, when it is of none."""
    if keysym in _CHARACTERS:
        return of_character(_CHARACTERS[keysym])
    code = keysym - _UNICODE
    return code if code in _LATIN else keysym


def of_character(character: str) -> int:
    """The keysym that types a character. Raises ValueError for one that no key types: control characters and halves of pairs."""
    code = ord(character)
    if character in _TYPED:
        return _TYPED[character]
    if code in _LATIN:
        return code
    if code < 0xA0 or 0xD800 <= code < 0xE000:
        raise ValueError(f"U+{code:04X} cannot be typed")
    return _UNICODE + code


def of_name(name: str) -> int:
    """The keysym of a key's name: one character, a name of X (`Page_Down`, in any case) or a usual other one, or `U+20AC`. Raises ValueError."""
    if len(name) == 1:
        return of_character(name)
    lower = name.lower()
    if lower in _KEYS:
        return _KEYS[lower]
    if lower.startswith("u+") and 6 <= len(lower) <= 8:
        try:
            return of_character(chr(int(lower[2:], 16)))
        except (ValueError, OverflowError):
            pass
    raise ValueError(f"no key is called {name[:40]!r}")


def of_chord(chord: str) -> list[int]:
    """Keys to be held together, `ctrl+shift+t`, in the order in which they are pressed. Raises ValueError."""
    # The plus key itself: `ctrl++`, or `+` alone.
    names = ["+"] if chord == "+" else [*_PLUS.split(chord[:-2]), "+"] if chord.endswith("++") else _PLUS.split(chord)
    names = [name.strip() or name for name in names]
    if not all(names) or len(names) > 8:
        raise ValueError(f"{chord[:40]!r} is no key and no combination of keys with + between them")
    # A single letter among several is the key that bears it, so that `CTRL+C` is not ctrl+shift+c.
    return [of_name(name.lower() if len(name) == 1 and len(names) > 1 else name) for name in names]
