"""The actions an agent can ask for, as JSON objects with `action`. The same models check requests to the engine and to the portal."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from engine.desktop import keysyms
from engine.desktop.keysyms import MOST_TEXT

MOST_ACTIONS = 64
MOST_SECONDS = 100.0
MOST_CLIPBOARD = 1 << 20
BUTTONS = {"left": 1, "middle": 2, "right": 3, "back": 8, "forward": 9}

Button = Literal["left", "middle", "right", "back", "forward"]
Place = Annotated[int, pydantic.Field(ge=0, le=65535)]
Seconds = Annotated[float, pydantic.Field(ge=0, le=MOST_SECONDS, allow_inf_nan=False)]
Notches = Annotated[int, pydantic.Field(ge=-100, le=100)]


def _chord(text: str) -> str:
    keysyms.of_chord(text)
    return text


def _typed(text: str) -> str:
    for character in text:
        if character != "\r":
            keysyms.of_character(character)
    return text


def _clean(text: str) -> str:
    text.encode()  # half of a surrogate pair is no character
    return text


Chord = Annotated[str, pydantic.Field(min_length=1, max_length=200), pydantic.AfterValidator(_chord)]
Typed = Annotated[str, pydantic.Field(max_length=MOST_TEXT), pydantic.AfterValidator(_typed)]
Modifiers = Annotated[Chord | None, pydantic.Field(description="keys held meanwhile, as `ctrl+shift`")]


class _Action(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)


class _Placed(_Action):
    """Where the pointer goes first; where it is, without `x` and `y`."""

    x: Place | None = None
    y: Place | None = None

    @pydantic.model_validator(mode="after")
    def _both(self) -> _Placed:
        if (self.x is None) != (self.y is None):
            raise ValueError("x and y come together")
        return self

    def places(self) -> list[tuple[int, int]]:
        """Every place that has to be on the screen."""
        return [] if self.x is None or self.y is None else [(self.x, self.y)]


class Move(_Action):
    action: Literal["move"]
    x: Place
    y: Place

    def places(self) -> list[tuple[int, int]]:
        return [(self.x, self.y)]


class Click(_Placed):
    action: Literal["click"]
    button: Button = "left"
    count: Annotated[int, pydantic.Field(ge=1, le=3)] = 1
    modifiers: Modifiers = None


class MouseDown(_Placed):
    action: Literal["mouse_down"]
    button: Button = "left"


class MouseUp(_Placed):
    action: Literal["mouse_up"]
    button: Button = "left"


class Drag(_Action):
    """From the first place over the others to the last."""

    action: Literal["drag"]
    path: Annotated[list[Annotated[list[Place], pydantic.Field(min_length=2, max_length=2)]], pydantic.Field(min_length=2, max_length=500)]
    button: Button = "left"
    modifiers: Modifiers = None

    def places(self) -> list[tuple[int, int]]:
        return [(place[0], place[1]) for place in self.path]


class Scroll(_Placed):
    """Notches of the wheel: positive ones go right and down."""

    action: Literal["scroll"]
    dx: Notches = 0
    dy: Notches = 0
    modifiers: Modifiers = None


class Key(_Action):
    action: Literal["key"]
    keys: Chord
    repeat: Annotated[int, pydantic.Field(ge=1, le=100)] = 1


class KeyDown(_Action):
    action: Literal["key_down"]
    keys: Chord


class KeyUp(_Action):
    action: Literal["key_up"]
    keys: Chord


class HoldKey(_Action):
    action: Literal["hold_key"]
    keys: Chord
    seconds: Seconds


class Type(_Action):
    """`delay_ms` from character to character."""

    action: Literal["type"]
    text: Typed
    delay_ms: Annotated[float, pydantic.Field(ge=0, le=1000, allow_inf_nan=False)] = 3.0


class Wait(_Action):
    action: Literal["wait"]
    seconds: Seconds


class Cursor(_Action):
    action: Literal["cursor"]


class Windows(_Action):
    action: Literal["windows"]


class Activate(_Action):
    """`window` is an id of the list of windows."""

    action: Literal["activate"]
    window: Annotated[int, pydantic.Field(ge=1, le=0xFFFFFFFF)]


class GetClipboard(_Action):
    action: Literal["get_clipboard"]


class SetClipboard(_Action):
    action: Literal["set_clipboard"]
    text: Annotated[str, pydantic.Field(max_length=MOST_CLIPBOARD), pydantic.AfterValidator(_clean)]


Action = Annotated[
    Move | Click | MouseDown | MouseUp | Drag | Scroll | Key | KeyDown | KeyUp | HoldKey | Type | Wait | Cursor | Windows | Activate | GetClipboard | SetClipboard,
    pydantic.Field(discriminator="action"),
]
Size = Annotated[list[Annotated[int, pydantic.Field(ge=16, le=7680)]], pydantic.Field(min_length=2, max_length=2)]


class Batch(pydantic.BaseModel):
    """`size`: width and height of the picture that places are pixels of; the screen's own without it."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    actions: Annotated[list[Action], pydantic.Field(min_length=1, max_length=MOST_ACTIONS)]
    size: Size | None = None


def places_of(action: Action) -> list[tuple[int, int]]:
    """The places on the screen that an action names."""
    return action.places() if isinstance(action, Move | Drag | _Placed) else []


def problem_of(error: pydantic.ValidationError) -> str:
    """The first thing wrong, in one line, without what was sent (it may be a secret)."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])[:80]}: {first['msg'][:200]}"
