"""Viewers and desktops around a proxy: streams at video rate (`wsload.c`), and viewers that come and are torn off."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import ssl
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.proxies import Running
from bench.stream_server import COOKIE
from engine.errors import Internal
from portal.hosts import PORTAL_HOST

_HANDSHAKE_SECONDS = 180.0
_RESET = struct.pack("ii", 1, 0)
# A sample of wsload's: arrival in ns, latency in us, stream.
_SAMPLE = struct.Struct("=QII")


def request_head(port: int) -> bytes:
    """The upgrade as a browser in the portal's frame sends it; every proxy gets the same."""
    host = f"ws-1.{PORTAL_HOST}:{port}"
    key = base64.b64encode(b"0123456789abcdef").decode()
    lines = [
        "GET /api/websockets HTTP/1.1", f"Host: {host}", "Connection: Upgrade", "Upgrade: websocket", f"Origin: https://{host}",
        "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}", f"Cookie: {COOKIE}",
    ]  # fmt: skip
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@dataclass(frozen=True)
class Shape:
    """The streams: how many, how many more that never read, bytes of a frame, frames a second, seconds of warming up and of measuring."""

    streams: int = 50
    stalled: int = 0
    bytes: int = 31250
    rate: int = 60
    warm: float = 2.0
    seconds: float = 10.0


@dataclass(frozen=True)
class Sample:
    """One frame: when its last byte arrived (CLOCK_MONOTONIC, seconds), and how long after its send() (ms)."""

    arrival: float
    milliseconds: float


