"""Commands that build images: each dies with the engine and takes its mounts and children along.

A builder that is killed with SIGKILL cannot clean up. So every command runs in its own pid and mount namespaces below two
death signals: the kernel ends `unshare` when the engine's thread dies, and pid 1 of the namespace, hence all in it,
when `unshare` dies. Mounts vanish with the namespace. Only files remain, and the store removes those at the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from engine.errors import Internal, NoSpace, Unavailable

_CONFINE = (
    "setpriv", "--pdeathsig", "KILL", "--",
    "unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--",
)  # fmt: skip
# Lines of output that an error message quotes.
_QUOTED_LINES = 12
# A longer line is cut: a progress bar without newlines must not fill the memory.
_LINE_BYTES = 1 << 16

# Proxies and certificates as the host is set up; nothing else of the engine's environment reaches a build.
_INHERITED = (
    "http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "PIP_CERT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS",
    "PIP_CONFIG_FILE", "PIP_TRUSTED_HOST", "HOME",
)  # fmt: skip


# Debian's own programs come before whatever the engine's user has: mmdebstrap calls `python3` for each package, and one of pyenv's takes six times as long.
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a build command."""
    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    path = ":".join([_PATH, os.environ.get("PATH", "/usr/local/sbin:/usr/local/bin")])
    return {**kept, "PATH": path, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", **(extra or {})}


async def run_confined(
    argv: Sequence[str],
    what: str,
    on_line: Callable[[str], None] | None = None,
    *,
    network: bool = True,
    env: Mapping[str, str] | None = None,
    stdin: int = asyncio.subprocess.DEVNULL,
) -> None:
    """Run one command to its end, its output passed line by line to `on_line`.

    `what` names the work in errors: "installing packages of webtop-xfce". Cancelling kills the command and all it started.
    Raises NoSpace when the output says the disk is full, Unavailable when the program is missing, Internal otherwise.
    """
    confine = _CONFINE if network else (*_CONFINE[:-1], "--net", "--")
    try:
        process = await asyncio.create_subprocess_exec(
            *confine, *argv,
            stdin=stdin, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env=environment(env), limit=_LINE_BYTES,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise Unavailable(f"{what}: {error.filename} is not installed; `tclone doctor` lists what is needed") from None
    tail: deque[str] = deque(maxlen=_QUOTED_LINES)
    try:
        async for line in _lines(process.stdout):
            tail.append(line)
            if on_line is not None:
                on_line(line)
        status = await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            await process.wait()
    if status != 0:
        raise _failure(what, status, "\n".join(tail))


async def run_in_root(root: Path, argv: Sequence[str], what: str, env: Mapping[str, str] | None = None) -> None:
    """Run a command with `root` as its root, /proc and a few devices there, and no network."""
    script = (
        'mount -t proc proc "$0/proc" && mount -t tmpfs -o mode=755 tmpfs "$0/dev" && cd "$0/dev" && '
        "for n in null zero full random urandom; do touch $n && mount --bind /dev/$n $n || exit 1; done; mkdir shm; "
        'ln -s /proc/self/fd fd; cd /; exec chroot "$0" "$@"'
    )
    inside = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", **(env or {})}
    await run_confined(["sh", "-c", script, str(root), *argv], what, network=False, env=inside)


async def _lines(stream: asyncio.StreamReader):
    while True:
        try:
            raw = await stream.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                yield error.partial.decode(errors="replace").rstrip()
            return
        except asyncio.LimitOverrunError as error:
            raw = await stream.readexactly(error.consumed)
        yield raw.decode(errors="replace").rstrip()


def _failure(what: str, status: int, output: str) -> Exception:
    if "No space left on device" in output:
        return NoSpace(f"{what}: no space left; free some space in the data directory and build again")
    if "failed to execute" in output and status == 127:
        return Unavailable(f"{what}: a program is missing on this host:\n{output}")
    return Internal(f"{what} failed with status {status}; nothing is kept, build again after the cause is fixed:\n{output}")
