"""`python -m portal.control`: the control process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from engine.config import Config
from portal import hosts, logs, privileges, supplied
from portal.app import Control, Options
from portal.places import Places
from portal.quiet import quiet
from portal.setup import prepare

log = logging.getLogger("portal")

_BACKLOG = 512
_SHUTDOWN_SECONDS = 3.0


@contextlib.asynccontextmanager
async def serving(config: Config, options: Options = Options()) -> AsyncIterator[Control]:
    """The control process's two sockets, answered while inside. Raises OSError, sqlite3.Error."""
    quiet(logging.getLogger("aiohttp.server"))
    places = Places(config)
    control = Control(config, options)
    await control.open()
    runners = []
    try:
        for app, path in ((control.private, places.private_socket), (control.public, places.control_socket)):
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS, handle_signals=False)
            await runner.setup()
            runners.append(runner)
            await web.SockSite(runner, listen(path), backlog=_BACKLOG).start()
        yield control
    finally:
        for runner in reversed(runners):
            await runner.cleanup()
        for path in (places.control_socket, places.private_socket):
            path.unlink(missing_ok=True)
        await control.close()


def listen(path: Path) -> socket.socket:
    """A listening Unix socket of mode 0600; takes the place of one that a dead process left."""
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        server.bind(str(path))
    except OSError as error:
        server.close()
        raise OSError(error.errno, f"cannot listen on {path}: {error.strerror}") from error
    finally:
        os.umask(mask)
    return server


async def run(config: Config) -> None:
    """Serve until SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with serving(config) as control:
        log.info("control answers on %s", Places(config).control_socket)
        control.load_ahead()
        await stopped.wait()


def arguments(config: Config, argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line; defaults are the configuration's."""
    parser = argparse.ArgumentParser(prog="python -m portal.control", description="Pages and API of the portal")
    logs.add_option(parser, config)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Exit status 0, 1 with one line on stderr when it cannot start, 2 for a bad command line."""
    config = Config.from_environment()
    options = arguments(config, argv)
    try:
        logs.configure(options.log_format)
        if os.geteuid() == 0:
            prepared = prepare(config)
            if prepared.password is not None:
                # The only moment at which it can be shown. `tclone up` prepares first, so this is a start by hand.
                print(f"first password for admin: {prepared.password}", flush=True)
        privileges.drop(config.portal_user)
        hosts.serve(config.portal_host, supplied.pair(config) is not None)
        asyncio.run(run(config))
    except (OSError, KeyError, ValueError, sqlite3.Error) as error:
        print(f"portal control cannot start: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
