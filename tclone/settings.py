"""Where the portal is, and the token that opens it."""

from __future__ import annotations

import ipaddress
import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tclone.errors import LoginNeeded, NotFound

DEFAULT_URL = "https://tclone.localhost:8443"
_MOST_PORT = 65535
_LONGEST_TOKEN = 4096
# Where `tclone up` puts it; the directory is root's and the portal's own.
_SERVED_CA = Path("/var/lib/tclone/portal/tls/ca.pem")


@dataclass(frozen=True)
class Settings:
    """`url` is the portal's origin. Without `ca` the system's authorities are trusted."""

    url: str
    token: str = field(repr=False)
    ca: Path | None

    def trust(self) -> ssl.SSLContext | None:
        """How to check the portal's certificate; None without TLS. Raises NotFound."""
        if not self.url.startswith("https:"):
            return None
        try:
            return ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            raise NotFound(f"{self.ca}: no certificate authority can be read there ({error}); `tclone ca --pem` prints it", code="ca") from None


def found(
    url: str | None = None, token: str | None = None, ca: str | os.PathLike[str] | None = None, token_file: str | os.PathLike[str] | None = None
) -> Settings:
    """The settings: what is given, else of the environment, else of `~/.config/tclone`.

    `TCLONE_URL`, or this machine's portal (https://tclone.localhost:8443, the port of `TCLONE_PORTAL_PORT`); `TCLONE_TOKEN`, or a file that has it: `TCLONE_TOKEN_FILE`, `~/.config/tclone/token`
    (`token_file` stands above all of these); the authority that signed the portal's certificate: `TCLONE_CA`, `~/.config/tclone/ca.pem`, or
    that of a portal on this machine.
    Raises LoginNeeded without a token, NotFound for a file that is not there, ValueError for an address that is none.
    """
    address = (url or os.environ.get("TCLONE_URL") or _here()).rstrip("/")
    _check(address)
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tclone"
    return Settings(address, _token(token, token_file, home), _authority(ca, home))


def _here() -> str:
    """This machine's portal, at the port that `tclone up` would take. Raises ValueError for a port that is none."""
    port = os.environ.get("TCLONE_PORTAL_PORT")
    if not port:
        return DEFAULT_URL
    if not (port.isascii() and port.isdecimal() and 0 < int(port) <= _MOST_PORT):
        raise ValueError(f"TCLONE_PORTAL_PORT is not a port: {port!r}")
    return f"{DEFAULT_URL.rpartition(':')[0]}:{port}"


def _check(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment or parts.path:
        raise ValueError(f"{url!r} is not the address of a portal; it looks like {DEFAULT_URL}")
    if parts.scheme == "http" and not is_local(parts.hostname):
        raise ValueError(f"{url!r}: a token is sent over TLS only; use https")


def is_local(host: str) -> bool:
    """Whether a name or address is this machine by itself."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _token(given: str | None, file_given: str | os.PathLike[str] | None, home: Path) -> str:
    token = given or (None if file_given else os.environ.get("TCLONE_TOKEN"))
    if not token:
        named = file_given or os.environ.get("TCLONE_TOKEN_FILE")
        file = Path(named) if named else home / "token"
        try:
            token = file.read_text()[:_LONGEST_TOKEN]
        except FileNotFoundError:
            raise LoginNeeded(
                f"no token: set TCLONE_TOKEN, or put one into {file}; `tclone token create` and the portal's account page make them", code="login"
            ) from None
        except OSError as error:
            raise NotFound(f"{file}: the token cannot be read: {error.strerror}", code="not_found") from None
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise LoginNeeded("what was given as the token is none: it looks like tct_ and 43 characters", code="login")
    return token


def _authority(given: str | os.PathLike[str] | None, home: Path) -> Path | None:
    named = given or os.environ.get("TCLONE_CA")
    if named:
        return Path(named)
    for file in (home / "ca.pem", _SERVED_CA):
        try:
            with file.open("rb"):
                return file
        except OSError:
            continue
    return None
