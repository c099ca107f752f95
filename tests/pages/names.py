"""Names that are cut where the room for them ends."""

from __future__ import annotations

import re
from typing import Any

from playwright.async_api import Locator, expect

# Where the text ends that is seen of a name, where the end that is drawn once more, and where the room; the letters of that end.
_DRAWN = """(name) => {
  const text = name.querySelector(".name-text");
  const [box, whole] = [text.getBoundingClientRect(), name.getBoundingClientRect()];
  const end = getComputedStyle(name, "::after");
  return { seen: box.width, all: text.scrollWidth, ends: box.right + parseFloat(end.width), room: whole.right, letters: end.content };
}"""


async def cut_before(name: Locator, end: str) -> None:
    """A name is cut, before letters that end with `end` and are all in sight."""
    await expect(name).to_have_class(re.compile(r"\bcut\b"))
    drawn: dict[str, Any] = await name.evaluate(_DRAWN)
    assert 20 < drawn["seen"] < drawn["all"], drawn
    assert drawn["ends"] <= drawn["room"] + 0.5, drawn
    assert drawn["letters"].partition(" / ")[0].strip('"').endswith(end), drawn
