"""Second factors: codes of an app and recovery codes, each good once, and who may set them up and remove them."""

from __future__ import annotations

import asyncio
import io
import logging
import re
import sqlite3
import tarfile
import time
from pathlib import Path

import pyotp
import pytest

from portal import administration, backup, factors
from portal.api.factor import picture
from portal.second_factors import CODES, CODES_SECONDS
from portal.sealing import Sealing
from tests.portal.conftest import OWN_PASSWORD, PATIENCE, Client, Portal, program


class App:
    """What shows the codes. Each is of a step of time of its own, as if half a minute went by between them."""

    def __init__(self, portal: Portal, secret: str) -> None:
        self._totp = pyotp.TOTP(secret)
        self._now = time.time()
        self._portal = portal
        portal.control.second_factors._clock = lambda: self._now

    def code(self, later: float = factors.STEP_SECONDS) -> str:
        """The one that is shown so many seconds after the last."""
        self._now += later
        return self._totp.at(int(self._now))

    def wrong(self) -> str:
        """Six digits that are no code of about now."""
        near = {self._totp.at(self._now, counter_offset=offset) for offset in range(-3, 4)}
        return next(code for code in (f"{number:06}" for number in range(10)) if code not in near)


async def begun(client: Client) -> dict:
    answer = await client.request("POST", "/api/v1/me/factor")
    assert answer.status == 201, await answer.text()
    return await answer.json()


async def enrolled(portal: Portal, client: Client) -> tuple[App, list[str]]:
    """A user's new second factor: the app and the recovery codes."""
    app = App(portal, (await begun(client))["secret"])
    answer = await client.request("PUT", "/api/v1/me/factor", {"code": app.code()})
    assert answer.status == 200, await answer.text()
    return app, (await answer.json())["recovery_codes"]


async def refusal(client: Client, password: str, user: str = "admin", **more: str) -> tuple[int, str]:
    answer = await client.login(password, user, **more)
    assert "Set-Cookie" not in answer.headers
    return answer.status, (await answer.json())["error"]["code"]


async def make_stale(client: Client, portal: Portal) -> None:
    """As if its user had shown who it is an hour ago."""
    for session in portal.control.sessions._by_id.values():
        if session.key_fits(client.key):
            session.shown -= 3600


async def test_with_a_second_factor_the_password_alone_opens_nothing(portal: Portal) -> None:
    app, _ = await enrolled(portal, await portal.login())
    client = portal.client()
    assert await refusal(client, portal.password) == (403, "second_factor")
    assert await refusal(client, portal.password, code=app.wrong()) == (401, "wrong_code")
    # A code tells nothing to who has not the password.
    assert await refusal(client, "wrong", code=app.code()) == (401, "denied")
    assert (await client.login(portal.password, code=app.code())).status == 200
    assert (await client.request("GET", "/api/v1/workspaces")).status == 200
    known = await (await client.request("GET", "/api/v1/me")).json()
    assert known["second_factor"]["recovery_codes"] == factors.RECOVERY_CODES and known["second_factor_required"] is False


async def test_a_code_counts_once_and_none_before_it_counts_after(portal: Portal) -> None:
    app, _ = await enrolled(portal, await portal.login())
    client = portal.client()
    earlier, code = app.code(), app.code()
    assert (await client.login(portal.password, code=code)).status == 200
    assert await refusal(client, portal.password, code=code) == (401, "wrong_code")
    assert await refusal(client, portal.password, code=earlier) == (401, "wrong_code")
    # Of many who come with one code at the same time one gets in.
    code = app.code()
    answers = await asyncio.gather(*(portal.client().login(portal.password, code=code) for _ in range(4)))
    assert sorted(answer.status for answer in answers) == [200, 401, 401, 401]


async def test_the_code_that_set_the_factor_up_is_used_up(portal: Portal) -> None:
    client = await portal.login()
    app = App(portal, (await begun(client))["secret"])
    code = app.code()
    assert (await client.request("PUT", "/api/v1/me/factor", {"code": code})).status == 200
    assert await refusal(portal.client(), portal.password, code=code) == (401, "wrong_code")


async def test_clocks_may_differ_by_a_step_and_no_more(portal: Portal) -> None:
    secret = factors.new_secret()
    totp, now = pyotp.TOTP(secret), 1_800_000_010.0
    steps = {offset: factors.step_of(secret, totp.at(now, counter_offset=offset), now) for offset in range(-2, 3)}
    here = int(now) // factors.STEP_SECONDS
    assert steps == {-2: None, -1: here - 1, 0: here, 1: here + 1, 2: None}


