"""Waiting for a condition, instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

# How long a test waits for what must come, in seconds: the machine may be busy with other work.
PATIENCE = 90.0
_POLL_SECONDS = 0.1


def until(what: str, look: Callable[[], Value], within: float = PATIENCE, every: float = _POLL_SECONDS) -> Value:
    """The first truthy answer of `look`. Raises AssertionError with `what` and the last answer after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        answer = look()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what}: not within {within:.0f} s; last seen: {answer!r}")
        time.sleep(every)
