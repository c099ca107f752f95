"""A small identity provider: discovery, keys, and a token endpoint that signs real tokens, wrong ones on demand."""

from __future__ import annotations

import base64
import hashlib
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

from aiohttp import web
from joserfc import jwk, jwt

CLIENT, SECRET = "tclone-portal", "between the two of us"


class Provider:
    """`claims` are put into (or, when None, taken out of) the next tokens. `code_for(address)` is what a person who logs in there does."""

    def __init__(self) -> None:
        self.key = jwk.RSAKey.generate_key(2048, {"kid": "one"})
        self.published = [self.key]
        self.algorithm = "RS256"
        self.claims: dict[str, Any] = {}
        self.token: str | None = None
        self.down = False
        self.asked: list[dict[str, str]] = []
        self._codes: dict[str, dict[str, str]] = {}
        self.issuer = ""

    async def start(self) -> None:
        app = web.Application()
        app.add_routes([web.get("/.well-known/openid-configuration", self._metadata), web.get("/keys", self._keys), web.post("/token", self._token)])
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.issuer = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    def code_for(self, address: str) -> tuple[str, str]:
        """(state, code) with which the browser comes back from `address`."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        assert address.startswith(f"{self.issuer}/authorize?") and query["response_type"] == "code" and query["client_id"] == CLIENT
        assert query["code_challenge_method"] == "S256" and "openid" in query["scope"].split()
        code = f"code-{len(self._codes)}"
        self._codes[code] = query
        return query["state"], code

    async def _metadata(self, _: web.Request) -> web.Response:
        if self.down:
            raise web.HTTPServiceUnavailable
        places = {"authorization_endpoint": "/authorize", "token_endpoint": "/token", "jwks_uri": "/keys"}
        return web.json_response({"issuer": self.issuer, **{name: self.issuer + path for name, path in places.items()}})

    async def _keys(self, _: web.Request) -> web.Response:
        return web.json_response({"keys": [key.as_dict(private=False) for key in self.published]})

    async def _token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.asked.append(form)
        query = self._codes.pop(form.get("code", ""), None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest()).decode().rstrip("=")
        credentials = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if (
            query is None
            or challenge != query["code_challenge"]
            or form.get("redirect_uri") != query["redirect_uri"]
            or request.headers.get("Authorization") != f"Basic {credentials}"
        ):
            return web.json_response({"error": "invalid_grant"}, status=400)
        now = int(time.time())
        claims = {
            "iss": self.issuer, "sub": "subject-1", "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": query["nonce"],
            "email": "Anna@Example.org", "email_verified": True, **self.claims,
        }  # fmt: skip
        claims = {name: value for name, value in claims.items() if value is not None}
        token = self.token or jwt.encode({"alg": self.algorithm, "kid": self.key.kid}, claims, self.key, algorithms=[self.algorithm])
        return web.json_response({"access_token": "opaque", "token_type": "Bearer", "id_token": token})
