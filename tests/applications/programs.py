"""The applications: one program of `guest/` each, and what it needs beyond the defaults."""

from __future__ import annotations

from pathlib import Path

GUEST = Path(__file__).with_name("guest")
# Modules that the programs use, not programs themselves.
_SHARED = {"application", "site"}


def names() -> list[str]:
    """Every application, in a fixed order."""
    return sorted(path.stem for path in GUEST.glob("*.py") if path.stem not in _SHARED)
