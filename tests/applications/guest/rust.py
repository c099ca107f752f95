"""A server on Rust's tokio (hickory-dns), asked by UDP and over one TCP connection that outlives the fork."""

from __future__ import annotations

import os
import socket
import struct
import sys
import time

from application import HOME, alive, background, expect, grows, log, main, wait_for

_PORT = 5399
# The server closes a connection on which nothing is asked for 5 s, which a branch that is made on a busy machine may take.
_CONFIGURATION = """listen_addrs_ipv4 = ["127.0.0.1"]
listen_port = 5399
directory = "%s"
tcp_request_timeout = 600
[[zones]]
zone = "example.test"
zone_type = "Primary"
file = "zone"
"""
_ZONE = """example.test. 60 IN SOA ns.example.test. root.example.test. 1 3600 600 86400 60
example.test. 60 IN NS ns.example.test.
ns.example.test. 60 IN A 10.1.2.3
www.example.test. 60 IN A 10.4.5.6
"""
_WANTED = bytes([10, 4, 5, 6])


def _query(number: int) -> bytes:
    name = b"".join(bytes([len(part)]) + part for part in (b"www", b"example", b"test")) + b"\0"
    return struct.pack(">HHHHHH", number & 0xFFFF, 0x0100, 1, 0, 0, 0) + name + struct.pack(">HH", 1, 1)


def ask_for_ever() -> None:
    """Ask over one TCP connection; ends with a wrong answer or the connection."""
    connection = socket.create_connection(("127.0.0.1", _PORT))
    answers = connection.makefile("rb")
    number = 0
    while True:
        number += 1
        query = _query(number)
        connection.sendall(struct.pack(">H", len(query)) + query)
        (size,) = struct.unpack(">H", answers.read(2))
        answer = answers.read(size)
        if answer[:2] != query[:2] or _WANTED not in answer:
            sys.exit(f"answer {number}: {answer!r}")
        print(number, flush=True)
        time.sleep(0.02)


def _by_udp() -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(2)
        client.sendto(_query(os.getpid()), ("127.0.0.1", _PORT))
        return _WANTED in client.recv(512)


def _answers() -> int:
    return int(log("client").split()[-1])


def start() -> None:
    HOME.mkdir(exist_ok=True)
    (HOME / "named.toml").write_text(_CONFIGURATION % HOME)
    (HOME / "zone").write_text(_ZONE)
    background("server", "hickory-dns", "-c", str(HOME / "named.toml"), "-z", str(HOME))
    wait_for("an answer by UDP", _by_udp)
    background("client", sys.executable, __file__, "ask")
    wait_for("answers by TCP", lambda: _answers() > 5)


def check(side: str) -> None:
    grows("the client", _answers)
    wait_for("an answer by UDP", _by_udp)
    expect(alive("client") and alive("server"), log("client")[-300:] + log("server")[-1000:])
    (HOME / "mark").write_text(side)


def verify(side: str) -> None:
    grows("the client", _answers)
    expect((HOME / "mark").read_text() == side, (HOME / "mark").read_text())


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        ask_for_ever()
    main(start, check, verify)
