"""One line of JSON for each thing somebody did. Never a password, code, cookie, key or token."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

_log = logging.getLogger("portal.audit")
_LONGEST = 300


def record(event: str, **details: Any) -> None:
    """Write an event, e.g. record("fork", user="admin", workspace="ws-1", status=201). Strings are cut to 300 characters."""
    line: dict[str, Any] = {"time": round(time.time(), 3), "event": event}
    for key, value in details.items():
        line[key] = value[:_LONGEST] if isinstance(value, str) else value
    # json escapes control characters, so a hostile name cannot forge a line.
    _log.info("%s", json.dumps(line, ensure_ascii=True))
