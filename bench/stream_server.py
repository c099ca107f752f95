"""One worker of the portal's stream process for `bench/stream.py`: the real server, with control and engine played by the tests' fakes.

    python -m bench.stream_server PORT DESKTOP DIRECTORY LOOP [TLS]

Serves PORT of 127.0.0.1 and leads `ws-1` to port DESKTOP there; its sockets are in DIRECTORY. LOOP: uvloop or asyncio, or native: the native relay, on uvloop. TLS: the directory of
`leaf.pem` and `leaf.key`; without it plain HTTP. The viewers' cookie is that of `COOKIE`.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from pathlib import Path

import uvloop

from engine.config import Config
from portal.stream.certificate import Certificate
from portal.stream.native import LIBRARY
from portal.stream.pace import Pace
from portal.stream.server import Settings, StreamServer
from tests.stream.world import DESK_COOKIE, FakeControl, FakeDescriptors, FakeEngine

COOKIE = f"{DESK_COOKIE}=desk-of-ws-1"


async def _serve(port: int, desktop: int, directory: Path, library: Path | None, tls: Path | None) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    control, engine, descriptors = FakeControl(directory), FakeEngine(), FakeDescriptors()
    control.live.add("bench")
    control.desks[COOKIE.partition("=")[2]] = ("bench", "ws-1")
    engine.add("ws-1")
    descriptors.targets[("ws-1", 8080)] = desktop
    await control.start()
    server = StreamServer(Settings(directory, Pace(0.0), library=library), engine, lambda lost: descriptors)
    await server.start()
    while not (server.control.watching and server.workspaces.connected):
        await asyncio.sleep(0.01)
    sock = socket.create_server(("127.0.0.1", port), backlog=512)
    sock.setblocking(False)
    await server.listen([sock], Certificate(tls / "leaf.pem", tls / "leaf.key") if tls is not None else None)
    await ended.wait()
    await server.stop()
    await control.stop()


def main(argv: list[str]) -> None:
    port, desktop, directory, loop, *rest = argv
    factory = asyncio.new_event_loop if loop == "asyncio" else uvloop.new_event_loop
    library = Config.from_environment().libexec / LIBRARY if loop == "native" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_serve(int(port), int(desktop), Path(directory), library, Path(rest[0]) if rest else None))


if __name__ == "__main__":
    main(sys.argv[1:])
