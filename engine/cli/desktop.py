"""Commands that look at a desktop and act in it: screenshot, click, type, key."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from engine.client import EngineClient
from engine.desktop.keysyms import MOST_TEXT
from engine.errors import BadRequest, Internal, from_wire

_KINDS = {".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}


async def screenshot(client: EngineClient, arguments: argparse.Namespace) -> int:
    """Write a picture to a file or to stdout, which may be no terminal."""
    if arguments.output is None and sys.stdout.isatty():
        raise BadRequest("screenshot: a terminal shows no pictures: give -o FILE, or send stdout elsewhere")
    format = arguments.format or _KINDS.get(Path(arguments.output or "").suffix.lower(), "png")
    settle = round(arguments.settle * 1000) if arguments.settle is not None else None
    shot = await client.screenshot(arguments.workspace, region=arguments.region, format=format, width=arguments.width, settle_ms=settle)
    if shot is None:
        raise Internal("the engine sent no picture")
    if arguments.output is None:
        sys.stdout.buffer.write(shot.content)
    else:
        try:
            Path(arguments.output).write_bytes(shot.content)
        except OSError as error:
            raise BadRequest(f"{arguments.output}: {error.strerror}") from None
    return 0


async def click(client: EngineClient, arguments: argparse.Namespace) -> int:
    """Click once, twice or three times."""
    action: dict[str, Any] = {"action": "click", "x": arguments.x, "y": arguments.y, "button": arguments.button, "count": arguments.count}
    if arguments.modifiers:
        action["modifiers"] = arguments.modifiers
    return await _done(client, arguments.workspace, [action])


async def type(client: EngineClient, arguments: argparse.Namespace) -> int:
    """Type a text, a long one in parts."""
    text = arguments.text if arguments.text != "-" else await asyncio.to_thread(_read_stdin)
    for start in range(0, len(text), MOST_TEXT):
        await _done(client, arguments.workspace, [{"action": "type", "text": text[start : start + MOST_TEXT]}])
    return 0


async def key(client: EngineClient, arguments: argparse.Namespace) -> int:
    """Press combinations of keys, one after the other."""
    return await _done(client, arguments.workspace, [{"action": "key", "keys": keys} for keys in arguments.keys])


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise BadRequest("type: what came by stdin is not UTF-8") from None


async def _done(client: EngineClient, ref: str, actions: list[dict[str, Any]]) -> int:
    """Carry actions out. Raises the error of the one that failed."""
    answer = await client.act(ref, actions)
    if answer.get("interrupted"):
        raise Internal("the engine was ended in the midst of it: look at the screen, it is not done again")
    for result in answer["results"]:
        if not result["ok"]:
            raise from_wire(result["error"]["code"], result["error"]["message"])
    return 0
