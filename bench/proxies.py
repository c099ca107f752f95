"""The proxies that `bench/stream.py` measures: each started between viewers and desktops, on one thread, and ended again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from engine.config import REPO
from engine.errors import Unavailable

_START_SECONDS = 60.0
_STOP_SECONDS = 10.0
_LOG_TAIL_BYTES = 2000
# Where `scripts/setup rivals` puts what is not installed.
RIVALS = Path(os.environ.get("TCLONE_RIVALS", "/var/cache/tclone/rivals"))

# proxy_buffer_size: nginx's default of 4 KiB doubles what it costs (0.46 against 0.24 of a core per Gbit/s).
_NGINX = """
daemon off; worker_processes 1; worker_rlimit_nofile 8192; pid {directory}/nginx.pid; error_log {directory}/nginx.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; proxy_temp_path {directory}/proxy; client_body_temp_path {directory}/body; fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi;
  server {{
    listen 127.0.0.1:{port}{tls_word}; {certificate}
    location / {{
      proxy_pass http://127.0.0.1:{desktop}; proxy_http_version 1.1; proxy_set_header Host $host;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection "upgrade";
      proxy_buffering off; proxy_buffer_size 64k; proxy_buffers 8 64k; proxy_busy_buffers_size 128k; proxy_read_timeout 1h; proxy_send_timeout 1h;
    }}
  }}
}}
"""

_HAPROXY = """
global
  nbthread 1
  maxconn 4000
defaults
  mode http
  timeout connect 5s
  timeout client 1h
  timeout server 1h
  timeout tunnel 1h
frontend viewers
  bind 127.0.0.1:{port}{tls_word}
  default_backend desktops
backend desktops
  server desktop 127.0.0.1:{desktop}
"""


@dataclass(frozen=True)
class Place:
    """Where a proxy runs: its port, the desktops' port, a directory of its own, and the certificate's directory for TLS."""

    port: int
    desktop: int
    directory: Path
    tls: Path | None

    @property
    def pair(self) -> Path:
        """Certificate and key in one file, as HAProxy wants them."""
        assert self.tls is not None
        path = self.directory / "pair.pem"
        path.touch(0o600)
        path.write_text((self.tls / "leaf.pem").read_text() + (self.tls / "leaf.key").read_text())
        return path


@dataclass(frozen=True)
class Contender:
    """A proxy by name. `command` gives its argv (and writes its configuration) or raises Unavailable."""

    name: str
    command: Callable[[Place], list[str]]


def _python(module: str, *words: str) -> list[str]:
    return [sys.executable, "-m", module, *words]


def _ours(loop: str) -> Callable[[Place], list[str]]:
    def command(place: Place) -> list[str]:
        tls = [str(place.tls)] if place.tls is not None else []
        return _python("bench.stream_server", str(place.port), str(place.desktop), str(place.directory), loop, *tls)

    return command


def _message(loop: str) -> Callable[[Place], list[str]]:
    def command(place: Place) -> list[str]:
        tls = [str(place.tls)] if place.tls is not None else []
        return _python("bench.message_proxy", str(place.port), str(place.desktop), loop, *tls)

    return command


def program(name: str) -> list[str]:
    """The words that start a program: the host's own, also where PATH has no sbin, or an unpacked one. Raises Unavailable."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is not None:
        return [found]
    unpacked = RIVALS / "root" / "usr" / "sbin" / name
    if not unpacked.exists():
        raise Unavailable(f"there is no {name}; `scripts/setup rivals` brings it")
    libraries = RIVALS / "root" / "usr" / "lib" / f"{os.uname().machine}-linux-gnu"
    return ["/usr/bin/env", f"LD_LIBRARY_PATH={libraries}", str(unpacked)]


