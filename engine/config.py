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
