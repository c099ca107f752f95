"""Commands on images: build, ls, rm, import."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator
from typing import Any

from engine.cli import output, values
from engine.cli.output import Progress
from engine.client import EngineClient
from engine.errors import Internal


async def dispatch(client: EngineClient, arguments: argparse.Namespace) -> int:
    """Run `tclone image ACTION`."""
    match arguments.action:
        case "build":
            _print(await build(client, arguments.name), arguments.json)
        case "import":
            path = os.path.abspath(arguments.path)
            _print(await _follow(client.import_image(path, arguments.name), f"image import {arguments.name}"), arguments.json)
        case "ls":
            await _list(client, arguments.json)
        case "rm":
            for ref in arguments.images:
                await client.remove_image(ref)
                print(ref)
    return 0


async def build(client: EngineClient, name: str) -> dict[str, Any]:
    """Build an image with its progress shown; at once when its recipe has not changed. Returns the image."""
    return await _follow(client.build(name), f"image build {name}")


async def _follow(steps: AsyncIterator[dict[str, Any]], what: str) -> dict[str, Any]:
    with Progress(what) as progress:
        async for step in steps:
            if "done" in step:
                return step["done"]
            progress.phase(step["phase"], step.get("detail"), step.get("elapsed_ms"))
    raise Internal(f"{what}: the engine ended its answer early; its log has more")


def _print(image: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.as_json(image)
    else:
        print(image["digest"])


async def _list(client: EngineClient, as_json: bool) -> None:
    found = await client.images()
    if as_json:
        output.as_json(found)
        return
    output.table(
        ("NAME", "DIGEST", "SIZE", "KIND", "AGE"),
        [
            (
                image["name"],
                image["digest"][:12],
                values.show_size(image["size"]),
                "desktop" if image.get("desktop") else "headless",
                values.show_age(image["created"]),
            )
            for image in found
        ],
    )
