"""Waiting in the event loop: for a descriptor, and for tasks side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def together(*work: Coroutine[Any, Any, T]) -> list[T]:
    """The results of all; when one fails, or the caller is cancelled, the others are stopped first.

    Awaited in place of kept: what asyncio.gather returns, cancelled with nobody who awaits it, is in the log with a traceback.
    """
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await stopped(*tasks)


async def stopped(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what still runs, and return when all have ended. What they raised is taken as seen: who has use for it asks before."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def readable(fd: int) -> None:
    """Return once a descriptor can be read (a pidfd: once the process has ended)."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(fd, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(fd)


def seen(task: asyncio.Future[Any]) -> None:
    """A done callback for a task which callers wait for behind a shield: all may have gone when it fails, and an error that nobody takes is logged with a traceback."""
    if not task.cancelled():
        task.exception()
