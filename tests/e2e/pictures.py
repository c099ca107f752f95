"""Looking at screenshots: is there a picture, and does it move."""

from __future__ import annotations

import io

from PIL import Image, ImageChops

# A picture of a desktop has thousands of colours; a black or white frame, a page with an error or a spinner only a few.
_FEWEST_COLOURS = 64
# Video is not exact: a pixel counts as changed when it differs by more than this, of 255.
_NOISE = 24
_FEWEST_CHANGED = 20
# How much darker the darkest pixel is than the brightest, of 255, where an icon is; the desktop's background has 40 at most.
ICON = 90


def opened(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png)).convert("RGB")


def has_picture(image: Image.Image) -> bool:
    """Whether the middle of the image shows more than a colour or two."""
    width, height = image.size
    middle = image.crop((width // 10, height // 10, width * 9 // 10, height * 9 // 10))
    colours = middle.quantize(256).getcolors() if middle.getcolors(4096) is None else middle.getcolors(4096)
    return colours is not None and len(colours) >= _FEWEST_COLOURS


def changed(before: Image.Image, after: Image.Image) -> int:
    """How many pixels differ clearly."""
    if before.size != after.size:
        return 0
    difference = ImageChops.difference(before, after).convert("L")
    return sum(difference.histogram()[_NOISE:])


def contrast(image: Image.Image) -> int:
    """How much darker the darkest pixel is than the brightest, of 255."""
    darkest, brightest = image.convert("L").getextrema()
    return brightest - darkest


def moves(before: Image.Image, after: Image.Image) -> bool:
    return changed(before, after) >= _FEWEST_CHANGED
