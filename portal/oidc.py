"""Login by an identity provider: OpenID Connect, code flow with PKCE. What the provider says is checked by authlib and joserfc."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp
from aiohttp import hdrs
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from joserfc import jwk, jwt
from joserfc.errors import JoseError

from engine.config import Config
from portal import accounts
from portal.errors import Denied, Malformed, Unreachable
from portal.principal import Role

# Signatures by keys that only the provider has; never `none`, never one made with a secret that we share.
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA"]
_SCOPE = "openid email profile"
_ANSWER_SECONDS = 10.0
_ANSWER_BYTES = 1 << 20
# Keys and addresses are asked for again after this time, and keys when a token is signed by one that is not known.
_KNOWN_SECONDS = 3600.0
_LEEWAY_SECONDS = 60
_TRYING_ON_ONE_MACHINE = {"localhost", "127.0.0.1", "::1"}


@dataclass(frozen=True)
class Settings:
    """Which provider, who we are there, and whom it may let in.

    `allowed`: e-mail addresses and domains. `admins`: a claim and the value in it that makes an admin, None: nobody becomes one by the provider.
    """

    issuer: str
    client: str
    secret: Path | None
    allowed: tuple[str, ...]
    admins: tuple[str, str] | None = None


@dataclass(frozen=True)
class Asked:
    """What the provider's answer has to fit."""

    state: str
    nonce: str
    verifier: str
    redirect: str


@dataclass(frozen=True)
class Person:
    """Who the provider says came in. `subject` never changes and is never given to another; an address might be. `shown`: when it showed the provider who
    it is (Unix seconds), None: the provider does not tell."""

    user: str
    subject: str
    role: Role
    shown: float | None


def settings(config: Config) -> Settings | None:
    """None when no provider is set. Raises ValueError that names the setting."""
    if not config.oidc_issuer:
        return None
    issuer = urlsplit(config.oidc_issuer)
    if issuer.scheme != "https" and not (issuer.scheme == "http" and issuer.hostname in _TRYING_ON_ONE_MACHINE):
        raise ValueError(f"TCLONE_OIDC_ISSUER={config.oidc_issuer}: an issuer is an https address")
    if not config.oidc_client:
        raise ValueError("TCLONE_OIDC_CLIENT_ID is missing: what the provider calls this portal")
    if not config.oidc_allowed:
        raise ValueError("TCLONE_OIDC_ALLOW is missing: name the e-mail addresses and domains that may come in")
    claim, _, value = config.oidc_admins.partition("=")
    if config.oidc_admins and not (claim and value):
        raise ValueError(f"TCLONE_OIDC_ADMINS={config.oidc_admins}: give a claim and its value, such as groups=tclone-admins")
    allowed = tuple(entry.lower().removeprefix("@") for entry in config.oidc_allowed)
    return Settings(config.oidc_issuer, config.oidc_client, config.oidc_secret, allowed, (claim, value) if claim else None)


