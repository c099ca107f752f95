"""Frame boundaries are found wherever the stream is cut."""

from __future__ import annotations

import random
import struct

import pytest

from portal.stream.frames import FrameTracker, close_frame


def frame(size: int, opcode: int = 2, masked: bool = False) -> bytes:
    mask = 0x80 if masked else 0
    if size < 126:
        head = bytes((0x80 | opcode, mask | size))
    elif size < 65536:
        head = bytes((0x80 | opcode, mask | 126)) + struct.pack("!H", size)
    else:
        head = bytes((0x80 | opcode, mask | 127)) + struct.pack("!Q", size)
    return head + (b"\1\2\3\4" if masked else b"") + b"x" * size


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 200_000])
@pytest.mark.parametrize("masked", [False, True])
def test_boundary_after_each_size_of_frame(size: int, masked: bool) -> None:
    tracker = FrameTracker()
    data = frame(size, masked=masked)
    assert tracker.feed(data[:-1] if size else data[:1]) and not tracker.at_boundary
    tracker.feed(data[-1:] if size else data[1:])
    assert tracker.at_boundary


def test_boundary_with_the_stream_cut_anywhere() -> None:
    stream = b"".join(frame(size) for size in (0, 3, 126, 70000, 125, 65535, 1))
    chance = random.Random(7)
    for _ in range(200):
        tracker, position = FrameTracker(), 0
        while position < len(stream):
            step = chance.choice((1, 2, 3, 9, 60000))
            position += tracker.feed(stream[position : position + step])
        assert tracker.at_boundary


def test_feeding_stops_at_the_first_boundary_when_asked() -> None:
    tracker = FrameTracker()
    tracker.feed(frame(10)[:5])
    rest = frame(10)[5:] + frame(4)
    assert tracker.feed(rest, stop_at_boundary=True) == len(frame(10)) - 5
    assert tracker.at_boundary


def test_a_close_frame_is_seen() -> None:
    tracker = FrameTracker()
    tracker.feed(frame(5))
    assert not tracker.saw_close
    tracker.feed(close_frame(1012, "restart"))
    assert tracker.saw_close and tracker.at_boundary


def test_a_close_frame_stays_a_control_frame_however_long_the_reason() -> None:
    made = close_frame(1001, "ü" * 200)
    assert made[1] <= 125 and len(made) == made[1] + 2
    made[4:].decode("utf-8")
