"""Host limits that the engine raises at its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import hostlimits


def test_a_low_limit_is_raised_and_a_high_one_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    low, high = tmp_path / "low", tmp_path / "high"
    low.write_text("128\n")
    high.write_text("99999\n")
    monkeypatch.setattr(hostlimits, "_MINIMUMS", {low: 8192, high: 8192})
    hostlimits.raise_limits()
    assert low.read_text() == "8192"
    assert high.read_text() == "99999\n"


def test_a_limit_that_cannot_be_raised_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(hostlimits, "_MINIMUMS", {tmp_path / "missing": 1})
    hostlimits.raise_limits()
    assert "missing" in caplog.text
