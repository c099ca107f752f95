"""One line of JSON for each thing somebody did. Never a password, code, cookie, key or token.

The lines go to the log and, once `Trail.open` was called, to a file that is only ever appended to.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.errors import EngineError
from portal.audit_log import EVERYTHING, Entry, Wanted, newest
from portal.errors import PortalError
from portal.principal import Principal

_log = logging.getLogger("portal.audit")
_LONGEST = 300
# A disk that takes longer is asked for what it has.
_FLUSH_SECONDS = 5.0


def record(event: str, **details: Any) -> None:
    """Write an event, e.g. record("fork", user="admin", workspace="ws-1", status=201). Strings are cut to 300 characters."""
    line: dict[str, Any] = {"time": round(time.time(), 3), "event": event}
    for key, value in details.items():
        line[key] = value[:_LONGEST] if isinstance(value, str) else value
    # json escapes control characters, so a hostile name cannot forge a line.
    text = json.dumps(line, ensure_ascii=True)
    # Beside the text for people the fields by themselves, for logs.JsonLines.
    _log.info("%s", text, extra={"fields": {"message": event, **{key: value for key, value in line.items() if key != "time"}}})
    if _trail is not None:
        _trail.append(text)


@contextlib.contextmanager
def outcome(event: str, principal: Principal, workspace: str | None, **details: Any) -> Iterator[dict[str, Any]]:
    """Write an event when the block ends: by whom, with which token, and whether it went well (`ok`, or the refusal's code).

    What is put into the dictionary it gives is written, too. Refusals go on to whoever asked.
    """
    more: dict[str, Any] = {"workspace": workspace, **details}
    told = "failed"
    try:
        yield more
        told = "ok"
    except (PortalError, EngineError) as error:
        told = error.code
        raise
    finally:
        record(event, user=principal.user, token=principal.token, **more, outcome=told)


class Trail:
    """The file. A thread of its own writes, so that a slow disk delays nobody."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: queue.SimpleQueue[str | threading.Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="audit", daemon=True)
        self._file = -1

    def open(self) -> None:
        """Raises OSError when the file cannot be written to."""
        global _trail
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._thread.start()
        _trail = self

    def append(self, line: str) -> None:
        self._lines.put(line)

    def flush(self) -> None:
        """Return when everything appended so far is in the file, or could not be written to it."""
        written = threading.Event()
        self._lines.put(written)
        written.wait(_FLUSH_SECONDS)

    def close(self) -> None:
        """Write what is left."""
        global _trail
        if _trail is self:
            _trail = None
        if self._thread.is_alive():
            self._lines.put(None)
            self._thread.join()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            if isinstance(line, threading.Event):
                line.set()
                continue
            data = line.encode() + b"\n"
            try:
                while data:
                    data = data[os.write(self._file, data) :]
            except OSError as error:
                # It is in the log, too; the disk may have room again for the next one.
                _log.error("audit: cannot write %s: %s", self.path, error)


_trail: Trail | None = None


async def written() -> None:
    """What was recorded until now can be read, or the disk has had 5 s for it."""
    if _trail is not None:
        await asyncio.to_thread(_trail.flush)


async def read(limit: int, before: int | None = None, wanted: Wanted = EVERYTHING) -> list[Entry]:
    """Entries as `audit_log.newest` has them, of all that was recorded until now; none before the file is open. Raises OSError."""
    if _trail is None:
        return []
    await written()
    return await asyncio.to_thread(newest, _trail.path, limit, before, wanted)
