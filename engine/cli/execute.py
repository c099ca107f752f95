"""Commands inside a workspace: exec, shell, logs. The terminal of the user is joined to the one inside."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import AsyncIterator, Iterator
from typing import Any

from engine.client import EngineClient, ExecSession
from engine.errors import BadRequest

_CHUNK = 64 << 10
# A login shell of the user's own account, bash where there is one.
_SHELL = ["/bin/sh", "-c", 'command -v bash >/dev/null 2>&1 && exec bash -l || exec "${SHELL:-/bin/sh}" -l']


# Its arguments are the session, empty for the one used last, and further options. A server without sessions, or none, gets one.
_ATTACH = """command -v tmux >/dev/null 2>&1 || { echo "tclone: no tmux in this workspace; \\`tclone shell\\` opens a shell" >&2; exit 127; }
session=$1; shift
if [ -z "$session" ] && tmux has-session 2>/dev/null; then exec tmux attach-session "$@"; fi
tmux has-session -t "=${session:-main}" 2>/dev/null || tmux new-session -d -s "${session:-main}" || exit
exec tmux attach-session -t "=${session:-main}" "$@\""""


async def attach(client: EngineClient, arguments: argparse.Namespace) -> int:
    """Join the multiplexer of a workspace's user until it is left (Ctrl-B D)."""
    if not sys.stdin.isatty():
        raise BadRequest("attach: stdin is not a terminal; `tclone exec WS -- tmux list-sessions` says what runs there")
    argv = ["/bin/sh", "-c", "cd; " + _ATTACH, "attach", arguments.session or "", *(["-r"] if arguments.read_only else [])]
    # tmux draws nothing but ASCII without it, and some images have no other UTF-8 locale.
    options: dict[str, Any] = {"env": {"LANG": "C.UTF-8"}, "user": arguments.user}
    return await _join(client, arguments.workspace, argv, options, True, True)


async def exec_command(client: EngineClient, arguments: argparse.Namespace) -> int:
    """Run a command and return its exit status."""
    if arguments.tty and not sys.stdin.isatty():
        raise BadRequest("exec -t: stdin is not a terminal; leave out -t")
    options = {"env": dict(arguments.env), "user": arguments.user, "cwd": arguments.workdir}
    with_stdin = arguments.interactive or arguments.tty
    return await _join(client, arguments.workspace, arguments.argv, options, arguments.tty, with_stdin)


async def shell(client: EngineClient, arguments: argparse.Namespace) -> int:
    """Open an interactive shell; without a terminal it reads commands from stdin."""
    options = {"env": {}, "user": arguments.user}
    return await _join(client, arguments.workspace, _SHELL, options, sys.stdin.isatty(), True)


async def logs(client: EngineClient, arguments: argparse.Namespace) -> int:
    """Copy the console log to stdout."""
    async for chunk in client.logs(arguments.workspace, tail=arguments.tail, follow=arguments.follow):
        await asyncio.to_thread(_write_all, 1, chunk)
    return 0


async def _join(
    client: EngineClient, ref: str, argv: list[str], options: dict[str, Any], with_tty: bool, with_stdin: bool
) -> int:
    """Run `argv` with our stdout and stderr, our stdin and our terminal if wanted; returns its exit status."""
    if with_tty:
        options["env"] = {"TERM": os.environ.get("TERM", "xterm"), **options["env"]}
        options["cols"], options["rows"] = os.get_terminal_size(sys.stdin.fileno())
    async with client.exec(ref, argv, tty=with_tty, **options) as session, contextlib.AsyncExitStack() as stack:
        if with_tty:
            stack.enter_context(_raw_terminal(sys.stdin.fileno()))
            stack.enter_context(_resizing(session))
        if with_stdin:
            await stack.enter_async_context(_feeding(session))
        else:
            await session.close_stdin()
        async for stream, data in session.output():
            # In a thread: a reader of ours that is slow must not keep the connection from answering pings.
            await asyncio.to_thread(_write_all, stream, data)
        return session.exit_code()


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def _raw_terminal(descriptor: int) -> Iterator[None]:
    """Every key goes to the workspace, Ctrl-C too; the terminal's settings come back whatever happens."""
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _resizing(session: ExecSession) -> Iterator[None]:
    """Pass changes of our terminal's size on."""
    loop = asyncio.get_running_loop()
    sending: set[asyncio.Task[None]] = set()

    def changed() -> None:
        cols, rows = os.get_terminal_size(sys.stdin.fileno())
        task = loop.create_task(session.resize(rows, cols))
        sending.add(task)
        task.add_done_callback(sending.discard)

    loop.add_signal_handler(signal.SIGWINCH, changed)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


@contextlib.asynccontextmanager
async def _feeding(session: ExecSession) -> AsyncIterator[None]:
    """Send our stdin while inside.

    A thread reads it: an event loop can watch pipes and terminals but not regular files. The thread may still wait for
    a key when the command has ended, so it is a daemon thread, which nothing joins.
    """
    loop = asyncio.get_running_loop()
    over = threading.Event()

    async def send(data: bytes) -> None:
        if data:
            await session.write(data)
        else:
            await session.close_stdin()

    def read() -> None:
        while not over.is_set():
            try:
                data = os.read(0, _CHUNK)
            except OSError:
                data = b""  # a terminal that hung up
            with contextlib.suppress(RuntimeError, ConnectionError, asyncio.CancelledError):
                # One chunk at a time: a command that does not read must not make us hold all of our input.
                asyncio.run_coroutine_threadsafe(send(data), loop).result()
            if not data:
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    try:
        yield
    finally:
        over.set()
