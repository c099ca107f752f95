"""What has to be there before the portal's processes start: directories, certificates, the first password."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from engine.config import Config
from portal import accounts, certificates, hosts, oidc, supplied
from portal.database import connect
from portal.places import Places


@dataclass(frozen=True)
class Prepared:
    """`password` is set only by the call that made it: print it then, it cannot be had again. `fingerprint` is the CA's SHA-256."""

    password: str | None
    fingerprint: str
    ca: Path


def prepare(config: Config) -> Prepared:
    """Make what is missing; safe to repeat. As root everything comes to belong to `config.portal_user`.

    Raises OSError, KeyError (no such user), sqlite3.Error, ValueError (the host name, or a certificate that cannot be used).
    """
    places = Places(config)
    make_directory(places.data)
    make_directory(places.run)
    hosts.check(config.portal_host)
    given = supplied.pair(config)
    if given is not None:
        supplied.check(*given, config.portal_host)
    oidc.settings(config)
    fingerprint = certificates.ensure(places, config.portal_host)
    connection = connect(places.database)
    try:
        password = accounts.ensure_password(connection)
    finally:
        connection.close()
    if os.geteuid() == 0:
        _give_to(config.portal_user, places)
    return Prepared(password, fingerprint, places.ca_certificate)


def make_directory(path: Path) -> None:
    """A directory of mode 0700, whatever the umask."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)


def _give_to(user: str, places: Places) -> None:
    account = pwd.getpwnam(user)
    for top in (places.data, places.run):
        for path in [top, *top.rglob("*")]:
            # The portal's user may have put links there: change the link, never what it points to.
            os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)
