"""Where the portal's files and sockets are."""

from __future__ import annotations

from engine.config import Config


class Places:
    """Paths below an engine's data and run directories (docs/reference/portal.md)."""

    def __init__(self, config: Config) -> None:
        self.data = config.data / "portal"
        self.run = config.run / "portal"
        self.database = self.data / "portal.db"
        self.audit = self.data / "audit.jsonl"
        self.tls = self.data / "tls"
        self.sandbox_key = self.data / "sandbox.key"
        self.factor_key = self.data / "factor.key"
        self.ca_certificate = self.tls / "ca.pem"
        self.ca_key = self.tls / "ca.key"
        self.leaf_certificate = self.tls / "leaf.pem"
        self.leaf_key = self.tls / "leaf.key"
        self.control_socket = self.run / "control.sock"
        self.private_socket = self.run / "private.sock"
