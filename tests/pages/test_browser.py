"""The browser of the tests leaves nothing of its own on the machine of whoever runs them."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import async_playwright

from tests.pages.chromium import Chromium


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
            # The settings' database and the like are somewhere.
            assert any(path.name.startswith("tclone-chromium-") and any(path.iterdir()) for path in short_path.iterdir())
        await chromium.end()
    assert not home.exists()
    assert [path.name for path in short_path.iterdir()] == []
