"""Waiting for a descriptor in the event loop."""

from __future__ import annotations

import asyncio


async def readable(fd: int) -> None:
    """Return once a descriptor can be read (a pidfd: once the process has ended)."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(fd, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(fd)
