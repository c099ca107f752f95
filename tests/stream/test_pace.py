"""Turns of viewers hold over all workers."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator

import pytest

from portal.stream.pace import Pace


@pytest.fixture
def pace() -> Iterator[Pace]:
    made = Pace(0.6)
    yield made
    made.close()


def test_turns_of_one_workspace_are_a_fixed_time_apart_others_do_not_wait(pace: Pace) -> None:
    first, second, third = (pace.take("ws-1") for _ in range(3))
    assert first == 0.0
    assert 0.5 < second <= 0.6 and 1.1 < third <= 1.2
    assert pace.take("ws-2") == 0.0


def test_a_turn_that_nobody_wanted_is_not_saved_up() -> None:
    quick = Pace(0.01)
    quick.take("ws-1")
    time.sleep(0.03)
    assert quick.take("ws-1") == 0.0
    quick.close()


def test_a_turn_that_another_worker_took_counts(pace: Pace) -> None:
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, f"{pace.take('ws-1'):.3f}".encode())
        os._exit(0)
    os.close(write)
    assert os.read(read, 100) == b"0.000"
    os.close(read)
    assert os.waitpid(child, 0)[1] == 0
    assert 0.0 < pace.take("ws-1") <= 0.6


def test_a_worker_that_dies_in_its_turn_blocks_nobody(pace: Pace) -> None:
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        fcntl.lockf(pace._descriptor, fcntl.LOCK_EX)
        os.write(write, b".")
        signal.pause()
    assert os.read(read, 1) == b"."
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)
    assert pace.take("ws-1") == 0.0
