"""Socket options of the data plane, and the sizes that bound what it buffers."""

from __future__ import annotations

import asyncio
import socket

# Selkies steers its rate by the time from send to acknowledgement, so every byte that waits in the proxy hides congestion from it: at
# 10 Mbit/s, 1 MB is 0.8 s of lag. The worst case in one direction is CHUNK + HIGH_WATER in the relay and as much again below asyncio's TLS.
CHUNK = 64 * 1024
HIGH_WATER = 64 * 1024
BUFFERED_LIMIT = 256 * 1024

_KEEPALIVE_SECONDS = 30
_KEEPALIVE_PROBES = 3
_USER_TIMEOUT_MS = 30_000
_NOTSENT_LOWAT = 128 * 1024
_RECEIVE_BUFFER = 128 * 1024
_TCP_NOTSENT_LOWAT = 25  # linux/tcp.h; Python 3.11 has no name for it


def _keepalive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_SECONDS // _KEEPALIVE_PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)


def is_tcp(sock: object) -> bool:
    """Whether `sock` takes TCP options (a control connection is a Unix socket and does not)."""
    return getattr(sock, "family", None) in (socket.AF_INET, socket.AF_INET6)


def tune_viewer(sock: socket.socket) -> None:
    """A browser's connection: no delay, dead peers found in 30 s, at most 128 KiB unsent in the kernel.

    TCP_USER_TIMEOUT also ends a viewer whose window stayed closed for 30 s; its page connects again by itself.
    """
    if not is_tcp(sock):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _keepalive(sock)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _NOTSENT_LOWAT)


def tune_desktop(sock: socket.socket) -> None:
    """A connection to a workspace's desktop: no delay, and a receive buffer that the kernel does not grow to megabytes of hidden lag."""
    if not is_tcp(sock):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
    _keepalive(sock)


def socket_of(transport: asyncio.BaseTransport) -> socket.socket | None:
    """The transport's socket (a wrapper that takes options), or None when it is closed already."""
    return transport.get_extra_info("socket")
