"""Stands in for tclone-livefork: speaks its protocol and behaves as the file `behaviour` beside it says.

The engine's transaction is tested with it for the things a good fork program never does. It rebuilds nothing: the waiting
container itself plays the branch.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path


def main() -> int:
    behaviour = (Path(sys.argv[0]).parent / "behaviour").read_text().strip()
    if sys.argv[1] in ("tidy", "learn"):
        return 0
    arguments = sys.argv[2:]
    (Path(sys.argv[0]).parent / "arguments").write_text(" ".join(arguments))
    control = socket.socket(fileno=int(arguments[arguments.index("--control") + 1]))
    branches = [arguments[index + 1].split(":")[0] for index, word in enumerate(arguments) if word == "--branch"]

    def tell(**message: object) -> None:
        control.send(json.dumps(message).encode())

    def phase(name: str) -> None:
        tell(event="phase", name=name, ms=1.5)
        if behaviour == f"die at {name}":
            os.kill(os.getpid(), signal.SIGKILL)
        if behaviour == f"hang at {name}":
            while True:
                time.sleep(60)

    if behaviour == "refuse":
        tell(event="error", code="unsupported", message="pid 7 (probe) descriptor 5: an io_uring")
        return 3
    if behaviour == "garbage":
        control.send(b"\xff not json")
        time.sleep(60)
    if behaviour == "silent end":
        print("the reason is here", file=sys.stderr)
        return 1
    phase("preflight")
    phase("frozen")
    if behaviour == "fail with roots unread":
        time.sleep(1)
        tell(event="error", code="limit", message="the real reason")
        return 1
    for _ in branches:
        message, fds, _, _ = socket.recv_fds(control, 4096, 1)
        if json.loads(message)["op"] != "root" or len(fds) != 1:
            return 1
        root = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fds[0])
        if "bin" not in os.listdir(root):
            tell(event="error", code="internal", message="that is no root")
            return 1
    # "busy N": the first N forks meet the source in a state that passes.
    calls = Path(sys.argv[0]).parent / "calls"
    tries = int(calls.read_text()) + 1 if calls.exists() else 1
    calls.write_text(str(tries))
    if behaviour.startswith("busy ") and tries <= int(behaviour.split()[1]):
        tell(event="error", code="busy", message="pid 9 (sh) was ended while it was being copied")
        return 5
    if behaviour == "slow, then busy":
        time.sleep(3.5)
        tell(event="error", code="busy", message="pid 9 (sh) was ended while it was being copied")
        return 5
    phase("captured")
    phase("resumed")
    if behaviour == "one branch fails":
        tell(event="branch", id=branches[0], error="cannot map 0x1000 in pid 3")
    phase("rebuilt")
    phase("usable")
    if behaviour == "branch dies":
        initial = next(arguments[index + 1] for index, word in enumerate(arguments) if word == "--branch").split(":")[2]
        os.kill(int(initial), signal.SIGKILL)
    tell(event="done", mode="copy", processes=2, threads=2, bytes_copied=4096, ms={"copy": 0.5})
    return 0


if __name__ == "__main__":
    sys.exit(main())
