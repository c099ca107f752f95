"""Reading the time a source stood still out of CRIU's statistics."""

from __future__ import annotations

import struct

import pytest

from bench.criu import frozen_ms
from engine.errors import Internal

# Written by CRIU 4.1.1 for a dump of 20 processes.
REAL = bytes.fromhex(
    "4059105506330957260000000a2408f90d108bbb1318f6820120aa1d28a40d30003898"
    "0c400048005050585060006800" + "7000"
)


def test_frozen_time_of_a_real_dump() -> None:
    # Field 2 of the dump entry: 0x8b 0xbb 0x13 = 11 + (0x3b << 7) + (0x13 << 14) microseconds.
    assert frozen_ms(REAL) == 318.859


@pytest.mark.parametrize("cut", [0, 3, 11, 12, 14, 18])
def test_a_cut_file_is_an_error_and_no_number(cut: int) -> None:
    with pytest.raises(Internal, match="stats-dump"):
        frozen_ms(REAL[:cut])


def test_another_image_is_refused() -> None:
    with pytest.raises(Internal, match="magic"):
        frozen_ms(struct.pack("<III", 0x55105940, 1, 0))


def test_statistics_of_a_restore_have_no_frozen_time() -> None:
    message = bytes([0x12, 2, 0x08, 1])
    with pytest.raises(Internal, match="frozen_time"):
        frozen_ms(struct.pack("<III", 0x55105940, 0x57093306, len(message)) + message)
