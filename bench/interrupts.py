"""A run that takes everything back before it ends, also when it is interrupted."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any

EXIT_STATUS = 130


async def interruptible(work: Coroutine[Any, Any, None]) -> bool:
    """Run until the end or until a signal, at which the work is cancelled and awaited. False when interrupted."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)

    def stop() -> None:
        if not task.cancelling():
            print("bench: interrupted; removing what was made", file=sys.stderr, flush=True)
            task.cancel()

    caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in caught:
        loop.add_signal_handler(number, stop)
    try:
        await task
        return True
    except asyncio.CancelledError:
        return False
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
