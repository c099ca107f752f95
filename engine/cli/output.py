"""What goes to the terminal: results on stdout, progress and errors on stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from engine.text import printable

__all__ = ["Progress", "as_json", "error", "note", "printable", "state", "table"]


def as_json(value: Any) -> None:
    """One JSON document on stdout: indented for people on a terminal, one line for programs."""
    indent = 2 if sys.stdout.isatty() else None
    print(json.dumps(value, indent=indent))


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns as wide as their widest cell; the headings too when there are no rows."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(headings), *cells]) for column in range(len(headings))]
    for row in [list(headings), *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def state(workspace: Mapping[str, Any]) -> str:
    """A workspace's state for people: one that is paused keeps its state, but what matters is that it stands still."""
    return "paused" if workspace.get("paused") else str(workspace.get("state"))


def note(message: str) -> None:
    """A line on stderr that explains the result on stdout."""
    print(printable(message), file=sys.stderr)


def error(message: str) -> None:
    """`tclone: message` on stderr; further lines of the message are indented under it."""
    first, *rest = message.splitlines() or [""]
    print(f"tclone: {printable(first)}", file=sys.stderr)
    for line in rest:
        print(f"  {printable(line)}", file=sys.stderr)


class Progress:
    """Phases of one operation on stderr: one line that changes on a terminal, one line per phase elsewhere."""

    def __init__(self, what: str, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._what = what
        self._quiet = quiet
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._started = time.monotonic()
        self._last = ""
        self._shown = False

    def phase(self, name: str, detail: str | None = None, elapsed_ms: float | None = None) -> None:
        """Show that phase `name` is under way; `elapsed_ms` since the operation began, ours when not given."""
        text = printable(f"{name} {detail}" if detail else name)
        if self._quiet or (text == self._last and not self._live):
            return
        self._last = text
        seconds = elapsed_ms / 1000 if elapsed_ms is not None else time.monotonic() - self._started
        line = f"{self._what}: {text} ({seconds:.1f} s)"
        if self._live:
            width = max(20, os.get_terminal_size(self._stream.fileno()).columns - 1)
            self._stream.write(f"\r\x1b[K{line[:width]}")
            self._shown = True
        else:
            self._stream.write(line + "\n")
        self._stream.flush()

    def close(self) -> None:
        """Clear the changing line, so that what follows starts on an empty one."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
