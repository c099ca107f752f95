"""The native relay (`native/relay`, a shared library): its functions as methods. `front.py` makes connections of it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

LIBRARY = "libtclone-relay.so"
READY = 1
GONE = 2

_VERSION = 1
_WHY_BYTES = 512


class NativeError(Exception):
    """The library cannot be had, or refuses; the message says why."""


@dataclass(frozen=True)
class Counts:
    """Bytes that came from each side since the upgrade, and bytes that wait in the library."""

    from_client: int = 0
    from_upstream: int = 0
    waiting: int = 0


class _Counts(ctypes.Structure):
    _fields_ = [("from_client", ctypes.c_uint64), ("from_upstream", ctypes.c_uint64), ("waiting", ctypes.c_uint64)]

    def plain(self) -> Counts:
        return Counts(self.from_client, self.from_upstream, self.waiting)


class _Event(ctypes.Structure):
    _fields_ = [("link", ctypes.c_uint64), ("kind", ctypes.c_uint64), ("counts", _Counts)]


class _Early(ctypes.Structure):
    _fields_ = [
        ("head", ctypes.c_char_p), ("down", ctypes.c_char_p), ("up", ctypes.c_char_p),
        ("head_size", ctypes.c_size_t), ("down_size", ctypes.c_size_t), ("up_size", ctypes.c_size_t),
    ]  # fmt: skip


_RELAY, _LINK, _TEXT, _INT = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_int
# Results and arguments, as relay.h has them.
_FUNCTIONS: dict[str, tuple[type | None, list[type]]] = {
    "relay_version": (_INT, []),
    "relay_open": (_RELAY, [ctypes.c_uint, _TEXT, ctypes.c_size_t]),
    "relay_close": (None, [_RELAY]),
    "relay_events": (_INT, [_RELAY]),
    "relay_next": (_INT, [_RELAY, ctypes.POINTER(_Event)]),
    "relay_certificate": (_INT, [_RELAY, _TEXT, _TEXT, _TEXT, ctypes.c_size_t]),
    "relay_accept": (_LINK, [_RELAY, _INT, ctypes.c_bool, ctypes.c_uint]),
    "relay_attach": (_INT, [_RELAY, _LINK, _INT]),
    "relay_hold": (_INT, [_RELAY, _LINK]),
    "relay_switch": (_INT, [_RELAY, _LINK, _INT, ctypes.POINTER(_Early)]),
    "relay_end": (_INT, [_RELAY, _LINK, _TEXT, ctypes.c_size_t, ctypes.c_uint]),
    "relay_abort": (_INT, [_RELAY, _LINK]),
    "relay_count": (_INT, [_RELAY, _LINK, ctypes.POINTER(_Counts)]),
    "relay_descriptor": (_INT, [_RELAY, _LINK, _INT]),
}


def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as exc:
        raise NativeError(f"{path} cannot be used: {exc}; `make -C native` builds it") from exc
    if (found := library.relay_version()) != _VERSION:
        raise NativeError(f"{path} is of version {found}, not {_VERSION}; `make -C native` builds it anew")
    return library


class Native:
    """One relay with a thread of its own. Descriptors that are handed over belong to it from then on. Links are numbers; of one that is gone nothing is
    left but the event that says so, and calls for it return False. Nothing here blocks."""

    def __init__(self, path: Path, most: int) -> None:
        """`path`: the library; `most`: connections at once. Raises NativeError."""
        self._library = _load(path)
        why = ctypes.create_string_buffer(_WHY_BYTES)
        self._relay = self._library.relay_open(most, why, _WHY_BYTES)
        if not self._relay:
            raise NativeError(why.value.decode(errors="replace"))

    def close(self) -> None:
        """Drop all connections. Nothing else may be called afterwards."""
        relay, self._relay = self._relay, None
        if relay is not None:
            self._library.relay_close(relay)

    def fileno(self) -> int:
        """A descriptor that is readable while there are events."""
        return int(self._library.relay_events(self._relay))

    def next(self) -> tuple[int, int, Counts] | None:
        """The next event: link, READY or GONE, what it carried; None when there is none."""
        event = _Event()
        return (event.link, event.kind, event.counts.plain()) if self._library.relay_next(self._relay, event) else None

    def certificate(self, chain: Path, key: Path) -> None:
        """What connections from now on are served with. Raises NativeError; the one before stays."""
        why = ctypes.create_string_buffer(_WHY_BYTES)
        if self._library.relay_certificate(self._relay, str(chain).encode(), str(key).encode(), why, _WHY_BYTES):
            raise NativeError(why.value.decode(errors="replace"))

    def accept(self, descriptor: int, tls: bool, handshake_seconds: float) -> int:
        """The number of a new link, 0 when there are too many (the connection is closed then)."""
        return int(self._library.relay_accept(self._relay, descriptor, tls, int(handshake_seconds * 1000)))

    def attach(self, link: int, descriptor: int) -> bool:
        """Join a client's connection to one end of a socket pair."""
        return self._done("relay_attach", link, descriptor)

    def hold(self, link: int) -> bool:
        """Take nothing more from the client until `switch`."""
        return self._done("relay_hold", link)

    def switch(self, link: int, descriptor: int, head: bytes, down: bytes, up: bytes) -> bool:
        """`head` and then the frames `down` go to the client, the frames `up` to the connection `descriptor`, which takes the socket pair's place."""
        return self._done("relay_switch", link, descriptor, _Early(head, down, up, len(head), len(down), len(up)))

    def end(self, link: int, frame: bytes, seconds: float) -> bool:
        """Send the client a Close frame after the current one; both connections are gone within `seconds`."""
        return self._done("relay_end", link, frame, len(frame), int(seconds * 1000))

    def abort(self, link: int) -> bool:
        """Drop both connections now."""
        return self._done("relay_abort", link)

    def counts(self, link: int) -> Counts | None:
        """What a link has carried so far."""
        found = _Counts()
        return found.plain() if self._done("relay_count", link, found) else None

    def descriptor(self, link: int, side: int) -> int:
        """Of the client's (0) or the other (1) connection, which stays the library's; -1 when it is closed."""
        return -1 if self._relay is None else int(self._library.relay_descriptor(self._relay, link, side))

    def _done(self, name: str, link: int, *words: object) -> bool:
        return self._relay is not None and getattr(self._library, name)(self._relay, link, *words) == 0
