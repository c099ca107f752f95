"""How much a workspace's OSWorld server holds at once: commands whose output is in the portal's memory, and connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from portal.errors import TooMany
from portal.inside import Inside
from portal.loopback import MOST_CONNECTIONS, Loopback
from portal.osworld import guest


async def test_only_so_many_commands_are_waited_for() -> None:
    """Each has its output in the portal's memory."""
    begun = asyncio.Semaphore(0)

    class Never:
        async def write(self, data: bytes) -> None:
            begun.release()

        async def close_stdin(self) -> None:
            begun.release()

        async def output(self) -> AsyncIterator[tuple[int, bytes]]:
            await asyncio.get_running_loop().create_future()
            yield 1, b""

    class Endless:
        @contextlib.asynccontextmanager
        async def exec(self, *_: Any, **__: Any) -> AsyncIterator[Never]:
            yield Never()

        async def bounded(self, call: Any, work: bool) -> Any:
            return await call

    node: Any = Endless()
    node.client = node
    runner, inside = guest.Guest(node), Inside(node)
    for run in (lambda: runner.run("ws-1", {"argv": ["true"]}, None), lambda: inside.run("ws-1", ["true"])):  # type: ignore[arg-type]
        tasks = [asyncio.ensure_future(run()) for _ in range(16)]  # type: ignore[no-untyped-call]
        for _ in tasks:
            await begun.acquire()
        with pytest.raises(TooMany):
            await run()  # type: ignore[no-untyped-call]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        again = asyncio.ensure_future(run())  # type: ignore[no-untyped-call]
        await begun.acquire()
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)


async def test_only_so_many_connections_are_held() -> None:
    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", hello)
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    server = Loopback(runner, lambda: None)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server.listen(listener)
    open_ones = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST_CONNECTIONS)]
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b"", "nobody answers it"
        writer.close()
        open_ones.pop()[1].close()
        async with aiohttp.ClientSession() as client, asyncio.timeout(10):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with client.get(f"http://127.0.0.1:{port}/") as answer:
                        assert await answer.text() == "hello"
                        break
    finally:
        for _, writer in open_ones:
            writer.close()
        await server.close()
