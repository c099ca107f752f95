"""The stream process's side of control's private socket: redeeming codes, checking desk cookies, watching sessions end."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from portal.endings import ROLE
from portal.stream.viewer_api import Role
from portal.stream.errors import Denied, NoSession, StreamError, Unavailable

_log = logging.getLogger(__name__)

_ANSWER_SECONDS = 5.0
_REMEMBER_SECONDS = 30.0
_REMEMBER_COUNT = 4096
_REPORT_SECONDS = 0.2
_RETRY_FIRST = 0.1
_RETRY_MOST = 2.0
_CONTROL_DOWN = "the portal's control process does not answer; it should be back in a moment"


@dataclass(frozen=True)
class Desk:
    """A right to one desktop. `session`: the public id of the login or share link behind it; `expires`: unix seconds.

    `cookie` is set only by a redemption.
    """

    session: str
    workspace: str
    expires: float
    role: Role
    cookie: str = ""
    user: str = ""


def _desk(answer: dict[str, Any], workspace: str, cookie: str = "") -> Desk:
    # Whatever is not plainly a controller only watches.
    role = Role.CONTROLLER if answer.get("role") == Role.CONTROLLER else Role.VIEWER
    return Desk(answer["session"], workspace, float(answer["expires"]), role, cookie, str(answer.get("user", "")))


class Control:
    """Client of `private.sock`. `on_ended(session, reason)` and `on_snapshot(sessions)` are called from the event loop."""

    def __init__(
        self,
        path: Path,
        on_ended: Callable[[str, str], Any],
        on_snapshot: Callable[[list[str]], Any],
    ) -> None:
        self._path = path
        self._on_ended = on_ended
        self._on_snapshot = on_snapshot
        self._http: aiohttp.ClientSession | None = None
        self._watcher: asyncio.Task[None] | None = None
        # (cookie, workspace) to the answer and until when it may be believed (loop time, seconds).
        self._remembered: dict[tuple[str, str], tuple[Desk, float]] = {}
        # Ended sessions, oldest first (a dict as an ordered set): an answer on its way while the end was announced must not be believed.
        self._ended: dict[str, None] = {}
        self._epoch = 0
        self._open: list[tuple[str, str, int]] = []
        self._open_changed = asyncio.Event()
        self.watching = False

    async def start(self) -> None:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(self._path), limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS),
        )
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        if self._http is not None:
            await self._http.close()

    async def redeem(self, code: str, workspace: str) -> Desk:
        """Turn a one-time code into a desk. Raises Denied, Unavailable."""
        answer = await self._ask("/tickets/redeem", {"code": code, "workspace": workspace}, Denied)
        if answer["session"] in self._ended:
            raise Denied("the session has ended; log in again")
        return _desk(answer, workspace, answer["desk"])

    async def check(self, cookie: str, workspace: str) -> Desk:
        """The desk that a cookie stands for. Raises NoSession, Unavailable (also while the watch is down: then no end would be seen)."""
        if not self.watching:
            raise Unavailable(_CONTROL_DOWN)
        now = asyncio.get_running_loop().time()
        known = self._remembered.get((cookie, workspace))
        if known is not None and known[1] > now and known[0].expires > time.time():
            return known[0]
        epoch = self._epoch
        answer = await self._ask("/desks/check", {"desk": cookie, "workspace": workspace}, NoSession)
        if epoch != self._epoch:
            raise Unavailable(_CONTROL_DOWN)
        if answer["session"] in self._ended:
            raise NoSession("the session has ended; log in again")
        desk = _desk(answer, workspace)
        if len(self._remembered) >= _REMEMBER_COUNT:
            self._remembered.clear()
        self._remembered[(cookie, workspace)] = (desk, now + _REMEMBER_SECONDS)
        return desk

    def still_good(self, cookie: str, workspace: str) -> bool:
        """Whether a check that passed was not undone since by the session's end or by the loss of the watch."""
        return (cookie, workspace) in self._remembered

    def report(self, opened: list[tuple[str, str, int]]) -> None:
        """Tell control what is open here: (session, workspace, viewers). The last call counts; a new control process is told again."""
        if opened != self._open:
            self._open = opened
            self._open_changed.set()

    async def _ask(self, path: str, body: dict[str, str], refused: type[StreamError]) -> dict[str, Any]:
        assert self._http is not None, "start() was not called"
        try:
            async with self._http.post(f"http://control{path}", json=body) as response:
                answer = await response.json()
                if response.status == 403:
                    raise refused(answer["error"]["message"])
                if response.status != 200:
                    raise Unavailable(f"control answered {response.status} to {path}")
                return answer
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            raise Unavailable(_CONTROL_DOWN) from exc
        except (ValueError, KeyError, TypeError) as exc:
            raise Unavailable(f"control's answer to {path} is not understood") from exc

    async def _watch(self) -> None:
        """Follow the end of sessions for ever, connecting again with a growing pause."""
        pause = _RETRY_FIRST
        while True:
            started = time.monotonic()
            try:
                await self._watch_once()
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError, TypeError) as exc:
                _log.debug("watch of sessions: %s", exc)
            finally:
                self._lost()
            pause = _RETRY_FIRST if time.monotonic() - started > _RETRY_MOST else min(pause * 2, _RETRY_MOST)
            await asyncio.sleep(pause)

    def _lost(self) -> None:
        if self.watching:
            _log.warning("control is gone; open desktops go on, new ones have to wait")
        self.watching = False
        self._epoch += 1
        self._remembered.clear()

    async def _watch_once(self) -> None:
        assert self._http is not None
        timeout = aiohttp.ClientWSTimeout(ws_close=1.0)
        async with self._http.ws_connect(
            "http://control/sessions/watch", heartbeat=15.0, max_msg_size=16 << 20, timeout=timeout
        ) as socket:
            reporter = asyncio.create_task(self._reporting(socket))
            try:
                async for message in socket:
                    if message.type is not aiohttp.WSMsgType.TEXT:
                        break
                    self._take(json.loads(message.data))
            finally:
                reporter.cancel()
                await asyncio.gather(reporter, return_exceptions=True)

    async def _reporting(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            self._open_changed.clear()
            await socket.send_json({"type": "open", "open": self._open})
            await self._open_changed.wait()
            # Many viewers that come and go at once make one report.
            await asyncio.sleep(_REPORT_SECONDS)

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "snapshot":
            self._remembered.clear()
            self._on_snapshot(list(message["sessions"]))
            self.watching = True
        elif message["type"] == "ended":
            session = message["session"]
            if message.get("reason") == ROLE:
                # It lives on; what was asked before, and is not answered yet, does not count.
                self._epoch += 1
            else:
                self._ended[session] = None
            if len(self._ended) > _REMEMBER_COUNT:
                del self._ended[next(iter(self._ended))]
            for key, (desk, _) in list(self._remembered.items()):
                if desk.session == session:
                    del self._remembered[key]
            self._on_ended(session, str(message.get("reason", "ended")))