class Provider:
    """One provider. `async with` it."""

    def __init__(self, wanted: Settings) -> None:
        self._settings = wanted
        self._metadata: dict[str, Any] = {}
        self._keys: jwk.KeySet | None = None
        self._known_until = 0.0

    async def __aenter__(self) -> Provider:
        self._http = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=_ANSWER_SECONDS), cookie_jar=aiohttp.DummyCookieJar(), trust_env=True
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def begin(self, redirect: str, again: bool = False) -> tuple[str, Asked]:
        """The provider's address to send the browser to, and what its answer has to fit. `again`: the person is to show who it is, logged in there or not.

        Raises Unreachable.
        """
        metadata = await self._discover()
        asked = Asked(secrets.token_urlsafe(32), secrets.token_urlsafe(32), secrets.token_urlsafe(48), redirect)
        query = urlencode(
            {
                "response_type": "code",
                "client_id": self._settings.client,
                "redirect_uri": redirect,
                "scope": _SCOPE,
                "state": asked.state,
                "nonce": asked.nonce,
                "code_challenge": create_s256_code_challenge(asked.verifier),
                "code_challenge_method": "S256",
                **({"prompt": "login", "max_age": "0"} if again else {}),
            }
        )
        address = metadata["authorization_endpoint"]
        return f"{address}{'&' if urlsplit(address).query else '?'}{query}", asked

    async def finish(self, code: str, asked: Asked) -> Person:
        """Who came in. Raises Denied (the provider's answer is not good, or this one may not come in), Unreachable."""
        metadata = await self._discover()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": asked.redirect,
            "code_verifier": asked.verifier,
            "client_id": self._settings.client,
        }
        headers = {}
        if self._settings.secret is not None:
            headers[hdrs.AUTHORIZATION] = aiohttp.encode_basic_auth(self._settings.client, self._secret())
        answer = await self._ask("POST", metadata["token_endpoint"], data=form, headers=headers)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise Denied("the identity provider sent no id token")
        return self._person(await self._claims(token, asked, answer.get("access_token")))

    def _secret(self) -> str:
        assert self._settings.secret is not None
        try:
            return self._settings.secret.read_text().strip()
        except OSError as error:
            raise Unreachable(f"the client secret cannot be read: {self._settings.secret}: {error.strerror}") from None

    async def _claims(self, token: str, asked: Asked, access_token: object) -> CodeIDToken:
        metadata = await self._discover()
        try:
            try:
                decoded = jwt.decode(token, await self._key_set(), algorithms=_ALGORITHMS)
            except JoseError:
                # The provider may have changed its keys.
                decoded = jwt.decode(token, await self._key_set(fresh=True), algorithms=_ALGORITHMS)
            claims = CodeIDToken(
                decoded.claims,
                decoded.header,
                {"iss": {"essential": True, "value": metadata["issuer"]}, "aud": {"essential": True, "value": self._settings.client}},
                {"nonce": asked.nonce, "client_id": self._settings.client, "access_token": access_token},
            )
            claims.validate(now=int(time.time()), leeway=_LEEWAY_SECONDS)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise Denied(f"the identity provider's token is not good: {type(error).__name__}") from None
        return claims

    def _person(self, claims: CodeIDToken) -> Person:
        email = claims.get("email")
        if not isinstance(email, str) or claims.get("email_verified") is not True:
            raise Denied("the identity provider does not vouch for an e-mail address of yours")
        email = email.lower()
        try:
            accounts.check_name(email)
        except Malformed:
            raise Denied("the identity provider's e-mail address of yours has characters that no user's name here has") from None
        if email not in self._settings.allowed and email.rpartition("@")[2] not in self._settings.allowed:
            raise Denied(f"{email} may not use this portal; its operator decides who may")
        shown = claims.get("auth_time")
        return Person(email, f"{claims['iss']} {claims['sub']}", self._role(claims), float(shown) if isinstance(shown, int | float) else None)

    def _role(self, claims: CodeIDToken) -> Role:
        if self._settings.admins is None:
            return Role.USER
        claim, wanted = self._settings.admins
        held = claims.get(claim)
        return Role.ADMIN if held == wanted or (isinstance(held, list) and wanted in held) else Role.USER

    async def _discover(self) -> dict[str, Any]:
        if time.monotonic() < self._known_until:
            return self._metadata
        issuer = self._settings.issuer
        found = await self._ask("GET", issuer.rstrip("/") + "/.well-known/openid-configuration")
        if found.get("issuer") != issuer:
            raise Unreachable(f"the identity provider at {issuer} calls itself something else")
        scheme = urlsplit(issuer).scheme
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if urlsplit(str(found.get(name))).scheme not in ("https", scheme):
                raise Unreachable(f"the identity provider at {issuer} has no usable {name}")
        self._metadata, self._keys = found, None
        self._known_until = time.monotonic() + _KNOWN_SECONDS
        return found

    async def _key_set(self, fresh: bool = False) -> jwk.KeySet:
        if self._keys is None or fresh:
            self._keys = jwk.KeySet.import_key_set(await self._ask("GET", self._metadata["jwks_uri"]))  # type: ignore[arg-type]
        return self._keys

    async def _ask(self, method: str, address: str, **options: Any) -> dict[str, Any]:
        """One answer of the provider's, a JSON object. What it says in an error may be hostile, and stays out of ours."""
        try:
            async with self._http.request(method, address, allow_redirects=False, **options) as answer:
                body = await answer.content.read(_ANSWER_BYTES)
                status = answer.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unreachable(f"the identity provider does not answer ({type(error).__name__}); try again, or log in with a password") from None
        if method == "POST" and 400 <= status < 500:
            raise Denied("the identity provider did not accept the login; begin again")
        try:
            value = json.loads(body) if status == 200 else None
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise Unreachable(f"the identity provider's answer is not understood (status {status})")
        return value
