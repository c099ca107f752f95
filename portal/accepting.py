"""Accepting on a listener of the host that the engine opened, and that comes and goes with it."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

_log = logging.getLogger(__name__)
_ACCEPT_PAUSE = 0.2
_PASSING = frozenset({errno.ECONNABORTED, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """`accepted` is called with each client; `on_dead` when the listener was shut down by somebody else; `full` tells when nobody more is taken."""

    def __init__(self, accepted: Callable[[socket.socket], None], on_dead: Callable[[], None], full: Callable[[], bool] = lambda: False) -> None:
        self._accepted = accepted
        self._on_dead = on_dead
        self._full = full
        self._listener: socket.socket | None = None

    @property
    def listening(self) -> bool:
        """Whether there is a listener."""
        return self._listener is not None

    def listen(self, listener: socket.socket) -> None:
        """Accept on it from now on; it is closed with this."""
        listener.setblocking(False)
        self._listener = listener
        self.watch()

    def stop(self) -> None:
        """Give the listener back: a new engine cannot bind a port that is still held here."""
        listener, self._listener = self._listener, None
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()

    def watch(self) -> None:
        """Accept again, after a pause or when there is room again."""
        if self._listener is not None and not self._full():
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Take one client. Not `loop.sock_accept`: cancelled at the wrong moment, that loses an accepted socket."""
        loop = asyncio.get_running_loop()
        assert self._listener is not None
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            loop.remove_reader(self._listener)
            if error.errno in _PASSING:
                loop.call_later(_ACCEPT_PAUSE, self.watch)
                return
            # EINVAL: the engine shut the listener down, because the workspace or its server goes, or the engine starts anew.
            _log.debug("a listener ended: %s", error)
            self.stop()
            self._on_dead()
            return
        self._accepted(client)
        if self._listener is not None and self._full():
            loop.remove_reader(self._listener)
