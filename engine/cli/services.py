"""The processes that make up a running TClone, and what of the portal the command line shows."""

from __future__ import annotations

import contextlib
import hashlib
import os
import ssl
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.cli import host, notify, portal_account
from engine.cli.supervisor import Check, Service
from engine.cli.unprivileged import SETPRIV, launcher
from engine.cli.weights import Standing
from engine.config import Config
from engine.errors import NotFound

# The interpreter by the path it was started with: that of the virtual environment.
COMMAND = [sys.executable, "-m", "engine.cli.main"]
_CHECK_SECONDS = 5.0
# Generous: opening the pool may have to make a file system, recovery looks at every workspace, and on a host busy with other work
# the imports alone have been seen to take half a minute. A service that ends by itself is reported at once all the same.
_START_SECONDS = 120.0
# Before everything else the streams, which people look at; then what they click on. Workspaces have the default of 100 together. When
# memory runs out something inside a workspace goes before either.
STANDINGS = {"control": Standing(weight=500), "stream": Standing(weight=1000, oom_score_adj=-500)}


@dataclass(frozen=True)
class Authority:
    """The portal's CA certificate: where it lies and its SHA-256, colon separated."""

    path: Path
    fingerprint: str


def authority(config: Config) -> Authority:
    """The portal's CA. Raises NotFound before the first `tclone up`."""
    path = config.data / "portal" / "tls" / "ca.pem"
    try:
        certificate = ssl.PEM_cert_to_DER_cert(path.read_text())
    except FileNotFoundError:
        raise NotFound(f"no CA certificate at {path} yet; the first `tclone up` makes it") from None
    digest = hashlib.sha256(certificate).hexdigest().upper()
    return Authority(path, ":".join(digest[at : at + 2] for at in range(0, len(digest), 2)))


def first_start(config: Config) -> str | None:
    """Prepare the portal's keys and account; the password when this call made it, which is only ever the first."""
    return portal_account.ask(config, "prepare", service_environment(config, config.portal_port))


def portal(config: Config, what: str, **wanted: Any) -> Any:
    """Have the portal's users or tokens changed or listed (portal.administration). Raises NotFound before the first `tclone up`."""
    authority(config)
    return portal_account.ask(config, what, service_environment(config, config.portal_port), **wanted)


def new_password(config: Config) -> str:
    """Set a new generated password for the first account, which ends its sessions. Raises NotFound before the first `tclone up`."""
    return portal(config, "user-passwd", user="admin")["password"]


def service_environment(config: Config, port: int) -> dict[str, str]:
    """Our own environment with every path absolute: the services run in another directory than we."""
    return {
        **notify.without(dict(os.environ)),
        "TCLONE_DATA": str(config.data),
        "TCLONE_RUN": str(config.run),
        "TCLONE_LIBEXEC": str(config.libexec),
        "TCLONE_IMAGES": str(config.images),
        "TCLONE_CACHE": str(config.cache),
        "TCLONE_PORTAL_PORT": str(port),
        "TCLONE_PORTAL_USER": config.portal_user,
        **({"TCLONE_TLS_CERT": str(config.tls_certificate)} if config.tls_certificate else {}),
        **({"TCLONE_TLS_KEY": str(config.tls_key)} if config.tls_key else {}),
        **({"TCLONE_OIDC_SECRET_FILE": str(config.oidc_secret)} if config.oidc_secret else {}),
        "PYTHONUNBUFFERED": "1",
    }


def _answers(url: str, socket: Path | None = None, host_header: str | None = None) -> Check:
    """A check that `url` answers below 500, over a Unix socket when one is given, asked for by the name `host_header`."""
    import aiohttp  # takes longer than all that the other commands which know of the services do

    headers = {"Host": host_header} if host_header else {}

    async def check() -> bool:
        with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
            connector = aiohttp.UnixConnector(str(socket)) if socket else aiohttp.TCPConnector(force_close=True)
            timeout = aiohttp.ClientTimeout(total=_CHECK_SECONDS)
            async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as session:
                # The certificate is our own and the question is only whether somebody answers.
                async with session.get(url, headers=headers, ssl=False, allow_redirects=False) as answer:
                    return answer.status < 500
        return False

    return check


def _near(config: Config) -> str:
    """An address at which the portal listens, as it stands in a URL. The host's own resolver need not know the portal's name."""
    first = config.portal_bind[0]
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(first, first)
    return f"[{near}]" if ":" in near else near


def all_services(config: Config, port: int) -> list[Service]:
    """Engine, portal control, portal stream: in the order in which each can reach the one before."""
    environment = service_environment(config, port)
    logs = host.logs(config)

    def command(name: str) -> list[str]:
        return [*launcher(config.portal_user, low_ports=port < 1024), sys.executable, "-m", f"portal.{name}"]

    return [
        Service(
            "engine",
            [SETPRIV, "--pdeathsig=TERM", "--", *COMMAND, "engine"],
            logs / "engine.log",
            _answers("http://engine/v1/health", config.socket),
            environment,
            _START_SECONDS,
        ),
        Service(
            "control",
            command("control"),
            logs / "control.log",
            _answers("http://control/healthz", config.run / "portal" / "control.sock"),
            environment,
            _START_SECONDS,
        ),
        Service(
            "stream",
            command("stream"),
            logs / "stream.log",
            _answers(f"https://{_near(config)}:{port}/healthz", host_header=f"{config.portal_host}:{port}"),
            environment,
            _START_SECONDS,
        ),
    ]
