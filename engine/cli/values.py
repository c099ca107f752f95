"""Values as people type and read them: sizes, published ports, variables, ages."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime
from typing import Any

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_REFERENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
MAX_COPIES = 8


def size(text: str) -> int:
    """Bytes of `512m`, `2g`, `1.5GiB` or a plain number; powers of 1024, as container tools have it."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size; write bytes or 512m, 2g")
    count = int(float(match[1]) * _UNITS[match[2].lower()])
    if count <= 0:
        raise argparse.ArgumentTypeError(f"size '{text}' must be more than 0")
    return count


def _port_number(text: str, whole: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"port '{whole}': '{text}' is not a number from 1 to 65535")
    return int(text)


def port(text: str) -> int:
    """A TCP port number."""
    return _port_number(text, text)


def publication(text: str) -> dict[str, int | None]:
    """`CTR` or `HOST:CTR` as the engine's `{"container","host"}`; host None means a free port of the engine's choice."""
    host, colon, container = text.rpartition(":")
    return {
        "container": _port_number(container, text),
        "host": _port_number(host, text) if colon else None,
    }


def variable(text: str) -> tuple[str, str]:
    """`K=V` as a pair."""
    name, equals, value = text.partition("=")
    if not equals or _VARIABLE_NAME.fullmatch(name) is None:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=VALUE")
    return name, value


def workspace_name(text: str) -> str:
    """A name that is also a host name label: lower-case letters, digits and inner hyphens."""
    if _NAME.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f"'{text}' is not a name; use lower-case letters, digits and hyphens, at most 63, with a letter or digit at both ends"
        )
    return text


def reference(text: str) -> str:
    """An id, name or digest. Anything else cannot exist, and must not become part of a path."""
    if _REFERENCE.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"'{text}' cannot be an id or a name")
    return text


def copies(text: str) -> int:
    """How many branches one fork makes."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MAX_COPIES:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of copies from 1 to {MAX_COPIES}")
    return int(text)


def positive(text: str) -> int:
    """A whole number above 0."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above 0")
    return int(text)


def cpus(text: str) -> float:
    """How many processors, also parts of one."""
    if re.fullmatch(r"\d{1,4}(\.\d{1,6})?", text) is None:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of processors, such as 2 or 0.5")
    return float(text)


def natural(text: str) -> int:
    """A whole number from 0 on."""
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from 0 on")
    return int(text)


def seconds(text: str) -> float:
    """Seconds, also parts of one."""
    if re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text) is None:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds")
    return float(text)


def region(text: str) -> tuple[int, ...]:
    """`L,T,R,B`: a part of a screen."""
    parts = text.split(",")
    if len(parts) != 4:
        raise argparse.ArgumentTypeError(f"'{text}' is not left,top,right,bottom")
    return tuple(natural(part) for part in parts)


def session(text: str) -> str:
    """The name of a session of tmux, which has a meaning of its own for dots and colons."""
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", text) is None:
        raise argparse.ArgumentTypeError(f"'{text}' is not a name; use letters, digits, _ and hyphens")
    return text


def show_size(count: int | None) -> str:
    """`1.4 GiB`; `-` for unknown."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _moment(stamp: Any) -> datetime | None:
    if isinstance(stamp, int | float):
        return datetime.fromtimestamp(stamp, UTC)
    try:
        moment = datetime.fromisoformat(str(stamp))
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def show_age(created: Any, now: datetime | None = None) -> str:
    """How long ago `created` was (seconds since the epoch or ISO 8601): `12s`, `5m`, `3h`, `2d`."""
    moment = _moment(created)
    if moment is None:
        return "-"
    seconds = max(0, int(((now or datetime.now(UTC)) - moment).total_seconds()))
    for limit, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= limit:
            return f"{seconds // limit}{unit}"
    return f"{seconds}s"


def show_ports(ports: dict[str, int] | None) -> str:
    """`3000->43827, 8000->43900`, in the order of the workspace's ports."""
    pairs = sorted((ports or {}).items(), key=lambda pair: int(pair[0]))
    return ", ".join(f"{container}->{host}" for container, host in pairs) or "-"


def words(text: str) -> list[str]:
    """Words between commas."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise argparse.ArgumentTypeError("give at least one")
    return found
