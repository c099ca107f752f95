"""Start of the stream process: sockets, privileges, certificate, workers."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from engine.client import EngineClient
from engine.config import Config
from engine.network.fdclient import FdClient
from portal import hosts, logs, privileges, supplied
from portal.places import Places
from portal.stream.certificate import Certificate
from portal.stream.desktop import UPGRADE_SPACING_SECONDS
from portal.stream.native import LIBRARY
from portal.stream.pace import Pace
from portal.stream.peers import FrontProxies
from portal.stream.server import Settings, StreamServer

_log = logging.getLogger("portal.stream")

_BACKLOG = 512
_RESTART_PAUSE = 1.0
_EXIT_UNAVAILABLE = 9


def default_workers() -> int:
    """One for each 2 cores that this process may use: the other one is the desktops', which make what is relayed."""
    return max(1, len(os.sched_getaffinity(0)) // 2)


def arguments(config: Config, argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line; defaults are the configuration's."""
    parser = argparse.ArgumentParser(prog="python -m portal.stream", description="TLS, routing and byte relay of the portal")
    parser.add_argument("--bind", action="append", metavar="ADDRESS", help="address to listen on, repeatable (TCLONE_PORTAL_BIND)")
    parser.add_argument("--port", type=int, default=config.portal_port)
    parser.add_argument("--workers", type=int, default=default_workers(), help="processes that share the port (one per 2 cores: %(default)s)")
    parser.add_argument(
        "--behind-proxy", action="append", metavar="NET", help="address or network of a front proxy whose X-Forwarded-For is believed, repeatable (TCLONE_BEHIND_PROXY)"
    )
    logs.add_option(parser, config)
    parser.add_argument("--verbose", action="store_true")
    parsed = parser.parse_args(argv)
    if not 1 <= parsed.port <= 65535:
        parser.error(f"--port {parsed.port} is not a port")
    if not 1 <= parsed.workers <= 64:
        parser.error(f"--workers {parsed.workers}: 1 to 64")
    parsed.bind = parsed.bind or list(config.portal_bind)
    parsed.behind_proxy = parsed.behind_proxy or list(config.front_proxies)
    try:
        FrontProxies(parsed.behind_proxy)
    except ValueError as exc:
        parser.error(f"--behind-proxy: {exc}")
    return parsed


def open_listeners(addresses: list[str], port: int) -> list[socket.socket]:
    """Listening sockets of one worker. SO_REUSEPORT lets each worker have its own; an IPv6 one takes IPv6 only. Raises OSError."""
    opened: list[socket.socket] = []
    try:
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM)
            opened.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address, port))
            sock.listen(_BACKLOG)
            sock.setblocking(False)
    except BaseException:
        for sock in opened:
            sock.close()
        raise
    return opened


def certificate(config: Config) -> Certificate:
    """The operator's certificate, or the leaf that the portal's own CA signed. Raises OSError, ValueError."""
    given = supplied.pair(config)
    if given is not None:
        supplied.check(*given, config.portal_host)
        return Certificate(*given)
    places = Places(config)
    return Certificate(places.leaf_certificate, places.leaf_key)


def _raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _runner() -> Callable[[Coroutine[Any, Any, None]], None]:
    """`asyncio.run`, on uvloop when it is installed (1.2 times less CPU per Gbit/s, where there is no native relay)."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.run

    def run(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)

    return run


async def _serve(
    config: Config, options: argparse.Namespace, sockets: list[socket.socket], tls: Certificate, pace: Pace, worker: int
) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    settings = Settings(
        run=Places(config).run,
        pace=pace,
        name="stream" if worker == 0 else f"stream-{worker}",
        published=worker == 0,
        front_proxies=FrontProxies(options.behind_proxy),
        library=config.libexec / LIBRARY,
    )
    async with EngineClient(config.socket) as engine:
        server = StreamServer(settings, engine, lambda lost: FdClient(config.fd_socket, lost))
        await server.start()
        await server.listen(sockets, tls)
        renewal = asyncio.create_task(tls.watch(), name="certificate")
        _log.info("listening on port %d as pid %d", options.port, os.getpid())
        await ended.wait()
        renewal.cancel()
        await server.stop()


def _worker(
    config: Config, options: argparse.Namespace, sockets: list[socket.socket], tls: Certificate, pace: Pace, number: int
) -> None:
    _runner()(_serve(config, options, sockets, tls, pace, number))


def _supervise(
    config: Config, options: argparse.Namespace, listeners: list[list[socket.socket]], tls: Certificate, pace: Pace
) -> None:
    """Keep one process for each set of listeners; a worker that dies is started again. Ends on SIGTERM or SIGINT."""
    running: dict[int, int] = {}
    stopping = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = True
        for pid in running:
            os.kill(pid, signal.SIGTERM)

    def start(worker: int) -> None:
        pid = os.fork()
        if pid:
            running[pid] = worker
            return
        status = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            _worker(config, options, listeners[worker], tls, pace, worker)
            status = 0
        except BaseException:
            _log.exception("worker %d", worker)
        finally:
            os._exit(status)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    for worker in range(len(listeners)):
        start(worker)
    while running:
        pid, status = os.wait()
        worker = running.pop(pid)
        if not stopping:
            _log.error("worker %d ended with status %d; starting it again", worker, os.waitstatus_to_exitcode(status))
            time.sleep(_RESTART_PAUSE)
            if not stopping:
                start(worker)


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM. Exit status: 0, 2 for a bad command line, 9 when the port, the user or the certificate cannot be had."""
    config = Config.from_environment()
    options = arguments(config, argv)
    try:
        logs.configure(options.log_format, logging.DEBUG if options.verbose else logging.INFO)
        _raise_descriptor_limit()
        listeners = [open_listeners(options.bind, options.port) for _ in range(options.workers)]
        privileges.drop(config.portal_user)
        hosts.serve(config.portal_host, supplied.pair(config) is not None)
        tls = certificate(config)
    except ValueError as exc:
        print(f"portal stream: {exc}", file=sys.stderr)
        return _EXIT_UNAVAILABLE
    except OSError as exc:
        print(f"portal stream: port {options.port} of {', '.join(options.bind)}, or the certificate: {exc}", file=sys.stderr)
        return _EXIT_UNAVAILABLE
    except LookupError as exc:
        print(f"portal stream: user {config.portal_user}: {exc}; `tclone up` makes it", file=sys.stderr)
        return _EXIT_UNAVAILABLE
    pace = Pace(UPGRADE_SPACING_SECONDS)
    if options.workers == 1:
        _worker(config, options, listeners[0], tls, pace, 0)
    else:
        _supervise(config, options, listeners, tls, pace)
    return 0
