"""Where WebSocket frames begin and end in a byte stream, so that the relay can add a Close frame of its own between two of them."""

from __future__ import annotations

import struct

_OPCODE_CLOSE = 0x8
_HEADER_MAX = 14
_REASON_MAX = 123

GOING_AWAY = 1001
POLICY = 1008
RESTART = 1012


def close_frame(code: int, reason: str) -> bytes:
    """An unmasked Close frame, as a server sends it. A reason over 123 bytes of UTF-8 is cut."""
    encoded = reason.encode("utf-8")[:_REASON_MAX].decode("utf-8", "ignore").encode("utf-8")
    payload = struct.pack("!H", code) + encoded
    return bytes((0x80 | _OPCODE_CLOSE, len(payload))) + payload


def _header_size(first: int, second: int) -> int:
    """Length in bytes of the frame header that begins with these two bytes."""
    size = 2
    if second & 0x7F == 126:
        size += 2
    elif second & 0x7F == 127:
        size += 8
    return size + (4 if second & 0x80 else 0)


def _payload_size(header: bytes) -> int:
    short = header[1] & 0x7F
    if short == 126:
        return struct.unpack_from("!H", header, 2)[0]
    if short == 127:
        return struct.unpack_from("!Q", header, 2)[0]
    return short


class FrameTracker:
    """Follows one direction of a WebSocket, header by header; payloads are never looked at."""

    __slots__ = ("_left", "_header", "saw_close")

    def __init__(self) -> None:
        self._left = 0
        self._header = b""
        self.saw_close = False

    @property
    def at_boundary(self) -> bool:
        """Whether the bytes fed so far end exactly where a frame ends."""
        return self._left == 0 and not self._header

    def feed(self, data: bytes | memoryview, stop_at_boundary: bool = False) -> int:
        """Follow `data`; the count of bytes followed: all of them, or up to the first frame end with `stop_at_boundary`.

        Runs for every read of every stream: what most reads are, a piece of one payload or a whole frame, is dealt with by arithmetic only.
        """
        position, end = 0, len(data)
        while position < end:
            left = self._left
            if left:
                if left > end - position:
                    self._left = left - (end - position)
                    return end
                self._left = 0
                position += left
            elif self._header or end - position < _HEADER_MAX:
                position += self._feed_header(data, position)
            else:
                first, second, at = data[position], data[position + 1], position + 2
                left = second & 0x7F
                if left == 126:
                    left = data[at] << 8 | data[at + 1]
                    at += 2
                elif left == 127:
                    left = int.from_bytes(data[at : at + 8], "big")
                    at += 8
                position = at + 4 if second & 0x80 else at
                self._left = left
                if first & 0x0F == _OPCODE_CLOSE:
                    self.saw_close = True
            if stop_at_boundary and self._left == 0 and not self._header:
                return position
        return position

    def _feed_header(self, data: bytes | memoryview, position: int) -> int:
        """Take header bytes from `position` on, where too few for the longest header are left; the count taken. Sets the payload's length
        when the header is whole."""
        held = self._header
        have = held + bytes(data[position : position + _HEADER_MAX - len(held)])
        if len(have) < 2:
            self._header = have
            return len(have) - len(held)
        size = _header_size(have[0], have[1])
        if len(have) < size:
            self._header = have
            return len(have) - len(held)
        self._header = b""
        self._left = _payload_size(have[:size])
        if have[0] & 0x0F == _OPCODE_CLOSE:
            self.saw_close = True
        return size - len(held)
