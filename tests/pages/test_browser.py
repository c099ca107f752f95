"""The browser of the tests leaves nothing of its own on the machine of whoever runs them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from tests.chromium import chromium, driver
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
    async with driver() as playwright:
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


async def test_a_driver_that_is_stopped_with_its_browser_open_leaves_nothing(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.environ.get("TMPDIR")
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    async with driver() as playwright:
        with chromium() as options:
            await playwright.chromium.launch(**options)
            assert list(short_path.glob("*/playwright-artifacts-*")) != []
    assert list(short_path.iterdir()) == [] and os.environ.get("TMPDIR") == before
