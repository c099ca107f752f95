"""The browser of the tests leaves nothing of its own on the machine of whoever runs them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from playwright.async_api import async_playwright

from tests.pages.chromium import Chromium


def _environments(program: str) -> list[dict[str, str]]:
    """Of every process that runs this program."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "exe").readlink().name == program:
                words = (process / "environ").read_bytes().decode(errors="replace").split("\0")
                found.append(dict(word.split("=", 1) for word in words if "=" in word))
    return found


async def test_the_browser_has_a_home_of_its_own(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = short_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(short_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "settings"))
    monkeypatch.setattr("tempfile.tempdir", None)
    async with async_playwright() as playwright:
        chromium = Chromium(playwright)
        async with chromium.lent() as browser:
            page = await browser.new_page()
            await page.goto("data:text/html,<title>here</title>")
            assert await page.title() == "here"
            # What it may want to write goes there: into one directory, which every process of it takes for its home.
            homes = {words["HOME"] for words in _environments("chromium-headless-shell") if words.get("TMPDIR") == str(short_path)}
            assert len(homes) == 1 and Path(homes.pop()).parent == short_path
        await chromium.end()
    assert not home.exists()
    assert [path.name for path in short_path.iterdir()] == []
