"""What `tclone up` prepares on the host: the portal's user, the directories, and a free port."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import socket
import subprocess
from pathlib import Path

import psutil

from engine.cli.unprivileged import first_closed
from engine.config import Config
from engine.errors import Conflict, Unavailable


def require_root(command: str) -> None:
    """Raises Unavailable unless we are root."""
    if os.geteuid() != 0:
        raise Unavailable(f"`tclone {command}` needs root; run it with sudo")


def ensure_user(name: str) -> pwd.struct_passwd:
    """The portal's account, made as a system account without home, shell or password when absent."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        pass
    argv = ["useradd", "--system", "--no-create-home", "--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin"]
    try:
        grp.getgrnam(name)
        argv += ["--gid", name]
    except KeyError:
        argv += ["--user-group"]
    made = subprocess.run([*argv, name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise Unavailable(f"cannot create the system user {name}: {made.stderr.strip()}; create it, or set TCLONE_PORTAL_USER")
    return pwd.getpwnam(name)


def prepare_directories(config: Config, account: pwd.struct_passwd) -> None:
    """Data and run directories, and the portal's own below the data directory. Raises Unavailable when the portal could not reach them."""
    for directory in (config.data, config.run):
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        closed = first_closed(directory, account.pw_uid, account.pw_gid)
        if closed is not None:
            raise Unavailable(
                f"user {account.pw_name} cannot enter {closed}, which leads to {directory}; "
                f"run `chmod o+x {closed}` or choose another place with TCLONE_DATA and TCLONE_RUN"
            )
    logs(config).mkdir(mode=0o750, exist_ok=True)
    for portal in (config.data / "portal", config.run / "portal"):
        portal.mkdir(mode=0o700, exist_ok=True)
        os.chown(portal, account.pw_uid, account.pw_gid, follow_symlinks=False)


def logs(config: Config) -> Path:
    """Where each service's log lies."""
    return config.data / "log"


def _listener(port: int) -> str:
    """Who listens on a TCP port, as `name (pid N)`, or `another process`."""
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            try:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
            except psutil.NoSuchProcess:
                break
    return "another process"


def require_free_port(port: int) -> None:
    """Raises Conflict naming who has the port. Tries IPv4 and IPv6, since the portal listens on both."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # a host without IPv6
        with probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind((address, port))
                probe.listen(1)
            except OSError as failure:
                if family == socket.AF_INET6 and failure.errno != errno.EADDRINUSE:
                    continue
                raise Conflict(
                    f"port {port} is taken by {_listener(port)}; stop it, or use `tclone up --port N` (or TCLONE_PORTAL_PORT)"
                ) from failure
