"""The blocking classes: the same names, parameters and results as in `tclone.aio`, without `await`."""

from __future__ import annotations

import builtins
import os
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self, Unpack

from tclone import aio
from tclone.blocking import Loop, calls, makes, opens, streams
from tclone.clipboard import Clipboard as AsyncClipboard
from tclone.data import Info, Lease, Promoted, RunOptions
from tclone.errors import TCloneError
from tclone.files import Files as AsyncFiles
from tclone.ports import Ports as AsyncPorts


class _Twin:
    def __init__(self, loop: Loop, it: Any) -> None:
        self._loop = loop
        self._it = it


class Files(_Twin):
    read = calls(AsyncFiles.read)
    read_text = calls(AsyncFiles.read_text)
    write = calls(AsyncFiles.write)
    list = calls(AsyncFiles.list)
    make_directory = calls(AsyncFiles.make_directory)
    remove = calls(AsyncFiles.remove)
    download = calls(AsyncFiles.download)
    upload = calls(AsyncFiles.upload)
    diff = calls(AsyncFiles.diff)
    compare = calls(AsyncFiles.compare)

    def promote(self, into: Workspace | None, paths: Iterable[str | bytes], *, force: bool = False, dry_run: bool = False) -> builtins.list[Promoted]:
        """As `tclone.aio`'s."""
        promoted: builtins.list[Promoted] = self._loop.run(self._it.promote(None if into is None else into._it, paths, force=force, dry_run=dry_run))
        return promoted


class Ports(_Twin):
    listeners = calls(AsyncPorts.listeners)
    published = calls(AsyncPorts.published)
    publish = calls(AsyncPorts.publish)
    unpublish = calls(AsyncPorts.unpublish)
    url = calls(AsyncPorts.url)


class Clipboard(_Twin):
    get = calls(AsyncClipboard.get)
    set = calls(AsyncClipboard.set)


class Process(_Twin):
    write = calls(aio.Process.write)
    close_stdin = calls(aio.Process.close_stdin)
    resize = calls(aio.Process.resize)
    output = streams(aio.Process.output)
    status = calls(aio.Process.status)


class Desktop(_Twin):
    act = calls(aio.Desktop.act)
    move = calls(aio.Desktop.move)
    click = calls(aio.Desktop.click)
    mouse_down = calls(aio.Desktop.mouse_down)
    mouse_up = calls(aio.Desktop.mouse_up)
    drag = calls(aio.Desktop.drag)
    scroll = calls(aio.Desktop.scroll)
    type = calls(aio.Desktop.type)
    key = calls(aio.Desktop.key)
    key_down = calls(aio.Desktop.key_down)
    key_up = calls(aio.Desktop.key_up)
    hold_key = calls(aio.Desktop.hold_key)
    cursor = calls(aio.Desktop.cursor)
    activate = calls(aio.Desktop.activate)


class Control(Desktop):
    """As `tclone.aio.Control`."""

    frames = streams(aio.Control.frames)

    @property
    def workspace(self) -> str:
        return str(self._it.workspace)

    @property
    def lease(self) -> Lease | None:
        lease: Lease | None = self._it.lease
        return lease


class Workspace(Desktop):
    """`with client.run("webtop-xfce") as desk`. One that was run or forked by this program is discarded when its block is left."""

    def __init__(self, loop: Loop, it: aio.Workspace, owned: bool = False) -> None:
        super().__init__(loop, it)
        self.files = Files(loop, it.files)
        self.ports = Ports(loop, it.ports)
        self.clipboard = Clipboard(loop, it.clipboard)
        self._owned = owned

    @classmethod
    def run(cls, image: str, **options: Unpack[RunOptions]) -> Workspace:
        """Launch a workspace with a client of its own, found in the environment; options as those of `Client.run`."""
        loop = Loop()
        try:
            return cls(loop, loop.run(aio.Workspace.run(image, **options)), owned=True)
        except BaseException:
            loop.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, value: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._loop.run(self._it.__aexit__(kind, value, trace))
        finally:
            if self._owned:
                self._loop.close()

    def __repr__(self) -> str:
        return repr(self._it)

    @property
    def id(self) -> str:
        return str(self._it.id)

    @property
    def name(self) -> str:
        return str(self._it.name)

    @property
    def info(self) -> Info:
        info: Info = self._it.info
        return info

    refresh = calls(aio.Workspace.refresh)
    fork = makes(aio.Workspace.fork, lambda loop, children: [_child(loop, child) for child in children])
    branch = fork
    pause = calls(aio.Workspace.pause)
    resume = calls(aio.Workspace.resume)
    keep_alive = calls(aio.Workspace.keep_alive)
    discard = calls(aio.Workspace.discard)
    logs = calls(aio.Workspace.logs)
    lease = calls(aio.Workspace.lease)
    events = streams(aio.Workspace.events)
    screenshot = calls(aio.Workspace.screenshot)
    wait_for_change = calls(aio.Workspace.wait_for_change)
    windows = calls(aio.Workspace.windows)
    elements = calls(aio.Workspace.elements)
    control = opens(aio.Workspace.control, Control)
    start = opens(aio.Workspace.start, Process)
    exec = calls(aio.Workspace.exec)
    wait_until_ready = calls(aio.Workspace.wait_until_ready)
    wait_until_free = calls(aio.Workspace.wait_until_free)
    wait_for_window = calls(aio.Workspace.wait_for_window)
    wait_for_port = calls(aio.Workspace.wait_for_port)


class Client(_Twin):
    """`with Client() as tclone`. Without arguments it finds what it needs in the environment: `tclone.settings.found`. Threads may share it."""

    def __init__(self, url: str | None = None, *, token: str | None = None, ca: str | os.PathLike[str] | None = None, patience: float = 30.0) -> None:
        client = aio.Client(url, token=token, ca=ca, patience=patience)
        super().__init__(Loop(), client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Workspaces stay; what is open by this client ends."""
        self._loop.close(self._it.close)

    run = makes(aio.Client.run, Workspace)
    workspaces = makes(aio.Client.workspaces, lambda loop, found: [Workspace(loop, one) for one in found])
    workspace = makes(aio.Client.workspace, Workspace)
    images = calls(aio.Client.images)
    me = calls(aio.Client.me)
    request = calls(aio.Client.request)
    events = streams(aio.Client.events)


def _child(loop: Loop, child: aio.Workspace | TCloneError) -> Workspace | TCloneError:
    return child if isinstance(child, TCloneError) else Workspace(loop, child)
