"""A Jupyter server with a live kernel: its variables are there, and the kernel answers through the server."""

from __future__ import annotations

import json
import os
import uuid

from websockets.sync.client import connect

from application import HOME, PATIENCE, alive, background, expect, get, log, main, wait_for

_PORT = 8888
_URL = f"127.0.0.1:{_PORT}"


def _execute(code: str) -> str:
    """What the kernel prints for a piece of code."""
    kernel = (HOME / "kernel").read_text()
    message = {
        "header": {"msg_id": uuid.uuid4().hex, "username": "", "session": uuid.uuid4().hex, "msg_type": "execute_request", "version": "5.3"},
        "parent_header": {}, "metadata": {}, "channel": "shell", "buffers": [],
        "content": {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False, "stop_on_error": True},
    }  # fmt: skip
    printed = ""
    with connect(f"ws://{_URL}/api/kernels/{kernel}/channels", open_timeout=PATIENCE) as socket:
        socket.send(json.dumps(message))
        while True:
            answer = json.loads(socket.recv(timeout=PATIENCE))
            if answer["parent_header"].get("msg_id") != message["header"]["msg_id"]:
                continue
            if answer["msg_type"] == "stream":
                printed += answer["content"]["text"]
            if answer["msg_type"] == "error":
                return "".join(answer["content"]["traceback"])
            if answer["msg_type"] == "status" and answer["content"]["execution_state"] == "idle":
                return printed


def start() -> None:
    HOME.mkdir(exist_ok=True)
    background(
        "server", "jupyter-server", "--no-browser", f"--port={_PORT}", "--ip=127.0.0.1", "--IdentityProvider.token=",
        "--ServerApp.password=", "--ServerApp.disable_check_xsrf=True", f"--ServerApp.root_dir={HOME}", *(["--allow-root"] if os.getuid() == 0 else []),
    )  # fmt: skip
    wait_for("the server", lambda: get(f"http://{_URL}/api"))
    (HOME / "kernel").write_text(json.loads(get(f"http://{_URL}/api/kernels", b"{}"))["id"])
    wait_for("the kernel", lambda: _execute("value = 41; print('ready')") == "ready\n")


def check(side: str) -> None:
    wait_for("the kernel's variable", lambda: _execute("print(value + 1)") == "42\n")
    _execute(f"value = {side!r}")
    expect(alive("server"), log("server")[-2000:])


def verify(side: str) -> None:
    wait_for("the mark", lambda: _execute("print(value)") == f"{side}\n")


if __name__ == "__main__":
    main(start, check, verify)
