"""Runs one command inside a workspace for the OSWorld server, and lets it act on the desktop meanwhile.

One JSON object a line. stdin: the request, then `{"answer": id, …}` to what is asked. stdout: `{"ask": id, "actions": […]}` or `{"ask": id, "screenshot": true}`
for programs of the command, who reach this one by the abstract socket in TCLONE_INPUT; last `{"done": {…}}`. The end of stdin, or SIGHUP, ends the command.

request: `{"argv": […] | "shell": text | "code": text, "interpreter": [..]?, "cwd"?, "seconds", "merge"?: stderr into stdout, "detach"?: start it and leave it}`
done: `{"returncode", "output", "error"}`, with "timeout": true when it was ended, "base64": true when both outputs are that, or `{"failed": why}` when it could
not be started.
"""

import base64
import itertools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
# Of each output; what comes after it is read and dropped.
MOST_OUTPUT = 4 << 20
# What a command left in the background may hold its output open.
LINGER_SECONDS = 0.3
MOST_LINE = 4 << 20
# The directories of both browsers' profiles, below ~/.config.
OURS, THEIRS = "chromium", "google-chrome"
# Whose environment people's programs get from the desktop.
SESSION = ("xfce4-session", "labwc")

_sending = threading.Lock()


def send(message):
    with _sending:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def session_environment():
    """The desktop session's variables; none when there is no session of this user."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            # A process may be called anything: names are bytes.
            with open(f"/proc/{pid}/comm", "rb") as file:
                if os.fsdecode(file.read().strip()) not in SESSION or os.fstat(file.fileno()).st_uid != os.getuid():
                    continue
            with open(f"/proc/{pid}/environ", "rb") as file:
                pairs = [entry.partition(b"=") for entry in file.read(1 << 20).split(b"\0") if b"=" in entry]
            return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
        except OSError:
            continue
    return {}


def environment():
    found = {**os.environ, **session_environment()}
    found["PATH"] = f"{HERE}/bin:{found.get('PATH', '/usr/local/bin:/usr/bin:/bin')}"
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [f"{HERE}/lib", found.get("PYTHONPATH")]))
    return found


def one_profile():
    """Chromium's profile by Chrome's name, too: there tasks lay a history, and evaluators look for bookmarks, settings and cookies."""
    if shutil.which(OURS) is None or shutil.which(THEIRS) is not None:
        return
    config = os.path.expanduser("~/.config")
    link, target = (OURS, THEIRS) if os.path.isdir(f"{config}/{THEIRS}") else (THEIRS, OURS)
    if os.path.lexists(f"{config}/{link}"):
        return
    try:
        os.makedirs(f"{config}/{target}", mode=0o700, exist_ok=True)
        os.symlink(target, f"{config}/{link}")
    except OSError:
        # Another command has just made it, or this user has no such directory: then there is no profile either.
        pass


class Asking:
    """Passes on what programs of the command ask, each connection one question at a time."""

    def __init__(self):
        self.name = f"tclone-input-{secrets.token_hex(16)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind("\0" + self.name)
        self._listener.listen(16)
        self._numbers = itertools.count(1)
        self._waiting = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def answered(self, message):
        waiting = self._waiting.pop(message.pop("answer"), None)
        if waiting is not None:
            event, slot = waiting
            slot.append(message)
            event.set()

    def _accept(self):
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection, connection.makefile("rwb") as file:
            while True:
                try:
                    line = file.readline(MOST_LINE)
                    question = json.loads(line) if line else None
                except (OSError, ValueError):
                    return
                if not isinstance(question, dict):
                    return
                number, event, slot = next(self._numbers), threading.Event(), []
                self._waiting[number] = (event, slot)
                send({**question, "ask": number})
                event.wait()
                try:
                    file.write(json.dumps(slot[0]).encode() + b"\n")
                    file.flush()
                except OSError:
                    return


def collect(stream, kept):
    while chunk := stream.read1(65536):
        kept += chunk[: max(0, MOST_OUTPUT - len(kept))]


def command_of(request, directory):
    """What to start."""
    if "shell" in request:
        return ["/bin/sh", "-c", request["shell"]]
    if "code" in request:
        # A file, not an argument: the kernel takes 128 KiB of one.
        path = os.path.join(directory, "code")
        with open(path, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(request["code"])
        return [*request["interpreter"], path]
    return [os.path.expanduser(word) if word.startswith("~/") else word for word in request["argv"]]


def detached(request):
    argv = command_of(request, "")
    nothing = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        process = subprocess.Popen(argv, cwd=request.get("cwd"), env=environment(), start_new_session=True, **nothing)
    except OSError as error:
        return {"failed": str(error)}
    return {"returncode": None, "output": str(process.pid), "error": ""}


def attended(request, asking, directory, begun):
    variables = {**environment(), "TCLONE_INPUT": asking.name}
    errors = subprocess.STDOUT if request.get("merge") else subprocess.PIPE
    try:
        process = subprocess.Popen(
            command_of(request, directory), cwd=request.get("cwd"), env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
    except OSError as error:
        return {"failed": str(error)}
    begun(process)
    outputs = [(stream, bytearray()) for stream in (process.stdout, process.stderr) if stream is not None]
    readers = [threading.Thread(target=collect, args=pair, daemon=True) for pair in outputs]
    for reader in readers:
        reader.start()
    late = False
    try:
        process.wait(request["seconds"])
    except subprocess.TimeoutExpired:
        late = True
        end(process)
        process.wait()
    for reader in readers:
        reader.join(LINGER_SECONDS)
    # Not as text: escaped it could be six times as long.
    texts = [base64.b64encode(bytes(kept)).decode() for _, kept in outputs]
    return {"returncode": process.returncode, "output": texts[0], "error": texts[1] if len(texts) > 1 else "", "timeout": late, "base64": True}


def end(process):
    """The command and what it started, but for what has left its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def listen(asking, running):
    """Take answers until the server is gone; then nobody wants the command any more."""
    for line in sys.stdin:
        try:
            asking.answered(json.loads(line))
        except (ValueError, KeyError, TypeError):
            continue
    for process in running:
        end(process)
    os._exit(1)


def main():
    request = json.loads(sys.stdin.readline())
    one_profile()
    if request.get("cwd") and not os.path.isdir(request["cwd"]):
        send({"done": {"failed": f"no directory {request['cwd']}"}})
        return
    if request.get("detach"):
        send({"done": detached(request)})
        return
    running = []

    def hung_up(number, frame):
        for process in running:
            end(process)
        os._exit(1)

    signal.signal(signal.SIGHUP, hung_up)
    asking = Asking()
    threading.Thread(target=listen, args=(asking, running), daemon=True).start()
    with tempfile.TemporaryDirectory() as directory:
        done = attended(request, asking, directory, running.append)
    send({"done": done})
    # Threads may still wait for programs in the background.
    os._exit(0)


if __name__ == "__main__":
    main()
