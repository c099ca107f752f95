"""Text that workspaces had a hand in: names of processes, paths, what their programs wrote."""

from __future__ import annotations

import unicodedata
from typing import Any

_FORBIDDEN = ("Cc", "Cf", "Cs")  # control, format (writing direction) and surrogate characters


def printable(text: Any, limit: int | None = None) -> str:
    """`text` without control characters, for a terminal obeys escapes; at most `limit` characters, the cut shown by an ellipsis."""
    clean = "".join(
        character if unicodedata.category(character) not in _FORBIDDEN else "\N{REPLACEMENT CHARACTER}" for character in str(text)
    )
    if limit is None or len(clean) <= limit:
        return clean
    return clean[: limit - 1] + "\N{HORIZONTAL ELLIPSIS}"
