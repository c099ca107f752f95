"""Login by an identity provider: what it may say, and everything that has to be refused."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest
from joserfc import jwk

from engine.config import Config
from portal import oidc
from tests.portal.conftest import Client, Portal
from tests.portal.provider import CLIENT, SECRET, Provider


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    made = Provider()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def config(provider: Provider, tmp_path: Path, plain_config: Config) -> Config:
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    return replace(
        plain_config, oidc_issuer=provider.issuer, oidc_client=CLIENT, oidc_secret=secret,
        oidc_allowed=("example.org", "ben@other.example"), oidc_admins="groups=tclone-admins",
    )  # fmt: skip


async def back(client: Client, provider: Provider, **changes: str) -> aiohttp.ClientResponse:
    """Begin a login and come back from the provider, with changes to the address it sends the browser to."""
    begun = await client.request("GET", "/login/oidc")
    assert begun.status == 303, await begun.text()
    state, code = provider.code_for(begun.headers["Location"])
    query = {"state": state, "code": code, **changes}
    # The way back is a navigation from another site.
    return await client.request("GET", "/login/oidc/callback", params=query, headers={"Origin": None, "Sec-Fetch-Site": "cross-site", "X-TClone-Key": None})


async def enter(client: Client) -> aiohttp.ClientResponse:
    answer = await client.request("POST", "/api/v1/login/oidc")
    if answer.status == 200:
        client.key = (await answer.json())["key"]
    return answer


async def login(portal: Portal, provider: Provider) -> Client:
    client = portal.client()
    answer = await back(client, provider)
    assert (answer.status, answer.headers.get("Location")) == (303, "/login#provider"), await answer.text()
    assert (await enter(client)).status == 200
    return client


async def me(client: Client) -> dict[str, Any]:
    return await (await client.request("GET", "/api/v1/me")).json()


async def test_a_person_of_an_allowed_domain_comes_in_as_a_user(portal: Portal, provider: Provider) -> None:
    client = await login(portal, provider)
    known = await me(client)
    assert (known["user"], known["role"], known["external"]) == ("anna@example.org", "user", True)
    assert "__Host-tclone" in client.cookies and (await enter(client)).status == 401, "the cookie of the way is good once"
    assert len({asked["code_verifier"] for asked in provider.asked}) == 1 and len(provider.asked[0]["code_verifier"]) >= 43
    # The second time it is the same account.
    assert (await me(await login(portal, provider)))["user"] == "anna@example.org"


@pytest.mark.parametrize("again, ago, status", [(False, None, 403), (True, None, 201), (False, 5, 201), (False, 3600, 403), (True, 3600, 403), (False, -3600, 201)])
async def test_who_was_let_in_without_a_question_has_shown_nothing(portal: Portal, provider: Provider, again: bool, ago: float | None, status: int) -> None:
    """A provider that knows its browser asks for nothing: whoever sits before it may be anybody."""
    provider.claims = {} if ago is None else {"auth_time": int(time.time() - ago)}
    client = portal.client()
    begun = await client.request("GET", "/login/oidc" + ("?again" if again else ""))
    query = parse_qs(urlsplit(begun.headers["Location"]).query)
    assert (query.get("prompt"), query.get("max_age")) == ((["login"], ["0"]) if again else (None, None))
    state, code = provider.code_for(begun.headers["Location"])
    await client.request("GET", "/login/oidc/callback", params={"state": state, "code": code}, headers={"Origin": None, "Sec-Fetch-Site": "cross-site", "X-TClone-Key": None})
    assert (await enter(client)).status == 200
    answer = await client.request("POST", "/api/v1/tokens", {"name": "x", "scopes": ["read"]})
    assert answer.status == status, await answer.text()
    answer = await client.request("POST", "/api/v1/me/confirm", {"password": "x"})
    assert (answer.status, (await answer.json())["error"]["code"]) == (409, "conflict"), "there is no password here"
    assert (await client.request("POST", "/api/v1/me/factor")).status == (409 if status == 201 else 403)


async def test_a_claim_makes_admins_and_its_absence_unmakes_them(portal: Portal, provider: Provider) -> None:
    provider.claims = {"groups": ["staff", "tclone-admins"]}
    client = await login(portal, provider)
    assert (await me(client))["role"] == "admin"
    provider.claims = {"groups": ["staff", "not-tclone-admins"]}
    await login(portal, provider)
    assert (await me(client))["role"] == "user"


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "another"},
        {"nonce": None},
        {"iss": "http://evil.example"},
        {"aud": "another-client"},
        {"aud": [CLIENT, "another"], "azp": "another"},
        {"exp": int(time.time()) - 3600, "iat": int(time.time()) - 7200},
        {"exp": None},
        {"sub": None},
        {"iat": int(time.time()) + 7200},
        {"email": None},
        {"email_verified": False},
        {"email_verified": None},
        {"email_verified": "true"},
        {"email": "anna@evil.example"},
        {"email": "anna@sub.example.org"},
        {"email": "ben@other.example.evil.example"},
        {"email": "carl@other.example"},
        {"email": "anna@evil.example\n@example.org"},
    ],
)
async def test_a_token_that_does_not_fit_lets_nobody_in(portal: Portal, provider: Provider, claims: dict[str, Any]) -> None:
    provider.claims = claims
    client = portal.client()
    assert (await back(client, provider)).status == 403
    assert (await enter(client)).status == 401 and "__Host-tclone" not in client.cookies


def unsigned(provider: Provider, **changes: Any) -> str:
    now = int(time.time())
    claims = {"iss": provider.issuer, "sub": "s", "aud": CLIENT, "iat": now, "exp": now + 300, "email": "anna@example.org", "email_verified": True}
    parts = [json.dumps({"alg": "none"} | changes).encode(), json.dumps(claims).encode()]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + "."


async def test_signatures_that_are_none_foreign_or_made_with_our_secret_are_refused(portal: Portal, provider: Provider) -> None:
    provider.token = unsigned(provider)
    assert (await back(portal.client(), provider)).status == 403
    provider.token = None
    provider.key = jwk.RSAKey.generate_key(2048, {"kid": "one"})
    assert (await back(portal.client(), provider)).status == 403
    provider.key, provider.algorithm = jwk.OctKey.import_key(SECRET, {"kid": "one"}), "HS256"
    assert (await back(portal.client(), provider)).status == 403


async def test_new_keys_of_the_provider_are_fetched(portal: Portal, provider: Provider) -> None:
    await login(portal, provider)
    provider.key = jwk.RSAKey.generate_key(2048, {"kid": "two"})
    provider.published = [provider.key]
    await login(portal, provider)


async def test_an_answer_to_another_browsers_login_is_refused(portal: Portal, provider: Provider) -> None:
    """Login CSRF: somebody else's answer must not log this browser in as them."""
    attacker, victim = portal.client(), portal.client()
    begun = await attacker.request("GET", "/login/oidc")
    state, code = provider.code_for(begun.headers["Location"])
    for prepared in (False, True):
        if prepared:
            await victim.request("GET", "/login/oidc")
        answer = await victim.request("GET", "/login/oidc/callback", params={"state": state, "code": code})
        assert answer.status == 401 and (await enter(victim)).status == 401
    assert provider.asked == [], "the code was not even tried"


