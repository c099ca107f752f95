"""Passwords that a guesser tries first are refused; those with something of one's own in them are not."""

from __future__ import annotations

import pytest

from portal import accounts
from portal.errors import Malformed
from portal.guessable import guessable

# Long enough for the rule, and of the kinds that lists of leaked passwords have at their top.
_COMMON = """
passwordpassword password1234 Password2024! p@ssw0rd1234 P@$$w0rd123! 123456789012 1234567890ab qwertyuiop123 qwertyuiop[] 1q2w3e4r5t6y 1qaz2wsx3edc
qazwsxedcrfv zaq12wsxcde3 q1w2e3r4t5y6 abcdefghijkl abc123abc123 aaaaaabbbbbb iloveyou1234 iloveyousomuch iloveyou2 letmein12345 letmeinplease1 welcome12345 Welcome2TClone!
administrator administrator1 adminadmin12 rootrootroot test1234test changeme1234 unbelievable christopher1 jesuschrist1 manchesterunited liverpool1892
football1234 basketball12 qwerty123456 asdfghjkl123 zxcvbnm12345 987654321987 112233445566 147258369147 superman12345 monkeymonkey dragon123456 sunshine2025
correcthorsebatterystaple thisismypassword mypassword123 trustno1trustno1 harrypotter1 september2026 Summer2026!!! starwars1977 fuckyou12345 xkcdxkcdxkcd
""".split()  # fmt: skip

_OWN = (
    "four words of my choosing", "tangerine lamp on the 7th stair", "Vx9#kpLm2!qTz", "my dragon likes cold potato soup", "eleven otters juggle", "830174625913",
    "grünes Fahrrad am Bahnhof", "パスワードは秘密の言葉です", "abc-treble-fjord-19",
)  # fmt: skip


@pytest.mark.parametrize("password", _COMMON)
def test_common_ones_are_refused_with_the_reason(password: str) -> None:
    assert guessable(password)
    with pytest.raises(Malformed):
        accounts.check_new_password("anna", password)


@pytest.mark.parametrize("password", _OWN)
def test_ones_own_are_taken(password: str) -> None:
    accounts.check_new_password("anna", password)


@pytest.mark.parametrize("password", ["anna12345678", "Anna-password-1", "1qaz2wsx-ANNA", "annaxyannaxy", "4nn4liverpool"])
def test_the_users_name_is_nothing_of_ones_own(password: str) -> None:
    with pytest.raises(Malformed):
        accounts.check_new_password("anna", password)


def test_a_short_name_may_stand_in_a_password_by_chance() -> None:
    """Every second password that the portal makes has an "a" in it, and one in 70 000 an "anna"."""
    accounts.check_new_password("a", "tangerine lamp on the 7th stair")
    accounts.check_new_password("anna", "pnvif-anna8f-ht8dw-4bu6q")


def test_those_that_the_portal_makes_are_never_refused() -> None:
    for _ in range(2000):
        accounts.check_new_password("anna", accounts.generate_password())


def test_the_longest_one_is_judged_at_once() -> None:
    assert guessable("ab" * 128) and not guessable("".join(chr(0x4E00 + number) for number in range(256)))
