"""The rival of `bench/stream.py` that everybody writes first: a WebSocket proxy that receives and sends messages, in aiohttp.

    python -m bench.message_proxy PORT DESKTOP LOOP [TLS]

As such proxies are: both ends speak WebSocket, each message is taken apart and put together again. What makes it slower for no reason (its
own compression, its limit on a message's size) is off. LOOP: uvloop or asyncio. TLS: the directory of `leaf.pem` and `leaf.key`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import aiohttp
import uvloop
from aiohttp import web

from portal.stream.certificate import Certificate


async def _pump(source: web.WebSocketResponse | aiohttp.ClientWebSocketResponse, sink: web.WebSocketResponse | aiohttp.ClientWebSocketResponse) -> None:
    async for message in source:
        if message.type is aiohttp.WSMsgType.BINARY:
            await sink.send_bytes(message.data)
        elif message.type is aiohttp.WSMsgType.TEXT:
            await sink.send_str(message.data)
    await sink.close()


async def _serve(port: int, desktop: int, tls: Path | None) -> None:
    client = aiohttp.ClientSession()

    async def proxied(request: web.Request) -> web.WebSocketResponse:
        viewer = web.WebSocketResponse(compress=False, max_msg_size=0)
        await viewer.prepare(request)
        url = f"http://127.0.0.1:{desktop}{request.rel_url}"
        async with client.ws_connect(url, compress=0, max_msg_size=0) as upstream:
            await asyncio.gather(_pump(viewer, upstream), _pump(upstream, viewer))
        return viewer

    application = web.Application()
    application.router.add_get("/{path:.*}", proxied)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=Certificate(tls / "leaf.pem", tls / "leaf.key").context if tls is not None else None).start()
    await asyncio.Event().wait()


def main(argv: list[str]) -> None:
    port, desktop, loop, *rest = argv
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_serve(int(port), int(desktop), Path(rest[0]) if rest else None))


if __name__ == "__main__":
    main(sys.argv[1:])
