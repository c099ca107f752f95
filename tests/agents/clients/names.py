"""Names below `localhost` are this machine's, as a line in the hosts file would say it: not every system's resolver knows that."""

import socket

_ask = socket.getaddrinfo


def _asked(host, *arguments, **options):  # type: ignore[no-untyped-def]
    name = host.decode() if isinstance(host, bytes) else host or ""
    return _ask("127.0.0.1" if name.endswith(".localhost") else host, *arguments, **options)


socket.getaddrinfo = _asked
