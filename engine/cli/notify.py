"""Tells a service manager how far we are, by its protocol sd_notify(3): a datagram to the socket that it names. Without one nothing happens."""

from __future__ import annotations

import contextlib
import os
import socket

_VARIABLE = "NOTIFY_SOCKET"


def managed() -> bool:
    """Whether a service manager started us: what we print then goes into its log."""
    return bool(os.environ.get(_VARIABLE))


def tell(**values: str | int) -> None:
    """Such as READY=1, STATUS="starting engine" or STOPPING=1. A manager that does not listen is left alone: it has a time limit of its own."""
    address = os.environ.get(_VARIABLE, "")
    if not address:
        return
    # "@" stands for the zero byte that a name outside the file system begins with.
    name = "\0" + address[1:] if address.startswith("@") else address
    message = "\n".join(f"{key}={value}" for key, value in values.items())
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.sendto(message.encode(), name)


def without(environment: dict[str, str]) -> dict[str, str]:
    """An environment for processes that are not to speak for us."""
    return {key: value for key, value in environment.items() if key != _VARIABLE}
