"""When a workspace is ready: a command ran in it; a desktop, when its stream also delivers a real picture, at first one that has come to rest."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import socket
import struct
import zlib
from collections.abc import Callable

import aiohttp

from engine import bundle, syscalls
from engine.errors import Internal, Unavailable
from engine.process import Command, Executor
from engine.workspace import Workspace

HEADLESS_SECONDS = 15.0
DESKTOP_SECONDS = 180.0
FIRST_FRAME_SECONDS = 60.0
_POLL_SECONDS = 0.1
_REQUEST_SECONDS = 10.0
# A new session is complete when its picture has stood still so long, or has moved so long: there may be something in it that never rests.
_REST_SECONDS = 0.5
_RESTLESS_SECONDS = 5.0
_PNG_LIMIT = 64 << 20

Progress = Callable[[str], None]


def new_token() -> str:
    """A secret of 256 bits for one desktop stream."""
    return secrets.token_urlsafe(32)


async def usable(executor: Executor, workspace: Workspace, seconds: float = HEADLESS_SECONDS) -> None:
    """Return once a command really ran inside. The init itself is that command: an image may hold no other program.

    Raises Internal when it cannot be run.
    """
    status, _, err = await executor.run(workspace, Command([bundle.INIT, "--version"], cwd="/"), seconds)
    if status != 0:
        raise Internal(f"no command runs in {workspace.id}: {err.decode(errors='replace').strip()[-300:] or status}")


def viewer_token(token: str) -> str:
    """The stream token for watching that goes with the one for control; nobody gets from it to the other."""
    return hashlib.sha256(f"watch {token}".encode()).hexdigest()


class Desktop:
    """The stream server (Selkies) of one workspace, reached by sockets made in the workspace's network namespace."""

    def __init__(self, workspace: Workspace) -> None:
        if workspace.stream_port is None:
            raise Internal(f"{workspace.id} has no desktop")
        self._workspace = workspace
        self._base = f"http://127.0.0.1:{workspace.stream_port}"
        self._netns = -1

    async def __aenter__(self) -> "Desktop":
        try:
            self._netns = syscalls.open_of_process(self._workspace.pid, self._workspace.pid_start, "ns/net")
        except OSError:
            raise Internal(f"{self._workspace.id} has ended") from None
        connector = aiohttp.TCPConnector(force_close=True, socket_factory=self._socket)
        self._http = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=_REQUEST_SECONDS), cookie_jar=aiohttp.DummyCookieJar()
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()
        os.close(self._netns)

    def _socket(self, address: tuple) -> socket.socket:
        made = syscalls.socket_in(self._netns, address[0], address[1])
        made.setblocking(False)
        return made

    async def healthy(self) -> bool:
        """Whether /api/health answers 200."""
        return await self._get("/api/health", None) is not None

    async def set_controller(self, token: str) -> bool:
        """Make `token` the only one that controls the desktop, and the one derived from it the only one that watches.

        Live connections with other ones are closed.
        """
        table = {
            token: {"role": "controller", "slot": 1, "mk_control": True},
            viewer_token(token): {"role": "viewer", "slot": None, "mk_control": False},
        }
        headers = {"Authorization": f"Bearer {self._workspace.master_token}"}
        try:
            async with self._http.post(f"{self._base}/api/tokens", json=table, headers=headers) as answer:
                return answer.status < 300
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def knows(self, token: str) -> bool:
        """Whether `token` would let a viewer in; False also for any answer that is not understood. Raises ConnectionError when nobody
        listens, TimeoutError."""
        headers = {"Authorization": f"Bearer {token}"}
        try:
            # Without an upgrade this is the viewers' own question whether they may connect again.
            async with self._http.get(self._base + "/api/websockets", headers=headers, allow_redirects=False) as answer:
                return answer.status in (200, 204)
        except aiohttp.ClientConnectorError as error:
            raise ConnectionRefusedError(str(error)) from error
        except (aiohttp.ClientError, OSError):
            return False

    async def picture(self) -> bytes | None:
        """A screenshot as PNG; None while there is none that shows more than one colour."""
        png = await self._get("/api/screenshot?display=primary", self._workspace.master_token)
        return png if png is not None and await asyncio.to_thread(shows_something, png) else None

    async def _get(self, path: str, bearer: str | None) -> bytes | None:
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        try:
            async with self._http.get(self._base + path, headers=headers, allow_redirects=False) as answer:
                if answer.status != 200:
                    return None
                body = await answer.content.read(_PNG_LIMIT)
                while more := await answer.content.read(_PNG_LIMIT):
                    body += more
                    if len(body) > _PNG_LIMIT:
                        return None
                return body
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None