async def stream(
    program: Path,
    shape: Shape,
    proxy: Running | None,
    desktop: int,
    directory: Path,
    samples: Path | None = None,
    before: Sequence[str] = (),
    enough: asyncio.Event | None = None,
) -> dict[str, Any]:
    """Run the streams once, through a proxy or directly; wsload's figures, and with a proxy its `cpu` seconds over the same window.

    `before`: words of a program that starts wsload. `enough` ends the window early. Raises Internal when a stream breaks.
    """
    connect = proxy.place.port if proxy is not None else desktop
    tls = proxy is not None and proxy.place.tls is not None
    head = directory / "head"
    head.write_bytes(request_head(connect))
    words = [desktop, connect, shape.streams, shape.stalled, shape.bytes, shape.rate, shape.warm, shape.seconds, int(tls), head, samples or "-"]
    process = await asyncio.create_subprocess_exec(
        *before, str(program), *map(str, words), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    marks: list[float] = []
    ending = asyncio.create_task(_terminate(process, enough)) if enough is not None else None
    figures: dict[str, Any] = {}
    try:
        async with asyncio.timeout(_HANDSHAKE_SECONDS + shape.warm + shape.seconds):
            async for line in process.stdout:
                if line.startswith(b"{"):
                    figures = json.loads(line)
                elif proxy is not None:
                    marks.append(proxy.cpu_seconds())
            await process.wait()
    finally:
        if ending is not None:
            ending.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0 or not figures:
        raise Internal(f"the streams broke: {(await process.stderr.read()).decode(errors='replace').strip() or process.returncode}")
    if len(marks) == 2:
        figures["cpu"] = marks[1] - marks[0]
        figures["cpu_per_gbit"] = figures["cpu"] / (figures["bytes"] * 8 / 1e9)
    return figures


async def _terminate(process: asyncio.subprocess.Process, when: asyncio.Event) -> None:
    await when.wait()
    process.terminate()


def read_samples(path: Path) -> list[Sample]:
    """The frames of a run, sorted by arrival."""
    return sorted((Sample(at / 1e9, late / 1e3) for at, late, _ in _SAMPLE.iter_unpack(path.read_bytes())), key=lambda one: one.arrival)


def percentile(values: list[float], share: float) -> float:
    """The smallest value that `share` (0 to 1) of all do not exceed. Raises ValueError for none."""
    if not values:
        raise ValueError("no percentile of nothing")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Churn:
    """Viewers that connect, exchange a frame and end in one of five ways: properly, by a reset, in the middle of a frame or of the TLS
    handshake, or because the desktop resets them. The desktop is this process's, on the port the proxy leads to."""

    def __init__(self, proxy: Running, at_once: int = 20) -> None:
        self._proxy = proxy
        self._at_once = at_once
        self._context = ssl.create_default_context()
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        self.cycles = 0

    async def run(self, count: int) -> None:
        """`count` cycles. Raises Internal when the proxy refuses one."""
        server = await asyncio.start_server(self._desktop, "127.0.0.1", self._proxy.place.desktop, backlog=512)
        try:
            numbers = iter(range(count))
            async with asyncio.TaskGroup() as group:
                for _ in range(self._at_once):
                    group.create_task(self._keep_going(numbers))
        except* (OSError, TimeoutError, asyncio.IncompleteReadError) as failures:
            raise Internal(f"after {self.cycles} cycles: {failures.exceptions[0]!r}") from failures
        finally:
            server.close()

    async def _keep_going(self, numbers: Any) -> None:
        for number in numbers:
            async with asyncio.timeout(60):
                await self._cycle(number)
            self.cycles += 1

    async def _desktop(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Shake hands and echo; a frame that begins with FIN and opcode 2 of one byte `k` (kill) resets the connection instead."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(60):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n")
                while data := await reader.read(4096):
                    if data[-1:] == b"k":
                        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                        break
                    writer.write(b"\x82\x01x")
        writer.transport.abort()

    async def _connect(self, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        port = self._proxy.place.port
        if self._proxy.place.tls is None:
            return await asyncio.open_connection("127.0.0.1", port)
        if number % 5 == 3:
            # Half a handshake: the beginning of a ClientHello record, then nothing more.
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x16\x03\x01\x02\x00\x01\x00")
            await writer.drain()
            writer.transport.abort()
            return None
        return await asyncio.open_connection("127.0.0.1", port, ssl=self._context, server_hostname=f"ws-1.{PORTAL_HOST}")

    async def _cycle(self, number: int) -> None:
        streams = await self._connect(number)
        if streams is None:
            return
        reader, writer = streams
        try:
            writer.write(request_head(self._proxy.place.port))
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 101"):
                raise Internal(f"cycle {number}: {answer.splitlines()[0].decode(errors='replace')}")
            writer.write(b"\x82\x81\0\0\0\0" + (b"k" if number % 5 == 4 else b"x"))
            if number % 5 != 4:
                await reader.readexactly(3)
            elif await reader.read(1):
                raise Internal(f"cycle {number}: the desktop's reset did not reach the viewer")
        except ConnectionResetError:
            if number % 5 != 4:
                raise
        finally:
            await self._end(number, writer)

    async def _end(self, number: int, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ssl.SSLError):
            if number % 5 == 0:
                writer.close()
                async with asyncio.timeout(5):
                    await writer.wait_closed()
            elif number % 5 == 1:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            elif number % 5 == 2:
                writer.write(b"\x82\xfe\x7f\xff\0\0\0\0half")
        writer.transport.abort()


async def settled(proxy: Running, most: int, seconds: float = 20.0) -> int:
    """The proxy's descriptors once they are at most `most`, or what they are after `seconds`."""
    deadline = asyncio.get_running_loop().time() + seconds
    while (count := proxy.descriptors()) > most and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.1)
    return count


@contextlib.contextmanager
def realtime(wanted: bool) -> Iterator[None]:
    """Put this process and what it starts inside before all ordinary work (SCHED_RR), if `wanted`: on a machine that has some, figures are
    void without. Raises PermissionError."""
    if wanted:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        # Whoever called goes on as it was: control groups of the processor take no real-time process.
        if wanted:
            become_ordinary(os.getpid())


def become_ordinary(pid: int) -> None:
    """Make a process with all its threads an ordinary one."""
    for task in os.listdir(f"/proc/{pid}/task"):
        os.sched_setscheduler(int(task), os.SCHED_OTHER, os.sched_param(0))
