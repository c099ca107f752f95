"""The wallpaper of a real desktop stays while viewers come and go, by pixels."""

from __future__ import annotations

import asyncio
import io

import pytest
from PIL import Image

from engine.client import EngineClient
from tests.agents.desk import Desk, eventually
from tests.agents.test_screen_sizes import of_size, resized

pytestmark = [pytest.mark.desktop, pytest.mark.slow, pytest.mark.timeout(900)]

# Where no window and no icon is, as parts of the width and height.
_PLACES = ((0.3, 0.2), (0.5, 0.5), (0.7, 0.7), (0.95, 0.1), (0.95, 0.85), (0.02, 0.9))
_BLACK = 24


async def look(desk: Desk) -> list[tuple[int, int, int]]:
    shot = await desk.client.screenshot(desk.ref)
    assert shot is not None
    image = Image.open(io.BytesIO(shot.content)).convert("RGB")
    return [image.getpixel((int(x * image.width), int(y * image.height))) for x, y in _PLACES]


def black(pixels: list[tuple[int, int, int]]) -> bool:
    return any(max(pixel) < _BLACK for pixel in pixels)


def papered(pixels: list[tuple[int, int, int]]) -> bool:
    """Not black, and not of one colour, which is what shows before the wallpaper is drawn."""
    return not black(pixels) and len(set(pixels)) > 3


async def pixels_while(desk: Desk, under_way: asyncio.Future) -> list[list[tuple[int, int, int]]]:
    seen = []
    while not under_way.done():
        seen.append(await look(desk))
        await asyncio.sleep(0.05)
    await under_way
    return seen


async def monitors(desk: Desk) -> str:
    return await desk.shell("xrandr --listmonitors; xfconf-query -c xsettings -p /Xft/DPI")


async def test_the_wallpaper_stays_while_viewers_come_and_go(desk: Desk, client: EngineClient) -> None:
    async def drawn() -> bool:
        return papered(await look(desk))

    await eventually("the wallpaper is drawn", drawn)
    before, known, window = await look(desk), await monitors(desk), await desk.shell("xdotool search --class xfdesktop | sort")
    branches = [Desk(client, made["id"]) for made in (await client.fork(desk.ref, copies=2))["branches"]]
    for one in (desk, *branches):
        assert await look(one) == before

        async def come_and_go(one: Desk = one) -> None:
            for _ in range(3):
                told = await one.viewer(1.5, scaling_dpi="192", displayScale=2, framerate=15)
                assert told["frames"], "the viewer saw nothing"
                assert await monitors(one) == known
                # The last one's things are cleared away a while after it has gone.
                await asyncio.sleep(4)

        seen = await pixels_while(one, asyncio.ensure_future(come_and_go()))
        assert len(seen) > 10 and all(pixels == before for pixels in seen), f"of {len(seen)} pictures {sum(map(black, seen))} were black"
        assert await monitors(one) == known
        assert await one.shell("xdotool search --class xfdesktop | sort") == window


async def test_the_wallpaper_comes_back_after_each_resize(client: EngineClient) -> None:
    async with of_size(client, (1280, 800)) as desk:

        async def drawn() -> bool:
            return papered(await look(desk))

        await eventually("the wallpaper is drawn", drawn)
        for size in ((1024, 768), (901, 607), (1280, 800)) * 3:
            await resized(desk, size)
            await eventually(f"the wallpaper is drawn at {size}", drawn, 10)
        # And when the next one comes before the wallpaper of the last one has been drawn.
        await desk.shell("for mode in 1024x768 901x607 1280x800 901x607 1280x800 1024x768; do xrandr --output screen --mode $mode; done")
        await eventually("the wallpaper is drawn after them all", drawn, 10)
