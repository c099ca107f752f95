"""One workspace: fork it, look at it, act in it, run commands in it, discard it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from tclone import control, events, execution
from tclone.clipboard import Clipboard
from tclone.control import Control, lease_of
from tclone.data import Acted, Completed, Element, Event, Info, Lease, Listener, RunOptions, Screenshot, Size, Window, picture_query
from tclone.desktop import Desktop, acted, element_of, window_of
from tclone.errors import CommandFailed, Conflict, NotFound, TCloneError, TimedOut, of_wire
from tclone.execution import Process
from tclone.files import Files
from tclone.ports import Ports
from tclone.transport import KEY_HEADER, Transport, until

if TYPE_CHECKING:
    from tclone.client import Client

_READY_SECONDS = 300.0
_WAIT_SECONDS = 30.0
# Characters of a command that its error repeats.
_SHOWN = 60
# Of one request that waits for a picture.
_MOST_WAIT_MS = 30_000


class Workspace(Desktop):
    """`async with await client.run("webtop-xfce") as desk`. One that was run or forked by this program is discarded when its block is left.

    Each call names this workspace and no other; when it is gone calls raise NotFound.
    """

    def __init__(self, transport: Transport, info: Info, made: bool = False, owned: Client | None = None) -> None:
        self.id = info.id
        self.info = info
        self.files = Files(transport, self)
        self.ports = Ports(transport, self)
        self.clipboard = Clipboard(transport, info.id)
        self._transport = transport
        self._path = f"/workspaces/{info.id}"
        self._made = made
        self._owned = owned

    @classmethod
    async def run(cls, image: str, **options: Unpack[RunOptions]) -> Workspace:
        """Launch a workspace with a client of its own, found in the environment; options as those of `Client.run`."""
        from tclone.client import Client  # it makes workspaces itself

        client = Client()
        try:
            made = await client.run(image, **options)
        except BaseException:
            await client.close()
            raise
        made._owned = client
        return made

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if self._made:
                await self.discard()
        finally:
            if self._owned is not None:
                await self._owned.close()

    def __repr__(self) -> str:
        return f"<Workspace {self.id} {self.info.name}>"

    @property
    def name(self) -> str:
        return self.info.name

    # Its life

    async def refresh(self) -> Info:
        """Ask for its state, ports and names anew."""
        self.info = Info.of(await self._transport.json("GET", self._path))
        return self.info

    async def fork(
        self, count: int = 1, *, name: str | None = None, labels: Sequence[str] = (), network: str | None = None, tcp_close: bool = False,
        timeout: float | None = None, persistent: bool = False, partial: bool = False,
    ) -> list[Workspace | TCloneError]:  # fmt: skip
        """Fork it live, 1 to 8 branches out of one freeze: for each of them, in order, the branch or why there is none.

        `labels` say what each is for; `network` (`open`, `none`) what they may reach, as the source without it. `timeout`: seconds after which each
        is discarded; `persistent`: never; `partial`: as many as there is room for. Raises Refused with what is in the way, Conflict, LimitReached.
        """
        body = {
            "count": count, "name": name, "labels": list(labels) or None, "network": network, "tcp_close": tcp_close, "timeout": timeout,
            "persistent": persistent, "partial": partial,
        }  # fmt: skip
        told = await self._transport.json("POST", self._path + "/fork", {key: value for key, value in body.items() if value is not None}, once=True)
        return [self._child(result) for result in told["results"]]

    branch = fork

    def _child(self, result: dict[str, Any]) -> Workspace | TCloneError:
        if result.get("workspace") is None:
            return of_wire(result.get("error"))
        return Workspace(self._transport, Info.of(result["workspace"]), made=True)

    async def pause(self) -> None:
        """Let its programs stand still. They keep their memory."""
        self.info = Info.of(await self._transport.json("POST", self._path + "/pause", once=True))

    async def resume(self) -> None:
        """Let its programs go on."""
        self.info = Info.of(await self._transport.json("POST", self._path + "/resume", once=True))

    async def keep_alive(self) -> None:
        """Count the time after which it is discarded anew."""
        await self._transport.json("POST", self._path + "/keepalive", once=True)

    async def discard(self) -> None:
        """Remove it and all it holds. One that is gone already will do. Raises Held."""
        with contextlib.suppress(NotFound):
            await self._transport.json("DELETE", self._path)

    async def logs(self, tail: int = 200) -> str:
        """The last lines of its console."""
        async with self._transport.request("GET", self._path + "/logs", query={"tail": tail}, repeatable=True) as answer:
            return await answer.text()

    async def lease(self) -> Lease | None:
        """The person who has control; None: nobody."""
        return lease_of(await self._transport.json("GET", self._path + "/lease"))

    async def events(self) -> AsyncIterator[Event]:
        """What happens to this workspace from now on; ends when it is gone."""
        async with contextlib.aclosing(events.followed(self._transport)) as feed:
            async for event in feed:
                if event.type == "snapshot":
                    # The connection may have been away while it went.
                    if all(one["id"] != self.id for one in event.data["workspaces"]):
                        return
                elif event.workspace == self.id:
                    yield event
                    if event.type == "gone":
                        return

    # Looking and acting

    async def screenshot(
        self, *, format: str = "png", width: int | None = None, height: int | None = None, region: tuple[int, int, int, int] | None = None,
        max_bytes: int | None = None, settle: float | None = None, pointer: bool = False,
    ) -> Screenshot:  # fmt: skip
        """A picture of its screen, which shows everything that was delivered before. `settle`: wait until it has come to rest, at most so many seconds.

        `format`: png, jpeg, webp. With `width` smaller; with `height`, too, of just that size. `region`: left, top, right, bottom of the screen. `pointer`: with the mouse's
        pointer in it.
        """
        asked = picture_query(format, width, height, region, max_bytes) | ({"pointer": 1} if pointer else {})
        shot = await self._picture(asked, {} if settle is None else {"settle_ms": round(settle * 1000)})
        assert shot is not None, "only a picture that was asked for by its tag can be the same"
        return shot

    async def wait_for_change(self, since: Screenshot, timeout: float = _WAIT_SECONDS) -> Screenshot:
        """The first picture that is another one than `since`, of the same part of the screen, size and kind. Raises TimedOut."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            wait = {"wait_change_ms": min(round(max(0.0, deadline - loop.time()) * 1000), _MOST_WAIT_MS)}
            if (shot := await self._picture(since.asked, wait, since.tag)) is not None:
                return shot
            if loop.time() >= deadline:
                raise TimedOut(f"{self.id}: its screen did not change within {timeout:g} s", code="timeout")

    async def _picture(self, asked: Mapping[str, object], more: Mapping[str, object], tag: str | None = None) -> Screenshot | None:
        headers = {"If-None-Match": tag} if tag else {}
        async with self._transport.request("GET", self._path + "/screenshot", query={**asked, **more}, headers=headers, repeatable=True) as answer:
            if answer.status == 304:
                return None
            screen, size = (_size(answer.headers[name]) for name in ("Screen-Size", "Picture-Size"))
            return Screenshot(await answer.read(), answer.content_type, answer.headers["ETag"], screen, size, asked=asked)

    async def act(self, *actions: dict[str, Any], size: Size | None = None, key: str | None = None) -> Acted:
        body: dict[str, Any] = {"actions": list(actions)}
        if size is not None:
            body["size"] = list(size)
        if key is None:
            return acted(await self._transport.json("POST", self._path + "/actions", body, once=True), self.id)
        async with self._transport.request("POST", self._path + "/actions", body, headers={KEY_HEADER: key}, repeatable=True) as answer:
            return acted(await answer.json(), self.id)

    async def windows(self) -> list[Window]:
        """Its windows, the lowest first."""
        return [window_of(one) for one in (await self._transport.json("GET", self._path + "/windows"))["windows"]]

    async def elements(self, *, showing: bool = True, nodes: int | None = None) -> list[Element]:
        """What its programs say of what they show (the accessibility tree), what is around something before it; `showing`: without what cannot be
        seen; `nodes`: at most so many."""
        query = {"showing": int(showing), **({} if nodes is None else {"nodes": nodes})}
        answer = await self._transport.json("GET", self._path + "/accessibility", query=query)
        return [element_of(one) for one in answer["nodes"]]

    def control(self) -> AbstractAsyncContextManager[Control]:
        """The same verbs over one connection, with less delay, and pictures as the screen changes."""
        return control.opened(self._transport, self.id)

    # Commands

    def start(
        self, argv: Sequence[str] | str, *, env: Mapping[str, str] | None = None, user: str | None = None, cwd: str | None = None, tty: bool = False,
        rows: int = 24, cols: int = 80,
    ) -> AbstractAsyncContextManager[Process]:  # fmt: skip
        """A command whose output comes as it is written. Text is run by `sh -c`. `user`: the desktop's without it; `tty`: on a terminal."""
        return execution.started(self._transport, self.id, _argv(argv), env=env, user=user, cwd=cwd, tty=tty, rows=rows, cols=cols)

    async def exec(
        self, argv: Sequence[str] | str, *, stdin: bytes | str = b"", env: Mapping[str, str] | None = None, user: str | None = None,
        cwd: str | None = None, check: bool = False,
    ) -> Completed:  # fmt: skip
        """Run a command to its end. With `check` raises CommandFailed for a status other than 0."""
        outputs = {1: bytearray(), 2: bytearray()}
        async with self.start(argv, env=env, user=user, cwd=cwd) as process:
            # A command may write before it has read all of a long input: both at once.
            async with _feeding(process, stdin):
                async for chunk in process.output():
                    outputs[chunk.stream] += chunk.data
            done = Completed(await process.status(), bytes(outputs[1]), bytes(outputs[2]))
        if check and done.status != 0:
            last = done.stderr.decode(errors="replace").strip()[-300:]
            shown = argv[:_SHOWN] if isinstance(argv, str) else argv[0]
            raise CommandFailed(f"{self.id}: {shown} ended with {done.status}{': ' * bool(last)}{last}", command_status=done.status, stdout=done.stdout, stderr=done.stderr)
        return done

    # Waiting

    async def wait_until_ready(self, timeout: float = _READY_SECONDS) -> Info:
        """Return when commands and, with a desktop, pictures work. Raises Conflict when its start failed, TimedOut."""

        async def look() -> Info | None:
            info = await self.refresh()
            if info.state in ("failed", "stopped"):
                raise Conflict(f"{self.id} did not start: {info.error}", code="conflict")
            return info if info.state == "ready" else None

        found: Info = await until(f"{self.id} is ready", look, timeout)
        return found

    async def wait_until_free(self, timeout: float = _WAIT_SECONDS) -> None:
        """Return when no person has control. Raises TimedOut."""

        async def look() -> bool:
            return await self.lease() is None

        await until(f"{self.id} is handed back", look, timeout)

    async def wait_for_window(self, title: str, timeout: float = _WAIT_SECONDS) -> Window:
        """The first window whose title contains `title`, in the order from the lowest. Raises TimedOut."""

        async def look() -> Window | None:
            return next((window for window in await self.windows() if title in window.title), None)

        found: Window = await until(f"a window {title!r} in {self.id}", look, timeout)
        return found

    async def wait_for_port(self, port: int, timeout: float = _WAIT_SECONDS) -> Listener:
        """A server that listens on a port inside. Raises TimedOut."""

        async def look() -> Listener | None:
            return next((one for one in await self.ports.listeners() if one.port == port), None)

        found: Listener = await until(f"a server on port {port} of {self.id}", look, timeout)
        return found


@contextlib.asynccontextmanager
async def _feeding(process: Process, stdin: bytes | str) -> AsyncIterator[None]:
    """Send a command's input meanwhile."""
    async def feed() -> None:
        # The command may end without having read it.
        with contextlib.suppress(TCloneError):
            if stdin:
                await process.write(stdin)
            await process.close_stdin()

    task = asyncio.create_task(feed(), name="input of a command")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _argv(argv: Sequence[str] | str) -> list[str]:
    return ["sh", "-c", argv] if isinstance(argv, str) else list(argv)


def _size(text: str) -> Size:
    wide, _, high = text.partition("x")
    return int(wide), int(high)