def _nginx(place: Place) -> list[str]:
    certificate = f"ssl_certificate {place.tls}/leaf.pem; ssl_certificate_key {place.tls}/leaf.key;" if place.tls else ""
    path = place.directory / "nginx.conf"
    path.write_text(_NGINX.format(
        port=place.port, desktop=place.desktop, directory=place.directory, certificate=certificate, tls_word=" ssl" if place.tls else "",
    ))  # fmt: skip
    return [*program("nginx"), "-p", str(place.directory), "-c", str(path), "-e", str(place.directory / "start.log")]


def _haproxy(place: Place) -> list[str]:
    path = place.directory / "haproxy.cfg"
    path.write_text(_HAPROXY.format(port=place.port, desktop=place.desktop, tls_word=f" ssl crt {place.pair}" if place.tls else ""))
    return [*program("haproxy"), "-db", "-f", str(path)]


def _configurable(place: Place) -> list[str]:
    script = RIVALS / "node_modules" / "configurable-http-proxy" / "bin" / "configurable-http-proxy"
    if not script.exists():
        raise Unavailable(f"{script} is missing; `scripts/setup rivals` installs it")
    words = [*program("node"), str(script), "--ip", "127.0.0.1", "--port", str(place.port), "--api-port", str(free_port())]
    words += ["--default-target", f"http://127.0.0.1:{place.desktop}", "--log-level", "error"]
    if place.tls is not None:
        words += ["--ssl-key", str(place.tls / "leaf.key"), "--ssl-cert", str(place.tls / "leaf.pem")]
    return words


RELAY = Contender("relay", _ours("native"))
MESSAGE = Contender("aiohttp", _message("asyncio"))
HAPROXY = Contender("haproxy", _haproxy)
CONTENDERS = (
    RELAY,
    Contender("relay-uvloop", _ours("uvloop")),
    Contender("relay-asyncio", _ours("asyncio")),
    HAPROXY,
    Contender("nginx", _nginx),
    Contender("configurable-http-proxy", _configurable),
    MESSAGE,
    Contender("aiohttp-uvloop", _message("uvloop")),
)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


class Running:
    """`async with Running(contender, place) as proxy`: started and listening, then ended. Raises Unavailable when it does not start."""

    def __init__(self, contender: Contender, place: Place) -> None:
        self.place = place
        self._contender = contender
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Running:
        log_path = self.place.directory / "log"
        argv = self._contender.command(self.place)
        environment = {**os.environ, "PYTHONPATH": str(REPO), "CONFIGPROXY_AUTH_TOKEN": "of no use"}
        with open(log_path, "wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *argv, cwd=REPO, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            await self._listening(log_path)
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _listening(self, log: Path) -> None:
        deadline = asyncio.get_running_loop().time() + _START_SECONDS
        assert self._process is not None
        while asyncio.get_running_loop().time() < deadline and self._process.returncode is None:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.place.port)
                writer.transport.abort()
                return
            await asyncio.sleep(0.05)
        raise Unavailable(f"{self._contender.name} did not start: {log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors='replace').strip()}")

    @property
    def pid(self) -> int:
        """Of its first process."""
        assert self._process is not None
        return self._process.pid

    async def stop(self) -> None:
        """End it; safe to call twice."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), _STOP_SECONDS)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def _processes(self) -> list[psutil.Process]:
        assert self._process is not None
        parent = psutil.Process(self._process.pid)
        return [parent, *parent.children(recursive=True)]

    def pids(self) -> list[int]:
        """Of all its processes."""
        return [process.pid for process in self._processes()]

    def cpu_seconds(self) -> float:
        """Processor time of the proxy until now, of all its threads. The scheduler's own account: `stat` counts in ticks of 4 to 10 ms, at
        which a proxy that sleeps between them is seen too often or too rarely."""
        tasks = [task for process in self._processes() for task in Path(f"/proc/{process.pid}/task").iterdir()]
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def resident(self) -> int:
        """Bytes of memory that its processes have resident."""
        return sum(process.memory_info().rss for process in self._processes())

    def descriptors(self) -> int:
        """Open descriptors of its processes."""
        return sum(process.num_fds() for process in self._processes())
