"""Redis with an append-only file and a client that counts over one TCP connection."""

from __future__ import annotations

import socket
import sys
import time

from application import HOME, alive, background, expect, grows, log, main, output, wait_for

_PORT = 6399


def count() -> None:
    """Increment a key for ever over one connection; ends with the connection."""
    connection = socket.create_connection(("127.0.0.1", _PORT))
    answers = connection.makefile("rb")
    last = 0
    while True:
        connection.sendall(b"INCR counter\r\n")
        line = answers.readline()
        if not line.startswith(b":"):
            sys.exit(f"the server answered {line!r}")
        if int(line[1:]) != last + 1:
            sys.exit(f"{int(line[1:])} came after {last}")
        last += 1
        time.sleep(0.002)


def _redis(*words: str) -> str:
    return output("redis-cli", "-p", str(_PORT), *words).strip()


def start() -> None:
    HOME.mkdir(exist_ok=True)
    background("server", "redis-server", "--port", str(_PORT), "--dir", str(HOME), "--appendonly", "yes", "--appendfsync", "everysec")
    wait_for("the server", lambda: _redis("PING") == "PONG")
    _redis("SET", "before", "kept")
    background("client", sys.executable, __file__, "count")
    wait_for("the counter", lambda: int(_redis("GET", "counter")) > 20)


def check(side: str) -> None:
    grows("the counter", lambda: int(_redis("GET", "counter")))
    expect(alive("client"), f"the client ended: {log('client')}")
    expect(_redis("GET", "before") == "kept", "a key is lost")
    _redis("SADD", "marks", side)
    _redis("BGREWRITEAOF")
    wait_for("the new append-only file", lambda: "aof_rewrite_in_progress:0" in _redis("INFO", "persistence"))
    expect("aof_last_bgrewrite_status:ok" in _redis("INFO", "persistence"), "the append-only file could not be written anew")


def verify(side: str) -> None:
    expect(_redis("SMEMBERS", "marks") == side, f"marks: {_redis('SMEMBERS', 'marks')}")
    output("redis-check-aof", str(HOME / "appendonlydir" / "appendonly.aof.manifest"))


if __name__ == "__main__":
    if sys.argv[1] == "count":
        count()
    main(start, check, verify)
