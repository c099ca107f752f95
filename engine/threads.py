"""Blocking work in threads that is never abandoned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[[], T], executor: Executor | None = None) -> T:
    """Run a blocking function in a thread. Cancelled, it first waits for the thread to end.

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
        if not future.cancelled():
            future.exception()  # seen: the cancellation is what the caller hears of
        raise