def test_codes_are_those_of_the_standard() -> None:
    """RFC 6238, appendix B, of whose eight digits apps show the last six."""
    secret = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ"  # "12345678901234567890" in base 32
    for now, code in ((59, "287082"), (1111111109, "081804"), (1111111111, "050471"), (1234567890, "005924"), (2000000000, "279037")):
        assert factors.step_of(secret, code, now) == now // 30


async def test_guessing_codes_is_limited_from_wherever(portal: Portal) -> None:
    app, codes = await enrolled(portal, await portal.login())
    for number in range(CODES):
        client = portal.client()
        client.address = f"192.0.2.{number}"
        assert await refusal(client, portal.password, code=app.wrong()) == (401, "wrong_code")
    client = portal.client()
    for code in (app.code(), codes[0]):
        answer = await client.login(portal.password, code=code)
        assert answer.status == 429 and 1 <= int(answer.headers["Retry-After"]) <= CODES_SECONDS


async def test_a_recovery_code_is_good_once(portal: Portal) -> None:
    _, codes = await enrolled(portal, await portal.login())
    assert len(set(codes)) == factors.RECOVERY_CODES and all(len(factors.plain(code)) == 24 for code in codes)
    client = portal.client()
    assert (await client.login(portal.password, code=f" {codes[0].upper()} ")).status == 200
    assert await refusal(portal.client(), portal.password, code=codes[0]) == (401, "wrong_code")
    assert (await (await client.request("GET", "/api/v1/me")).json())["second_factor"]["recovery_codes"] == factors.RECOVERY_CODES - 1
    fresh = (await (await client.request("POST", "/api/v1/me/factor/recovery")).json())["recovery_codes"]
    assert not set(fresh) & set(codes)
    assert await refusal(portal.client(), portal.password, code=codes[1]) == (401, "wrong_code")
    assert (await portal.client().login(portal.password, code=fresh[0])).status == 200


async def test_another_users_recovery_code_opens_nothing(portal: Portal) -> None:
    admin = await portal.login()
    anna = await portal.user(admin, "anna")
    await enrolled(portal, anna)
    _, codes = await enrolled(portal, admin)
    assert await refusal(portal.client(), OWN_PASSWORD, "anna", code=codes[0]) == (401, "wrong_code")


async def test_setting_one_up_ends_the_other_sessions_and_takes_a_code_of_the_app(portal: Portal) -> None:
    one, other = await portal.login(), await portal.login()
    answer = await one.request("PUT", "/api/v1/me/factor", {"code": "123456"})
    assert (answer.status, (await answer.json())["error"]["code"]) == (404, "not_found")
    secret = (await begun(one))["secret"]
    app = App(portal, secret)
    answer = await one.request("PUT", "/api/v1/me/factor", {"code": app.wrong()})
    assert (answer.status, (await answer.json())["error"]["field"]) == (401, "code")
    # What one session has begun is no other's to finish, and not for ever.
    assert (await other.request("PUT", "/api/v1/me/factor", {"code": app.code()})).status == 404
    assert (await one.request("PUT", "/api/v1/me/factor", {"code": app.code(later=700)})).status == 404
    assert (await portal.login()).key, "nothing has changed so far"
    await enrolled(portal, one)
    assert (await other.request("GET", "/api/v1/me")).status == 401
    assert (await one.request("POST", "/api/v1/me/factor")).status == 409


async def test_removing_it_takes_who_it_is_again(portal: Portal) -> None:
    client = await portal.login()
    app, _ = await enrolled(portal, client)
    await make_stale(client, portal)
    for method, path in (("DELETE", "/me/factor"), ("POST", "/me/factor/recovery")):
        answer = await client.request(method, f"/api/v1{path}")
        assert (answer.status, (await answer.json())["error"]["code"]) == (403, "confirm")
    shown = {"password": portal.password}
    answer = await client.request("POST", "/api/v1/me/confirm", shown)
    assert (answer.status, (await answer.json())["error"]["code"]) == (403, "second_factor")
    assert (await client.request("DELETE", "/api/v1/me/factor")).status == 403
    assert (await client.request("POST", "/api/v1/me/confirm", {**shown, "code": app.code()})).status == 204
    assert (await client.request("DELETE", "/api/v1/me/factor")).status == 204
    assert (await portal.client().login(portal.password)).status == 200


