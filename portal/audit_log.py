"""Reading the audit log: newest first, a page at a time, by user, workspace or what happened."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

_BLOCK = 64 * 1024
# A reader looks no further back than this for entries that are asked for.
_MOST_READ = 256 << 20

Entry = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """Which entries; None does not matter. `user`: who did it, or to whose account, or whose share link let somebody in; `workspace`: what it was done to, or made by a fork."""

    user: str | None = None
    workspace: str | None = None
    event: str | None = None

    def marks(self) -> list[bytes]:
        """What a line has to hold to be worth parsing: far faster than parsing all."""
        return [json.dumps(value).encode() for value in (self.user, self.workspace, self.event) if value is not None]

    def fits(self, entry: Entry) -> bool:
        """Whether an entry is one of these."""
        if self.event is not None and entry.get("event") != self.event:
            return False
        if self.workspace is not None and entry.get("workspace") != self.workspace and self.workspace not in _list(entry.get("branches")):
            return False
        account = entry.get("name") if str(entry.get("event")).startswith("user-") else None
        return self.user is None or self.user in (entry.get("user"), entry.get("by"), entry.get("shared_by"), account)


EVERYTHING = Wanted()


def newest(path: Path, limit: int, before: int | None = None, wanted: Wanted = EVERYTHING) -> list[Entry]:
    """Up to `limit` entries, newest first, each with `position`, its offset in bytes; `before`: only those at smaller offsets. Raises OSError."""
    return list(islice(entries(path, before, wanted), limit))


def entries(path: Path, before: int | None = None, wanted: Wanted = EVERYTHING) -> Iterator[Entry]:
    """All of them, as `newest`. Blocks for the disk: call it in a thread. Raises OSError."""
    marks = wanted.marks()
    for position, line in _backwards(path, before):
        entry = _entry(line) if all(mark in line for mark in marks) else None
        if entry is not None and wanted.fits(entry):
            yield {**entry, "position": position}


def _backwards(path: Path, before: int | None) -> Iterator[tuple[int, bytes]]:
    """Offset and content of each complete line, the last one first."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        start = min(end, before) if before is not None else end
        lowest = max(0, start - _MOST_READ)
        # The beginning of what was read, whose own beginning is in an earlier block.
        rest = b""
        while start > lowest:
            size = min(_BLOCK, start - lowest)
            start -= size
            file.seek(start)
            lines = (file.read(size) + rest).splitlines(keepends=True)
            rest = lines.pop(0) if start > 0 else b""
            position = start + len(rest) + sum(map(len, lines))
            for line in reversed(lines):
                position -= len(line)
                if line.endswith(b"\n"):
                    yield position, line


def _entry(line: bytes) -> Entry | None:
    """None for a line that a full disk cut off."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