async def desktop_ready(workspace: Workspace, token: str, seconds: float, progress: Progress, at_rest: bool = False) -> None:
    """Wait until the stream server is up, give it `token`, and wait for a real picture; `at_rest`, also for the end of what is being drawn.

    Raises Unavailable at the time limit.
    """
    step = "stream server"
    try:
        async with asyncio.timeout(seconds), Desktop(workspace) as desktop:
            progress(step)
            while not await desktop.healthy():
                await asyncio.sleep(_POLL_SECONDS)
            step = "stream token"
            progress(step)
            while not await desktop.set_controller(token):
                await asyncio.sleep(_POLL_SECONDS)
            step = "first picture"
            progress(step)
            while (picture := await desktop.picture()) is None:
                await asyncio.sleep(_POLL_SECONDS)
            if at_rest:
                await _come_to_rest(desktop, picture)
    except TimeoutError:
        raise Unavailable(
            f"the desktop of {workspace.id} did not get past `{step}` within {seconds:g} s; see `tclone logs {workspace.id}`"
        ) from None


async def _come_to_rest(desktop: Desktop, picture: bytes) -> None:
    """A session that has just begun draws its background before its panel, and a click on what is not there yet is lost."""
    began = since = asyncio.get_running_loop().time()
    while (now := asyncio.get_running_loop().time()) - since < _REST_SECONDS and now - began < _RESTLESS_SECONDS:
        await asyncio.sleep(_POLL_SECONDS)
        newer = await desktop.picture()
        if newer is not None and newer != picture:
            picture, since = newer, asyncio.get_running_loop().time()


def shows_something(png: bytes) -> bool:
    """Whether a PNG has more than one colour; False for anything that is not a whole 8-bit, non-interlaced PNG.

    Rows are compared as filtered bytes, without undoing the filters (3 MB of them in Python take seconds): in a picture of
    one colour every filter leaves rows after the first which are all zero behind their first pixel, or (filter 0) repeat it.
    """
    try:
        width, height, channels, data = _png_parts(png)
    except (ValueError, struct.error, zlib.error):
        return False
    stride = width * channels + 1
    if width < 2 or height < 2 or len(data) < stride * height:
        return False
    zeros = bytes(stride - 1 - channels)
    for start in range(stride, stride * height, stride):
        first = data[start + 1 : start + 1 + channels]
        rest = data[start + 1 + channels : start + stride]
        if data[start] == 0:
            if rest != first * (width - 1) or first != data[stride + 1 : stride + 1 + channels] and data[stride] == 0:
                return True
        elif rest != zeros:
            return True
    return False


def _png_parts(png: bytes) -> tuple[int, int, int, bytes]:
    """Width, height, bytes per pixel and the filtered rows."""
    if png[:8] != b"\x89PNG\r\n\x1a\n":
        raise ValueError("not a PNG")
    position, packed, header = 8, bytearray(), b""
    while position + 8 <= len(png):
        length, kind = struct.unpack(">I4s", png[position : position + 8])
        body = png[position + 8 : position + 8 + length]
        if kind == b"IHDR":
            header = body
        elif kind == b"IDAT":
            packed += body
        position += 12 + length
    width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", header)
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour] if colour in (0, 2, 3, 4, 6) else 0
    if depth != 8 or interlace or not channels or width * height * channels > _PNG_LIMIT * 4:
        raise ValueError("unexpected PNG")
    unpacked = zlib.decompressobj().decompress(bytes(packed), (width * channels + 1) * height + 1)
    return width, height, channels, unpacked
