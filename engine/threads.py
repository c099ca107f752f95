"""Blocking work in threads that is never abandoned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T], executor: Executor | None = None, discard: Callable[[T], object] | None = None) -> T:
    """Run a blocking function in a thread. Cancelled, it first waits for the thread to end, and gives what came of it to `discard`.

    A thread cannot be stopped: whoever takes its work back after a cancellation must know that no more comes (else crun
    starts a container just after it was looked for and not found).
    """
    future = asyncio.get_running_loop().run_in_executor(executor, function)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            try:
                await asyncio.wait({future})
            except asyncio.CancelledError:
                continue
        # An error is seen by this: the cancellation is what the caller hears of.
        if not future.cancelled() and future.exception() is None and discard is not None:
            discard(future.result())
        raise
