"""Who an E2B client is: API tokens in its own headers, and for each sandbox a key that opens this one alone."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from aiohttp import web

from portal import own_secret, tokens
from portal.errors import LoginNeeded
from portal.identity import Identity
from portal.principal import Principal

API_HEADER = "X-API-Key"
SANDBOX_HEADER = "X-Access-Token"
ID_HEADER = "E2b-Sandbox-Id"
_PREFIX = "tcs_"
_LONGEST = 200


class Keys:
    """`open` before use. A sandbox's key names its token and is signed for this sandbox: revoking the token ends it, and it opens no child."""

    def __init__(self, identity: Identity, path: Path) -> None:
        self._identity = identity
        self._path = path
        self._secret = b""

    def open(self) -> None:
        """Read the signing secret, which is made at the first start. Raises OSError."""
        self._secret = own_secret.read(self._path, "clients get new keys when they connect again")

    def of_api(self, request: web.Request) -> Principal:
        """Whose API key it is. Raises LoginNeeded."""
        return self._identity.of_secret(_only(request, API_HEADER))

    def of_sandbox(self, request: web.Request) -> tuple[Principal, str]:
        """Whose key of which sandbox it is. Raises LoginNeeded, also for the key of another sandbox."""
        workspace, shown = _only(request, ID_HEADER), _only(request, SANDBOX_HEADER)
        token, _, signature = shown.removeprefix(_PREFIX).partition(".")
        if not shown.startswith(_PREFIX) or not hmac.compare_digest(signature.encode(), self._signature(token, workspace).encode()):
            raise LoginNeeded(f"this key does not open {workspace[:40]}; connect to it with your API key to get its own")
        return self._identity.of_id(token), workspace

    def issue(self, principal: Principal, workspace: str) -> str:
        """The key of one sandbox for one token."""
        assert principal.token is not None, "only programs have API keys"
        return f"{_PREFIX}{principal.token}.{self._signature(principal.token, workspace)}"

    def _signature(self, token: str, workspace: str) -> str:
        assert self._secret, "not open"
        return hmac.new(self._secret, f"{token}\0{workspace}".encode(), hashlib.sha256).hexdigest()


def _only(request: web.Request, header: str) -> str:
    values = request.headers.getall(header, [])
    if len(values) != 1 or not 0 < len(values[0]) <= _LONGEST:
        raise LoginNeeded(f"send {header}, one; API keys are tokens ({tokens.PREFIX}… or {tokens.E2B_PREFIX}…)")
    return values[0]
