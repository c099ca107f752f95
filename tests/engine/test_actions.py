"""Actions as they come in, names of keys, and X servers that misbehave. On a real desktop: tests/agents."""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Any

import pydantic
import pytest

from engine.desktop import held, keysyms, service
from engine.desktop.actions import Batch, problem_of
from engine.desktop.runner import place
from engine.desktop.service import Desktops
from engine.errors import BadRequest, Conflict, LimitReached, Unavailable
from engine.workspace import State
from tests.engine.test_screen import greeting, says, serving

SCREEN = (1280, 800)


@pytest.mark.parametrize(
    "chord, expected",
    [
        ("Return", [0xFF0D]), ("ENTER", [0xFF0D]), ("ctrl+c", [0xFFE3, 0x63]), ("CTRL+C", [0xFFE3, 0x63]), ("A", [0x41]), ("control+shift+T", [0xFFE3, 0xFFE1, 0x74]),
        ("+", [0x2B]), ("ctrl++", [0xFFE3, 0x2B]), ("ctrl+plus", [0xFFE3, 0x2B]), ("Page_Down", [0xFF56]), ("ARROWLEFT", [0xFF51]), ("F12", [0xFFC9]), ("KP_0", [0xFFB0]),
        ("€", [0x010020AC]), ("U+20AC", [0x010020AC]), ("ctrl+U+20AC", [0xFFE3, 0x010020AC]), ("u+a", [0x75, 0x61]), ("alt+Tab", [0xFFE9, 0xFF09]), ("super", [0xFFEB]), (" ", [0x20]), ("space", [0x20]), ("é", [0xE9]),
    ],
)  # fmt: skip
def test_names_of_keys(chord: str, expected: list[int]) -> None:
    assert keysyms.of_chord(chord) == expected


@pytest.mark.parametrize("chord", ["", "nokey", "ctrl+", "+c", "ctrl+nokey", "a+b+c+d+e+f+g+h+i", "\x00", "U+D800", "U+110000", "u+zz"])
def test_what_is_no_key(chord: str) -> None:
    with pytest.raises(ValueError):
        keysyms.of_chord(chord)


def test_corners_meet_corners() -> None:
    assert place(0, 0, [1366, 768], SCREEN) == (0, 0)
    assert place(1365, 767, [1366, 768], SCREEN) == (1279, 799)
    assert place(640, 400, None, SCREEN) == (640, 400)
    for x, y, size in ((1280, 0, None), (0, 800, None), (1024, 0, [1024, 768])):
        with pytest.raises(BadRequest, match="outside"):
            place(x, y, size, SCREEN)


@pytest.mark.parametrize(
    "action",
    [
        {"action": "click", "x": 1}, {"action": "click", "x": -1, "y": 1}, {"action": "click", "x": 1.5, "y": 1}, {"action": "click", "x": "1", "y": 1}, {"action": "click", "count": 4},
        {"action": "click", "button": "wheel"}, {"action": "move"}, {"action": "fly", "x": 1, "y": 1}, {"action": "type", "text": "a" * 10_001}, {"action": "type", "text": "\x1b"},
        {"action": "type", "text": "\ud800"}, {"action": "key", "keys": "nokey"}, {"action": "wait", "seconds": 101}, {"action": "wait", "seconds": float("nan")},
        {"action": "drag", "path": [[1, 1]]}, {"action": "scroll", "dy": 101}, {"action": "move", "x": 1, "y": 1, "z": 1}, {"action": "set_clipboard", "text": "\udfff"}, "click", None,
    ],
)  # fmt: skip
def test_an_action_that_is_none(action: Any) -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        Batch.model_validate({"actions": [{"action": "wait", "seconds": 0}, action]})
    assert "actions.1" in problem_of(caught.value)


def test_what_was_typed_is_not_repeated_in_a_refusal() -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        Batch.model_validate({"actions": [{"action": "type", "text": "secret\x1b"}]})
    assert "secret" not in problem_of(caught.value)


@pytest.fixture
async def desktops() -> Any:
    made = Desktops(None)  # type: ignore[arg-type]
    yield made
    await made.close()


def batch(*actions: dict[str, Any]) -> Batch:
    return Batch.model_validate({"actions": list(actions)})


async def tells(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, words: bytes) -> None:
    """Says it all at once, hears one question and goes."""
    await reader.readexactly(12)
    writer.write(words)
    await writer.drain()
    await reader.readexactly(16)


CLICK = {"action": "click", "x": 1, "y": 1}


@pytest.mark.parametrize(
    "words",
    [
        greeting() + struct.pack("<BBHI24x", 1, 0, 1, 0),  # no XTEST
        greeting() + struct.pack("<BBHI24x", 1, 0, 7, 0),  # an answer to another question
        greeting() + struct.pack("<BBHI24x", 1, 0, 1, 0xFFFFFFFF),  # an endless one
        greeting() + struct.pack("<BBHI24x", 0, 1, 1, 0),  # a refusal
        greeting() + struct.pack("<B31x", 2) * 30_000,  # events without end
        greeting() + b"few",
    ],
)
async def test_a_server_that_lies_is_an_error_and_nothing_else(desktops: Desktops, words: bytes) -> None:
    async with serving(lambda reader, writer: tells(reader, writer, words)) as workspace:
        with pytest.raises(Unavailable, match="the desktop of ws-1 failed"):
            await asyncio.wait_for(desktops.act(workspace, batch(CLICK)), 20)


async def test_a_server_that_says_nothing_ends_by_the_time_limit(desktops: Desktops, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "BATCH_SECONDS", 0.5)

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(silent) as workspace:
        began = time.monotonic()
        with pytest.raises(Unavailable, match="did not end within"):
            await desktops.act(workspace, batch(CLICK))
        assert time.monotonic() - began < 10


async def test_no_input_while_a_workspace_is_forked_or_has_no_desktop(desktops: Desktops) -> None:
    async with serving(lambda reader, writer: says(reader, writer, greeting())) as workspace:
        workspace.state = State.FORKING
        with pytest.raises(Conflict, match="it is forking"):
            await desktops.act(workspace, batch(CLICK))
        workspace.state, workspace.desktop = State.READY, False
        with pytest.raises(Conflict, match="no desktop"):
            await desktops.act(workspace, batch(CLICK))


async def test_who_waits_too_long_a_queue_is_refused_and_who_waits_is_refused_when_control_changes_hands(desktops: Desktops, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "MOST_WAITING", 3)

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    monkeypatch.setattr(service, "BATCH_SECONDS", 2.0)
    async with serving(silent) as workspace:
        waiting = [asyncio.ensure_future(desktops.act(workspace, batch(CLICK))) for _ in range(6)]
        await asyncio.sleep(0.1)
        releasing = asyncio.ensure_future(desktops.release(workspace))
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        await releasing
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [Unavailable, Conflict, Conflict, Conflict, LimitReached, LimitReached]
    assert "changed hands" in str(outcomes[1])
