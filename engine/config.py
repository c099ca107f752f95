"""Where things are: the only module that reads the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

# Bytes that a workspace may use when nobody said otherwise.
DEFAULT_MEMORY = 4 << 30
REPO = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Config:
    """Paths and settings of one engine. All paths are absolute."""

    data: Path
    run: Path
    libexec: Path
    images: Path
    portal_port: int
    portal_user: str
    cache_directory: Path | None = None
    portal_host: str = "tclone.localhost"
    portal_bind: tuple[str, ...] = ("127.0.0.1", "::1")
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    # How the portal's processes log: text or json (docs/how-to/operate.md).
    log_format: str = "text"
    # Where the portal sends traces; empty: nowhere. The library reads its other OTEL_* variables by itself.
    otlp_endpoint: str = ""
    # Addresses and networks of front proxies, whose word on where a request comes from is taken.
    front_proxies: tuple[str, ...] = ()
    # Login by an identity provider (docs/how-to/oidc.md); none when the issuer is empty.
    oidc_issuer: str = ""
    oidc_client: str = ""
    oidc_secret: Path | None = None
    oidc_allowed: tuple[str, ...] = ()
    oidc_admins: str = ""

    @classmethod
    def from_environment(cls) -> "Config":
        env = os.environ
        return cls(
            data=Path(env.get("TCLONE_DATA", "/var/lib/tclone")).absolute(),
            run=Path(env.get("TCLONE_RUN", "/run/tclone")).absolute(),
            libexec=Path(env.get("TCLONE_LIBEXEC", REPO / "native" / "build")).absolute(),
            images=Path(env.get("TCLONE_IMAGES", REPO / "images")).absolute(),
            portal_port=int(env.get("TCLONE_PORTAL_PORT", "8443")),
            portal_user=env.get("TCLONE_PORTAL_USER", "tclone"),
            cache_directory=Path(env["TCLONE_CACHE"]).absolute() if env.get("TCLONE_CACHE") else None,
            portal_host=env.get("TCLONE_PORTAL_HOST", "tclone.localhost").lower(),
            portal_bind=_words(env.get("TCLONE_PORTAL_BIND", "127.0.0.1,::1")),
            tls_certificate=Path(env["TCLONE_TLS_CERT"]).absolute() if env.get("TCLONE_TLS_CERT") else None,
            tls_key=Path(env["TCLONE_TLS_KEY"]).absolute() if env.get("TCLONE_TLS_KEY") else None,
            log_format=env.get("TCLONE_LOG_FORMAT", "text"),
            otlp_endpoint=env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or env.get("OTEL_EXPORTER_OTLP_ENDPOINT", ""),
            front_proxies=_words(env.get("TCLONE_BEHIND_PROXY", "")),
            oidc_issuer=env.get("TCLONE_OIDC_ISSUER", ""),
            oidc_client=env.get("TCLONE_OIDC_CLIENT_ID", ""),
            oidc_secret=Path(env["TCLONE_OIDC_SECRET_FILE"]).absolute() if env.get("TCLONE_OIDC_SECRET_FILE") else None,
            oidc_allowed=_words(env.get("TCLONE_OIDC_ALLOW", "")),
            oidc_admins=env.get("TCLONE_OIDC_ADMINS", ""),
        )

    @property
    def socket(self) -> Path:
        return self.run / "engine.sock"

    @property
    def fd_socket(self) -> Path:
        return self.run / "engine-fd.sock"

    @property
    def database(self) -> Path:
        return self.data / "state.db"

    @property
    def pool(self) -> Path:
        return self.data / "pool"

    @property
    def cache(self) -> Path:
        """Image archives. Engines with data directories of their own may share one, as tests do, so that images are built once."""
        return self.cache_directory or self.data / "cache"


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
