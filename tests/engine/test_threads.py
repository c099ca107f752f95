"""Blocking work in threads: whoever no longer waits for it leaves nothing behind."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from engine.threads import in_thread


async def test_what_a_cancelled_call_made_is_discarded() -> None:
    may_end = threading.Event()
    made = socket.socket()

    def make() -> socket.socket:
        may_end.wait(30)
        return made

    task = asyncio.create_task(in_thread(make, discard=socket.socket.close))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done() and made.fileno() >= 0, "the thread is waited for"
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert made.fileno() == -1


async def test_what_is_waited_for_is_kept() -> None:
    with await in_thread(socket.socket, discard=socket.socket.close) as made:
        assert made.fileno() >= 0