async def test_with_one_a_new_password_takes_more_than_the_old_one(portal: Portal) -> None:
    client = await portal.login()
    app, _ = await enrolled(portal, client)
    await make_stale(client, portal)
    change = {"password": portal.password, "new_password": OWN_PASSWORD}
    answer = await client.request("POST", "/api/v1/me/password", change)
    assert (answer.status, (await answer.json())["error"]["code"]) == (403, "confirm")
    assert (await client.request("POST", "/api/v1/me/confirm", {"password": portal.password, "code": app.code()})).status == 204
    assert (await client.request("POST", "/api/v1/me/password", change)).status == 204
    assert (await portal.client().login(OWN_PASSWORD, code=app.code())).status == 200


async def test_an_admin_removes_it_for_somebody_who_lost_it(portal: Portal, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    admin = await portal.login()
    anna = await portal.user(admin, "anna")
    await enrolled(portal, anna)
    listed = {user["user"]: user["second_factor"] for user in await (await admin.request("GET", "/api/v1/users")).json()}
    assert listed == {"admin": False, "anna": True}
    assert (await anna.request("DELETE", "/api/v1/users/anna/factor")).status == 403
    # A new password alone does not lift it: who can reset passwords by mail or by phone is not told to be the user.
    password = (await (await admin.request("POST", "/api/v1/users/anna/password")).json())["password"]
    assert await refusal(portal.client(), password, "anna", new_password=OWN_PASSWORD) == (403, "second_factor")
    assert (await admin.request("DELETE", "/api/v1/users/anna/factor")).status == 204
    assert (await portal.client().login(password, "anna", new_password=OWN_PASSWORD)).status == 200
    assert '"event": "factor-remove", "user": "anna", "by": "admin"' in caplog.text
    assert (await admin.request("DELETE", "/api/v1/users/anna/factor")).status == 404
    assert (await admin.request("DELETE", "/api/v1/users/nobody/factor")).status == 404


async def test_the_command_line_removes_it(portal: Portal) -> None:
    await enrolled(portal, await portal.login())
    assert await asyncio.to_thread(administration.run, portal.config, "user-factor-rm", {"user": "admin"}) == {"answer": None}
    async with asyncio.timeout(PATIENCE):
        while (await portal.client().login(portal.password)).status != 200:
            await asyncio.sleep(0.05)
    again = await asyncio.to_thread(administration.run, portal.config, "user-factor-rm", {"user": "admin"})
    assert again["error"]["code"] == "not_found"


async def test_a_one_time_password_and_a_second_factor_together(portal: Portal) -> None:
    """A code that came too early, before the password of one's own was chosen, is not used up."""
    admin = await portal.login()
    anna = await portal.user(admin, "anna")
    app, _ = await enrolled(portal, anna)
    password = (await (await admin.request("POST", "/api/v1/users/anna/password")).json())["password"]
    client, code = portal.client(), app.code()
    assert await refusal(client, password, "anna", code=code) == (403, "new_password")
    assert await refusal(client, password, "anna", code=code, new_password="short") == (400, "bad_request")
    assert (await client.login(password, "anna", code=code, new_password=OWN_PASSWORD)).status == 200


async def test_tokens_go_on_without_and_set_nothing_up(portal: Portal) -> None:
    admin = await portal.login()
    agent = await program(portal, admin, "admin")
    await enrolled(portal, admin)
    assert (await agent.request("GET", "/api/v1/workspaces")).status == 200
    for method, path, body in (("POST", "/me/factor", None), ("PUT", "/me/factor", {"code": "123456"}), ("DELETE", "/me/factor", None), ("POST", "/me/factor/recovery", None), ("POST", "/me/confirm", {"password": portal.password})):
        assert (await agent.request(method, f"/api/v1{path}", body)).status == 403, path


async def test_everybody_must_have_one_when_an_admin_says_so(portal: Portal) -> None:
    admin = await portal.login()
    anna = await portal.user(admin, "anna")
    agent = await program(portal, anna, "read")
    await enrolled(portal, admin)
    settings = await (await admin.request("GET", "/api/v1/settings")).json()
    assert (await admin.request("PUT", "/api/v1/settings", {**settings, "second_factor": True})).status == 200
    assert (await admin.request("GET", "/api/v1/workspaces")).status == 200
    assert (await agent.request("GET", "/api/v1/workspaces")).status == 200
    for method, path in (("GET", "/workspaces"), ("POST", "/tokens"), ("GET", "/sessions"), ("DELETE", "/sessions"), ("DELETE", "/me/factor")):
        answer = await anna.request(method, f"/api/v1{path}", {"name": "x", "scopes": ["read"]} if path == "/tokens" else None)
        assert (answer.status, (await answer.json())["error"]["code"]) == (403, "enrol"), path
    async with anna.socket() as page:
        await page.send_json({"type": "hello", "key": anna.key})
        told = await page.receive_json(timeout=PATIENCE)
        assert (told["type"], told["error"]["code"]) == ("error", "enrol")
    known = await (await anna.request("GET", "/api/v1/me")).json()
    assert (known["second_factor"], known["second_factor_required"]) == (None, True)
    await enrolled(portal, anna)
    assert (await anna.request("GET", "/api/v1/workspaces")).status == 200
    # A program that sets other settings and has never heard of this one does not lift it.
    del settings["second_factor"]
    assert (await admin.request("PUT", "/api/v1/settings", settings)).status == 200
    assert (await (await admin.request("GET", "/api/v1/settings")).json())["second_factor"] is True


async def test_no_secret_of_it_is_stored_logged_or_saved(portal: Portal, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = await portal.login()
    secret = (await begun(client))["secret"]
    app = App(portal, secret)
    codes = (await (await client.request("PUT", "/api/v1/me/factor", {"code": app.code()})).json())["recovery_codes"]
    used = app.code()
    await client.login(portal.password, code=used)
    connection = sqlite3.connect(portal.places.database)
    dump = "\n".join(connection.iterdump())
    connection.close()
    saved = io.BytesIO()
    await asyncio.to_thread(backup.save, portal.places, saved)
    for hidden in (secret, *codes, *map(factors.plain, codes)):
        assert hidden not in dump and hidden not in caplog.text and hidden.encode() not in saved.getvalue()
    assert f'"{used}"' not in caplog.text
    saved.seek(0)
    with tarfile.open(fileobj=saved) as archive:
        assert "factor.key" not in archive.getnames()
    key = portal.places.factor_key
    assert key.stat().st_mode & 0o777 == 0o600 and key.read_bytes() not in saved.getvalue()


async def test_where_the_key_is_lost_recovery_codes_are_good(portal: Portal) -> None:
    """As after a backup was put back on another machine."""
    app, codes = await enrolled(portal, await portal.login())
    portal.places.factor_key.unlink()
    await portal.control.second_factors.open()
    assert await refusal(portal.client(), portal.password, code=app.code()) == (401, "wrong_code")
    assert (await portal.client().login(portal.password, code=codes[0])).status == 200


def test_what_is_sealed_opens_for_its_owner_alone(tmp_path: Path) -> None:
    sealing = Sealing(tmp_path / "key")
    sealing.open()
    sealed = sealing.seal("the secret", "anna")
    assert sealing.unseal(sealed, "anna") == "the secret" and "secret" not in sealed
    assert sealing.unseal(sealed, "ben") is None and sealing.unseal("nonsense", "anna") is None and sealing.unseal("", "anna") is None
    assert sealing.seal("the secret", "anna") != sealed
    again = Sealing(tmp_path / "key")
    again.open()
    assert again.unseal(sealed, "anna") == "the secret"
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(OSError, match="damaged"):
        again.open()


def test_the_picture_holds_the_address() -> None:
    """Drawn again from its path, module by module, it is the code that another reading of the same library makes."""
    import segno

    address = factors.address_for_apps("GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ", "anna@example.org", "TClone (tclone.localhost)")
    assert address.startswith("otpauth://totp/TClone%20%28tclone.localhost%29:anna%40example.org?secret=GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ&issuer=TClone")
    drawn = picture(address)
    dark: set[tuple[int, int]] = set()
    x = y = 0.0
    for letter, arguments in re.findall(r"([Mmh])([^Mmh]*)", str(drawn["path"])):
        numbers = [float(number) for number in re.findall(r"-?[0-9.]+", arguments)]
        if letter == "h":
            dark |= {(int(x) + step, int(y)) for step in range(int(numbers[0]))}
            x += numbers[0]
        else:
            x, y = (numbers[0], numbers[1]) if letter == "M" else (x + numbers[0], y + numbers[1])
    wanted = {(column + 4, row + 4) for row, line in enumerate(segno.make(address, error="m", micro=False).matrix) for column, module in enumerate(line) if module}
    assert dark == wanted and drawn["size"] == len(segno.make(address, error="m", micro=False).matrix) + 8