async def test_state_and_code_are_needed_and_good_once(portal: Portal, provider: Provider) -> None:
    for changes in ({"state": "another"}, {"code": ""}, {"state": ""}, {"code": "x" * 5000}):
        assert (await back(portal.client(), provider, **changes)).status == 401, changes
    client = portal.client()
    assert (await back(client, provider, code="guessed")).status == 403
    assert (await enter(client)).status == 401


async def test_the_session_is_given_to_the_portals_own_page_alone(portal: Portal, provider: Provider) -> None:
    client = portal.client()
    await back(client, provider)
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": None}):
        assert (await client.request("POST", "/api/v1/login/oidc", headers=headers)).status == 403
    assert (await enter(client)).status == 200


async def test_an_address_that_was_given_to_somebody_else_does_not_inherit(portal: Portal, provider: Provider) -> None:
    await login(portal, provider)
    provider.claims = {"sub": "subject-2"}
    client = portal.client()
    assert (await back(client, provider)).status == 303
    assert (await enter(client)).status == 409 and "__Host-tclone" not in client.cookies


async def test_a_local_user_of_that_name_is_not_taken_over(portal: Portal, provider: Provider) -> None:
    await portal.user(await portal.login(), "anna@example.org")
    client = portal.client()
    await back(client, provider)
    assert (await enter(client)).status == 409


async def test_a_disabled_user_stays_out_and_has_no_password(portal: Portal, provider: Provider) -> None:
    admin = await portal.login()
    client = await login(portal, provider)
    assert (await admin.request("POST", "/api/v1/users/anna@example.org/password")).status == 409
    assert (await portal.client().login("", "anna@example.org")).status == 401
    await admin.request("PATCH", "/api/v1/users/anna@example.org", {"disabled": True})
    assert (await client.request("GET", "/api/v1/me")).status == 401
    again = portal.client()
    await back(again, provider)
    assert (await enter(again)).status == 403


async def test_a_provider_that_is_down_is_said_and_passwords_go_on(portal: Portal, provider: Provider) -> None:
    provider.down = True
    answer = await portal.client().request("GET", "/login/oidc")
    assert answer.status == 502 and (await answer.json())["error"]["code"] == "provider"
    page = await portal.client().request("GET", "/login/oidc", headers={"Accept": "text/html"})
    assert "The identity provider" in await page.text()
    await portal.login()


async def test_nothing_secret_is_logged_or_in_our_addresses(portal: Portal, provider: Provider, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="portal")
    client = portal.client()
    answer = await back(client, provider)
    assert answer.headers["Location"] == "/login#provider"
    await enter(client)
    for secret in (provider.asked[0]["code_verifier"], provider.asked[0]["code"], SECRET, client.key, *client.cookies.values()):
        assert not secret or secret not in caplog.text


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"oidc_issuer": "http://idp.example.org"}, "https"),
        ({"oidc_client": ""}, "TCLONE_OIDC_CLIENT_ID"),
        ({"oidc_allowed": ()}, "TCLONE_OIDC_ALLOW"),
        ({"oidc_admins": "groups"}, "TCLONE_OIDC_ADMINS"),
    ],
)
def test_settings_that_do_not_do_are_named(plain_config: Config, changes: dict[str, Any], said: str) -> None:
    good = replace(plain_config, oidc_issuer="https://idp.example.org", oidc_client="x", oidc_allowed=("example.org",))
    assert oidc.settings(good) is not None and oidc.settings(plain_config) is None
    with pytest.raises(ValueError, match=said):
        oidc.settings(replace(good, **changes))
