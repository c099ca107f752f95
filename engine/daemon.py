"""The engine daemon: opens everything in order, serves the API on a Unix socket, closes in reverse. `tclone engine` runs main()."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import grp
import logging
import os
import pwd
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from engine import hostlimits
from engine.api import Api
from engine.cgroups import Cgroups, parent_of
from engine.config import Config
from engine.database import Database
from engine.errors import EngineError, Unavailable
from engine.fork import Forker
from engine.image_service import ImageService
from engine.images import ImageStore
from engine.manager import Manager
from engine.network import Network
from engine.recovery import recover
from engine.runtime import Runtime
from engine.storage import Storage
from engine.tools import Tools

log = logging.getLogger(__name__)

_SHUTDOWN_SECONDS = 5.0


class Daemon:
    """One engine: everything it opens, in the order it is opened."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.storage = Storage(config.data)
        self.cgroups = Cgroups(parent_of(config.run))
        self.runtime = Runtime(config.run, self.cgroups)
        self.tools = Tools(config.pool, config.libexec)
        self.images = ImageStore(config)
        self.network = Network(config)
        self.database = Database(config.database)
        self.manager = Manager(
            config, self.database, self.storage, self.runtime, self.cgroups, self.tools, self.images, self.network
        )
        self.forker = Forker(self.manager)
        self._stack = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Open and recover; the socket appears last, so that whoever connects finds all of it working. Raises EngineError."""
        config = self.config
        for directory in (config.data, config.run):
            directory.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        hostlimits.raise_limits()
        self._open_groups()
        await asyncio.to_thread(self.storage.open)
        self._stack.callback(self._close_storage)
        await asyncio.to_thread(self.tools.install)
        await asyncio.to_thread(self.tools.learnt.learn, self.tools.livefork)
        self._stack.callback(self.tools.learnt.close)
        self.runtime.open()
        self._stack.callback(self.runtime.close)
        await self.database.open()
        self._stack.push_async_callback(self.database.close)
        self.manager.executor.open()
        await self.images.clean_all()
        await self.network.open()
        self._stack.push_async_callback(self.network.close)
        self._stack.push_async_callback(self.manager.close)
        await recover(self.manager)
        self._stack.push_async_callback(self.forker.close)
        await self._serve()

    def _take_lock(self) -> None:
        """One engine for each run directory; the lock goes with the process, however it ends."""
        fd = os.open(self.config.run / "engine.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        self._stack.callback(os.close, fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(f"another engine runs with {self.config.run}; stop it with `tclone down`") from None

    def _open_groups(self) -> None:
        try:
            self.cgroups.open()
        except OSError as error:
            raise Unavailable(f"the engine cannot mount cgroup2, which keeps workspaces out of the host's groups: {error}") from error
        self._stack.callback(self.cgroups.close)

    async def _serve(self) -> None:
        path = self.config.socket
        path.unlink(missing_ok=True)
        account = _account(self.config.portal_user)
        images = ImageService(self.config, self.images, self._images_in_use, self.manager.events)
        users = {0} | ({account.pw_uid} if account else set())
        api = Api(self.manager, self.forker, images, users)
        runner = web.AppRunner(
            api.application(), access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS, handler_cancellation=True
        )
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.SockSite(runner, _listen(path, account)).start()
        self._stack.callback(path.unlink, missing_ok=True)

    def _images_in_use(self) -> set[str]:
        return {workspace.image_digest for workspace in self.manager.workspaces.values()}

    def _close_storage(self) -> None:
        """Leave the pool mounted while workspaces live in it: they and the next engine go on from there."""
        if not self.manager.workspaces:
            self.storage.close()
            self.cgroups.remove_parent()

    async def close(self) -> None:
        await self._stack.aclose()


def _account(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _listen(path: Path, account: pwd.struct_passwd | None) -> socket.socket:
    """The listening socket, never open to more than its owner and group: the mode is set before anyone can know its name."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    partial = f".{path.name}.{os.getpid()}"
    try:
        # By the directory's descriptor: a socket address holds 107 bytes.
        os.fchmod(listener.fileno(), 0o660)
        listener.bind(f"/proc/self/fd/{directory}/{partial}")
        os.chmod(partial, 0o660, dir_fd=directory)
        gid = _group(account)
        if gid is not None:
            os.chown(partial, 0, gid, dir_fd=directory)
        # Listening before it has its name: whoever sees the socket can connect to it.
        listener.listen(128)
        os.rename(partial, path.name, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.close(directory)
    listener.setblocking(False)
    return listener


def _group(account: pwd.struct_passwd | None) -> int | None:
    if account is None:
        return None
    try:
        return grp.getgrgid(account.pw_gid).gr_gid
    except KeyError:
        return None


async def _run() -> int:
    config = Config.from_environment()
    daemon = Daemon(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await daemon.start()
        log.info("the engine answers on %s", config.socket)
        await stop.wait()
        log.info("the engine stops; workspaces go on running")
        return 0
    except EngineError as error:
        print(f"tclone engine: {error.message}", file=sys.stderr)
        return error.exit_status
    finally:
        await daemon.close()


def main(arguments: Sequence[str] = ()) -> int:
    """Run the engine until SIGTERM or SIGINT; the exit status is the documented one."""
    argparse.ArgumentParser(
        prog="python -m engine.daemon", description="Run the engine in the foreground until SIGTERM or SIGINT; `tclone up` does this for you.",
        epilog="Settings come from the environment: docs/explanation/architecture.md lists the variables.",
    ).parse_args(arguments)  # fmt: skip
    if os.geteuid() != 0:
        print("tclone engine: must run as root", file=sys.stderr)
        return Unavailable.exit_status
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    return asyncio.run(_run())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
