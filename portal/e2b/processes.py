"""envd's process service: start, listen to, feed and signal commands in a sandbox."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import BasicAuth, hdrs, web

from engine.account import DESKTOP_USER
from engine.errors import EngineError, Unavailable
from portal import audit
from portal.e2b import running
from portal.e2b.connect import Stream, message_of, messages_of, refusal
from portal.e2b.desktop import Desktop
from portal.e2b.keys import Keys
from portal.e2b.running import Event, Processes, Running, Wanted
from portal.e2b.sandboxes import PREFIX
from portal.endings import Endings, until
from portal.errors import LoginNeeded, Malformed, NotThere, PortalError
from portal.inside import Inside
from portal.principal import Principal, Scope
from portal.rates import Rates
from portal.routes import Call, Router
from portal.sockets import Limited, side_by_side

_SERVICE = PREFIX + "/process.Process/"
_SIGNALS = {"SIGNAL_SIGTERM": 15, "SIGNAL_SIGKILL": 9}
_MOST_WORDS = 1000
_QUIET_SECONDS = 20.0
_MOST_LISTENERS = 128

Method = Callable[[web.Request, Principal, str, dict[str, Any]], Awaitable[dict[str, Any]]]


class ProcessService:
    """`/process.Process/…`"""

    def __init__(self, inside: Inside, processes: Processes, desktop: Desktop, keys: Keys, router: Router, rates: Rates, endings: Endings) -> None:
        self._endings = endings
        self._listeners = Limited("listener", _MOST_LISTENERS)
        self._inside = inside
        self._processes = processes
        self._desktop = desktop
        self._keys = keys
        self._router = router
        self._rates = rates

    def routes(self) -> list[web.RouteDef]:
        single: dict[str, Method] = {
            "List": self._list, "SendInput": self._input, "CloseStdin": self._close, "SendSignal": self._signal, "Update": self._update,
        }  # fmt: skip
        routes = [web.post(_SERVICE + name, self._called(method)) for name, method in single.items()]
        return [*routes, web.post(_SERVICE + "Start", self._start), web.post(_SERVICE + "Connect", self._listen), web.post(_SERVICE + "StreamInput", self._feed)]

    def _called(self, method: Method) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def serve(request: web.Request) -> web.StreamResponse:
            try:
                principal, workspace = self._enter(request)
                return web.json_response(await method(request, principal, workspace, await message_of(request)))
            except (PortalError, EngineError) as error:
                return refusal(error)

        return serve

    def _enter(self, request: web.Request) -> tuple[Principal, str]:
        principal, identity = self._keys.of_sandbox(request)
        return principal, self._router.enter(principal, identity, Scope.CONTROL, request.path)

    async def _start(self, request: web.Request) -> web.StreamResponse:
        stream = Stream(request)
        try:
            principal, workspace = self._enter(request)
            wanted = _wanted(await message_of(request), request)
            answered = await self._desktop.answered(Call(request, principal, workspace, None), wanted)
            if answered is not None:
                return await _told(stream, answered.code, answered.out, answered.err)
            with audit.outcome("exec", principal, workspace, account=wanted.user):
                self._rates.take(principal.grant, 1)
                started = await self._processes.start(workspace, wanted)
            return await self._follow(stream, started, principal, first=True)
        except (PortalError, EngineError) as error:
            return await stream.end(error)

    async def _listen(self, request: web.Request) -> web.StreamResponse:
        stream = Stream(request)
        try:
            principal, workspace = self._enter(request)
            with self._listeners.another(workspace):
                return await self._follow(stream, self._processes.find(workspace, (await message_of(request)).get("process")), principal)
        except (PortalError, EngineError) as error:
            return await stream.end(error)

    async def _follow(self, stream: Stream, process: Running, principal: Principal, first: bool = False) -> web.StreamResponse:
        """Everything from now on until it ends, until the client leaves, or until the token ends (the command goes on). Raises LoginNeeded, ConnectionError."""
        async with self._endings.watch() as ended, process.listening(first) as events:
            async with side_by_side(_sent(stream, events, process.pid), until(principal.grant, ended)) as (sent, over):
                if sent.done():
                    sent.result()
                elif over.result():
                    raise LoginNeeded("the token has ended")
        return await stream.end()

    async def _feed(self, request: web.Request) -> web.StreamResponse:
        """Input as it comes, in its order, for one process. Each piece is let in by itself: a person may have taken control since the last one."""
        stream = Stream(request)
        try:
            principal, workspace = self._enter(request)
            with self._listeners.another(workspace):
                async with self._endings.watch() as ended, side_by_side(self._fed(request, workspace), until(principal.grant, ended)) as (fed, over):
                    if fed.done():
                        fed.result()
                    else:
                        raise LoginNeeded("the token has ended") if over.result() else Unavailable("the portal stops; send the input again")
            await stream.send({})
            return await stream.end()
        except (PortalError, EngineError) as error:
            return await stream.end(error)

    async def _fed(self, request: web.Request, workspace: str) -> None:
        process: Running | None = None
        async for message in messages_of(request):
            self._enter(request)
            if isinstance(begun := message.get("start"), dict):
                process = self._processes.find(workspace, begun.get("process"))
            elif isinstance(told := message.get("data"), dict):
                if process is None:
                    raise Malformed("the first message must be start, with a process")
                await _write(process, workspace, told.get("input"))

    async def _list(self, request: web.Request, principal: Principal, workspace: str, message: dict[str, Any]) -> dict[str, Any]:
        return {"processes": [_shown(one) for one in self._processes.of(workspace)]}

    async def _input(self, request: web.Request, principal: Principal, workspace: str, message: dict[str, Any]) -> dict[str, Any]:
        await _write(self._processes.find(workspace, message.get("process")), workspace, message.get("input"))
        return {}

    async def _close(self, request: web.Request, principal: Principal, workspace: str, message: dict[str, Any]) -> dict[str, Any]:
        await self._processes.find(workspace, message.get("process")).session.close_stdin()
        return {}

    async def _update(self, request: web.Request, principal: Principal, workspace: str, message: dict[str, Any]) -> dict[str, Any]:
        size = _size(message.get("pty"))
        if size is not None:
            await self._processes.find(workspace, message.get("process")).session.resize(*size)
        return {}

    async def _signal(self, request: web.Request, principal: Principal, workspace: str, message: dict[str, Any]) -> dict[str, Any]:
        number = _SIGNALS.get(str(message.get("signal")))
        if number is None:
            raise Malformed(f"signal must be one of {', '.join(_SIGNALS)}")
        found = self._processes.find(workspace, message.get("process"))
        with audit.outcome("signal", principal, workspace, signal=number):
            await self._inside.run(workspace, ["/bin/sh", "-c", 'kill -"$0" "$1"', str(number), str(found.pid)], user="root")
        return {}


async def _write(process: Running, workspace: str, sent: object) -> None:
    """Give a process its input: {"stdin"} or {"pty"}, in base64. Raises Malformed, NotThere."""
    text = next((sent[name] for name in ("stdin", "pty") if isinstance(sent, dict) and isinstance(sent.get(name), str)), None)
    if text is None:
        raise Malformed("input must have stdin or pty")
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Malformed("input must be base64") from None
    try:
        await process.session.write(content)
    except ConnectionError:
        raise NotThere(f"process {process.pid} of {workspace} has just ended") from None


async def _sent(stream: Stream, events: asyncio.Queue[Event | None], pid: int) -> None:
    """Send everything until the process ends."""
    await stream.send(running.start(pid))
    while True:
        try:
            async with asyncio.timeout(_QUIET_SECONDS):
                event = await events.get()
        except TimeoutError:
            # It also tells whether the client is still there.
            await stream.send({"event": {"keepalive": {}}})
            continue
        if event is None:
            return
        await stream.send(event)


async def _told(stream: Stream, code: int, out: bytes, err: bytes) -> web.StreamResponse:
    events: list[Event] = [running.start(running.pretended())]
    events += [running.data(name, content) for name, content in (("stdout", out), ("stderr", err)) if content]
    for event in [*events, running.end(code)]:
        await stream.send(event)
    return await stream.end()


def _wanted(message: dict[str, Any], request: web.Request) -> Wanted:
    process = message.get("process")
    if not isinstance(process, dict) or not isinstance(process.get("cmd"), str):
        raise Malformed("process.cmd must be a program's name")
    args, env, cwd, tag = process.get("args") or [], process.get("envs") or {}, process.get("cwd"), message.get("tag")
    if not isinstance(args, list) or len(args) > _MOST_WORDS or not all(isinstance(word, str) for word in args):
        raise Malformed(f"process.args must be at most {_MOST_WORDS} texts")
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise Malformed("process.envs must be texts by name")
    if cwd is not None and not isinstance(cwd, str) or tag is not None and not isinstance(tag, str):
        raise Malformed("process.cwd and tag are texts")
    return Wanted(
        argv=[process["cmd"], *args], env=dict(env), cwd=cwd or None, user=user_of(request), tag=tag, stdin=message.get("stdin", True) is True,
        size=_size(message.get("pty")), seconds=_seconds(request),
    )  # fmt: skip


def user_of(request: web.Request) -> str:
    """The account that a client names as the user of basic authentication; the desktop's without one."""
    text = request.headers.get(hdrs.AUTHORIZATION)
    if text is None:
        return DESKTOP_USER
    try:
        return BasicAuth.decode(text).login or DESKTOP_USER
    except ValueError:
        raise Malformed("the Authorization header names the user: basic authentication with an empty password") from None


def _seconds(request: web.Request) -> float | None:
    text = request.headers.get("Connect-Timeout-Ms")
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 10 or int(text) == 0:
        raise Malformed("Connect-Timeout-Ms must be a number of milliseconds")
    return int(text) / 1000


def _size(pty: object) -> tuple[int, int] | None:
    """Rows and columns of a terminal."""
    if pty is None:
        return None
    size = pty.get("size") if isinstance(pty, dict) else None
    rows, cols = (size.get("rows", 24), size.get("cols", 80)) if isinstance(size, dict) else (24, 80)
    if not all(isinstance(part, int) and 1 <= part <= 1000 for part in (rows, cols)):
        raise Malformed("pty.size must have rows and cols from 1 to 1000")
    return rows, cols


def _shown(process: Running) -> dict[str, Any]:
    wanted = process.wanted
    config: dict[str, Any] = {"cmd": wanted.argv[0], "args": wanted.argv[1:], "envs": wanted.env}
    if wanted.cwd is not None:
        config["cwd"] = wanted.cwd
    return {"config": config, "pid": process.pid, **({"tag": wanted.tag} if wanted.tag is not None else {})}
